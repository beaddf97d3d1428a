"""Templates: text from a repository is escaped, and no character in it turns or hides others.

The style and the few lines of script are written into each page. The answer's headers name their digests, so the
browser applies and runs nothing else, whatever a repository holds.
"""

from __future__ import annotations

import base64
import hashlib
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from lakeops.model.text import safe
from lakeops.model.words import counted, human_size, moment, span

_HERE = Path(__file__).with_name("templates")
_STYLE = (_HERE / "style.css").read_text()
_SCRIPT = (_HERE / "script.js").read_text()
SHORT = 12
"""How many digits of a commit id are shown."""


def _digest(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src {_digest(_STYLE)}; script-src {_digest(_SCRIPT)}; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'self'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""The headers of every answer, errors too."""


def render(template: str, **values: Any) -> str:  # noqa: ANN401 - whatever the template shows
    """A template as a whole document."""
    return _TEMPLATES.get_template(template).render(**values)


def address(root: str, *parts: str, **query: object) -> str:
    """The address of a page below ``root``. Values of the query that are None or empty are left out."""
    path = "/".join((root, *(quote(part, safe="") for part in parts))) or "/"
    given = {name: value for name, value in query.items() if value not in (None, "", False)}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def is_web_address(value: str) -> bool:
    """Whether a text can be followed as a link. Nothing else becomes one, least of all ``javascript:``."""
    try:
        return urlsplit(value).scheme in {"http", "https"}
    except ValueError:
        return False


def _printable(value: object) -> object:
    """What a template writes, without characters that turn or hide others. Markup of the templates stays."""
    return value if hasattr(value, "__html__") else safe(str(value))


def _lines(text: str) -> str:
    """A text of several lines, each of them safe."""
    return Markup("\n").join(safe(line) for line in text.splitlines())


def _with_code(text: str) -> Markup:
    """A text in which what stands between backticks is code."""
    parts = [safe(part) for part in text.split("`")]
    if len(parts) % 2 == 0:
        return Markup("{}").format(safe(text))
    return Markup("").join(Markup("<code>{}</code>").format(one) if at % 2 else one for at, one in enumerate(parts))


def _ago(unix_seconds: int) -> Markup:
    """How long ago a moment was, with the exact one on hover."""
    seconds = int(time.time()) - unix_seconds
    words = "just now" if -60 < seconds < 5 else f"{span(seconds)} ago" if seconds > 0 else f"in {span(-seconds)}"
    exact = moment(unix_seconds)
    return Markup('<time title="{}" tabindex="0">{}</time>').format(exact, words)


def _middle(text: str, most: int = 72) -> str:
    """A long path with its middle left out: its beginning and its end say most."""
    plain = safe(text)
    return plain if len(plain) <= most else f"{plain[: most // 2 - 1]}…{plain[-(most // 2) :]}"


_TEMPLATES = Environment(
    loader=FileSystemLoader(_HERE),
    autoescape=True,
    finalize=_printable,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {
    "moment": moment,
    "human_size": human_size,
    "ago": _ago,
    "middle": _middle,
    "lines": _lines,
    "with_code": _with_code,
    "first_line": lambda text: (text.splitlines() or [""])[0],
    "short": lambda commit_id: commit_id[:SHORT],
    "span": span,
}
_TEMPLATES.tests["web_address"] = is_web_address
_TEMPLATES.globals |= {"STYLE": Markup(_STYLE), "SCRIPT": Markup(_SCRIPT), "counted": counted}  # noqa: S704 - files of this package
