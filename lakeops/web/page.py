"""The base of all pages: the site, the request, errors, links between pages, and the templates.

Templates escape all text from a repository, and remove characters that turn or hide others. The headers name the
digests of style and script, which each page has inside, so the browser applies and runs nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import quote, urlencode, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from lakeops.model import errors
from lakeops.model.errors import InvalidInput, LakeopsError
from lakeops.model.formatting import counted, human_size, moment, span
from lakeops.model.names import COMMIT_ID
from lakeops.model.sanitising import safe

if TYPE_CHECKING:
    from lakeops.lake import Lake, Repository

_HERE = Path(__file__).with_name("templates")
_STYLE = (_HERE / "style.css").read_text()
_SCRIPT = (_HERE / "script.js").read_text()
SHORT = 12
"""Digits of a commit id that a page shows."""


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
"""The headers of every response, errors included."""


def render(template: str, **values: Any) -> str:  # noqa: ANN401 - whatever the template shows
    """Render a template as a whole document."""
    return _TEMPLATES.get_template(template).render(**values)


def address(root: str, *parts: str, **query: object) -> str:
    """The address of a page below ``root``. Query values that are None or empty are left out."""
    path = "/".join((root, *(quote(part, safe="") for part in parts))) or "/"
    given = {name: value for name, value in query.items() if value not in (None, "", False)}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def is_web_address(value: str) -> bool:
    """Tell whether a text may become a link: ``http`` and ``https`` only, so never ``javascript:``."""
    try:
        return urlsplit(value).scheme in {"http", "https"}
    except ValueError:
        return False


def _with_code(text: str) -> Markup:
    parts = [safe(part) for part in text.split("`")]
    if len(parts) % 2 == 0:
        return Markup("{}").format(safe(text))
    return Markup("").join(Markup("<code>{}</code>").format(one) if at % 2 else one for at, one in enumerate(parts))


def _ago(unix_seconds: int) -> Markup:
    seconds = int(time.time()) - unix_seconds
    words = "just now" if -60 < seconds < 5 else f"{span(seconds)} ago" if seconds > 0 else f"in {span(-seconds)}"
    exact = moment(unix_seconds)
    return Markup('<time title="{}" tabindex="0">{}</time>').format(exact, words)


def _middle(text: str, most: int = 72) -> str:
    plain = safe(text)
    return plain if len(plain) <= most else f"{plain[: most // 2 - 1]}…{plain[-(most // 2) :]}"


_TEMPLATES = Environment(
    loader=FileSystemLoader(_HERE),
    autoescape=True,
    finalize=lambda value: value if hasattr(value, "__html__") else safe(str(value)),  # markup is the templates' own
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {"moment": moment, "human_size": human_size, "span": span}
_TEMPLATES.filters |= {"ago": _ago, "middle": _middle, "with_code": _with_code}
_TEMPLATES.filters |= {
    "lines": lambda text: Markup("\n").join("\t".join(map(safe, line.split("\t"))) for line in text.splitlines()),
    "exact": lambda value: Markup(escape(value).encode("ascii", "xmlcharrefreplace").decode()),  # noqa: S704 - escaped
    "first_line": lambda text: (text.splitlines() or [""])[0],
    "short": lambda commit_id: commit_id[:SHORT],
}
_TEMPLATES.tests["web_address"] = is_web_address
_TEMPLATES.tests["commit_id"] = COMMIT_ID.fullmatch
_TEMPLATES.globals |= {"STYLE": Markup(_STYLE), "SCRIPT": Markup(_SCRIPT), "counted": counted}  # noqa: S704 - files of this package


STORE_DOWN = "The object store does not answer. Try again in a while; refs and upkeep still work."
STATUS: tuple[tuple[type[LakeopsError] | str, int, str], ...] = (
    ("not_replicated", 503, "Replication has not brought it here yet. The page of mirrors says what is missing."),
    (errors.NotFound, 404, "It may have been deleted or renamed. The list shows what is there now."),
    (errors.CommitExpired, 410, "Retention rules took it. A newer commit, or a tag, may still have what you look for."),
    ("no_merge_base", 400, "Compare them with “every difference between the two”, which needs no common history."),
    ("catalog_version", 500, "Whoever looks after this server has to bring lakeops or its catalog up to date."),
    ("invalid_settings", 500, "Whoever looks after this server has to correct its settings."),
    ("permission_denied", 500, "Whoever looks after this server has to let it read the catalog."),
    ("catalog_unavailable", 503, "The catalog's database does not answer. Try again in a while."),
    (errors.CatalogError, 503, "The catalog refused. Try again in a while; `lakeops doctor` says what is wrong."),
    (errors.StoreUnavailable, 503, STORE_DOWN),
    (errors.StoreError, 503, "The object store refused. Whoever looks after this server has to check its rights."),
    (errors.InvalidInput, 400, "Correct the address, or go back to the list."),
    (errors.Transient, 503, "Try again in a while."),
)
DAMAGED = "Something is damaged or missing. `lakeops fsck` says what, and what to do. Other pages may still work."


class Problem(NamedTuple):
    """An error on a page, with the HTTP status of a page that shows nothing else, and advice for the reader."""

    message: str
    status: int
    advice: str

    @classmethod
    def of(cls, error: LakeopsError) -> Self:
        """Translate an error to its status and advice."""
        for which, status, advice in STATUS:
            if error.kind == which if isinstance(which, str) else isinstance(error, which):
                return cls(error.message, status, advice)
        return cls(error.message, 500, DAMAGED)


MOST_QUERY = 2048
"""Characters of the longest query value."""
VIEWS = {
    "objects": ("Objects", "tree"),
    "blame": ("Blame", "blame"),
    "uncommitted": ("Uncommitted changes", "uncommitted"),
}
"""Views of a ref beside its history: the title of each, and its part of the address."""


@dataclass(frozen=True)
class Site:
    """The place where the pages of a lake are served.

    Attributes:
        root: the prefix of the pages' addresses.
        lake_name: the name of the lake on the pages.
        home: the address of a list of lakes, if there are several.
        airflow: the prefix of the addresses of Airflow's own pages; None outside Airflow.
        acts: whether forms below ``act/`` of a repository trigger changes.
        sees: tells whether the visitor may see a repository; None where they may see all of the lake.
    """

    root: str
    lake_name: str
    home: str | None = None
    airflow: str | None = None
    acts: bool = False
    sees: Callable[[str], bool] | None = None

    def run_page(self, metadata: Mapping[str, str]) -> str | None:
        """The address of the task that made a commit, in the Airflow that serves this page."""
        names = [metadata.get(f"airflow_{part}") for part in ("dag_id", "run_id", "task_id")]
        if self.airflow is None or None in names:
            return None
        dag, run, task = (str(name) for name in names)
        index = metadata.get("airflow_map_index", "-1")
        mapped = ("mapped", index) if index.isdigit() else ()
        return address(self.airflow, "dags", dag, "runs", run, "tasks", task, *mapped)


def _folders(path: str) -> Iterator[tuple[str, str]]:
    end = path.find("/")
    start = 0
    while end >= 0:
        yield path[start:end], path[: end + 1]
        start, end = end + 1, path.find("/", end + 1)


class Page:
    """The base class of pages, made for the parameters in the path and in the query of one request."""

    def __init__(self, site: Site, lake: Lake, path: Mapping[str, str], query: Mapping[str, str]) -> None:
        self._site, self._lake, self._path, self._query = site, lake, path, query

    def _query_value(self, name: str) -> str:
        """A parameter of the query; empty when it is absent. Raises ``InvalidInput``."""
        found = self._query.get(name, "")
        if len(found) > MOST_QUERY:
            raise InvalidInput(f"{name!r} in the address is longer than {MOST_QUERY} characters")
        return found

    @cached_property
    def _repository(self) -> Repository:
        return self._lake.repository(self._path["repository"])

    def _address(self, *parts: str, **query: object) -> str:
        return address(self._site.root, self._path["repository"], *parts, **query)

    def _of_ref(self, template: str, view: str, *, item: str = "", **values: Any) -> str:  # noqa: ANN401
        """Render a page of the ref. ``item`` is the name of the one object that it shows."""
        ref, is_branch = self._path["ref"], True
        try:
            self._repository.branch(ref)
        except LakeopsError:
            is_branch = False
        crumbs: list[tuple[str, str | None]] = [(ref, self._address("ref", ref))]
        if view in VIEWS:
            name, part = VIEWS[view]
            crumbs.append((name, self._address(part, ref)))
        if item:
            crumbs.append((item, None))
        title = f"{item} · {ref}" if item else ref
        values |= {"ref": ref, "view": view, "is_branch": is_branch}
        return self._of_repository(template, title, tab="branches", crumbs=crumbs, **values)

    def _of_repository(
        self,
        template: str,
        title: str,
        *,
        tab: str,
        crumbs: list[tuple[str, str | None]] | None = None,
        **values: Any,  # noqa: ANN401
    ) -> str:
        repository = self._repository
        trail = [(repository.id, self._address()), *(crumbs if crumbs is not None else [(title, None)])]
        acts = self._site.acts and (tab == "mirror" or not repository.record.read_only)
        given: dict[str, Any] = {name: self._query_value(name) for name in ("path", "prefix", "after")}
        given["folders"] = list(_folders(given["path"] or given["prefix"]))
        given["act"] = partial(self._address, "act") if acts else None
        given |= {"repository": repository, "to": self._address, "tab": tab, "crumbs": trail}
        return self._page(template, f"{title} · {repository.id}", **(given | values))

    def _page(self, template: str, title: str, **values: Any) -> str:  # noqa: ANN401
        """Render a page. ``values`` are those of its template beside what every template gets."""
        given: dict[str, Any] = {"crumbs": [], "tab": None, "repository": None, "runs": self._site.run_page, **values}
        given |= {"site": self._site, "title": title, "lake": partial(address, self._site.root), "query": self._query}
        return render(template, **given)
