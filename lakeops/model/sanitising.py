"""Text from users, files and other systems, as messages, logs and terminals show it.

It keeps no control character, so no name can move the cursor, recolour the screen, forge a line of a log or turn text
around. It keeps no password of a URL. JSON escapes control characters by itself.
"""

from __future__ import annotations

import re

_SHOWN = 80
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<place>[^\s'\"<>/?#;]*)(?P<rest>[^\s'\"<>]*)")
_WORDS = "password|passwd|pwd|token|secret|signature|credential"
_PARAMETER = re.compile(rf"(?P<name>[?&;][^=&;?]*(?:{_WORDS})[^=&;?]*=)[^&;]*", re.IGNORECASE)

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0 and C1 controls: newlines and escape sequences among them
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that turn the direction of text
    "\u2028\u2029\ud800-\udfff]"  # line and paragraph separators, lone surrogates
)


def safe(text: str) -> str:
    """The text on one line, with every control character written as Python escapes it."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def masked(text: str) -> str:
    """The text with ``***`` for what may be a secret in its URLs. Every error and every setting goes through this."""
    return _URL.sub(_masked_url, text) if "://" in text else text


def _masked_url(url: re.Match[str]) -> str:
    place, rest = url["place"], url["rest"]
    port = place.rpartition(":")[2]
    if "@" in rest.partition("?")[0] and ":" in place and not port.isdigit():  # a password with a slash in it
        place, rest = f"{place.partition(':')[0]}:***@{rest.rpartition('@')[2].partition('/')[0]}", ""
    elif "@" in place:
        login, _, host = place.rpartition("@")
        place = f"{login.partition(':')[0]}:***@{host}" if ":" in login else place
    else:  # what stands where a port would is one, or a password whose host was forgotten
        place = ",".join(_masked_port(part) for part in place.split(","))
    return f"{url['scheme']}{place}{_PARAMETER.sub(lambda found: found['name'] + '***', rest)}"


def _masked_port(part: str) -> str:
    name, colon, port = part.rpartition(":")
    return f"{name}:***" if colon and port.strip("]") and not port.isdigit() and "[" not in part else part


def one_line(error: Exception, most: int | None = None) -> str:
    """The beginning of an error's message, in one line. The name of its type where it has no message."""
    return (" ".join(str(error).split()) or type(error).__name__)[:most]


def excerpt(text: object) -> str:
    """The text in quotes on one line: unprintable characters escaped, only the beginning of a long one."""
    if not isinstance(text, str):
        return f"a value of type {type(text).__name__}"
    shown = text[:_SHOWN]
    while len(repr(shown)) > _SHOWN + 20:  # an escaped character takes up to ten
        shown = shown[: len(shown) * 3 // 4]
    return repr(text) if shown == text else f"{shown!r}... ({len(text)} characters)"
