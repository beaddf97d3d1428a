"""What all pages have in common: where they are served, what was asked, and how they link to one another."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import quote, urlencode, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from lakeops.model.errors import (
    CatalogError,
    CatalogUnavailable,
    CatalogVersion,
    CommitExpired,
    InvalidInput,
    InvalidSettings,
    LakeopsError,
    NoMergeBase,
    NotFound,
    NotReplicated,
    ObjectNotFound,
    PermissionDenied,
    StoreError,
    StoreUnavailable,
    Transient,
)
from lakeops.model.text import safe
from lakeops.model.words import counted, human_size, moment, span

if TYPE_CHECKING:
    from lakeops.lake import Lake, Repository

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


STATUS: tuple[tuple[type[LakeopsError], int, str], ...] = (
    (NotReplicated, 503, "Replication has not brought it here yet. The page of mirrors says what is missing."),
    (NotFound, 404, "It may have been deleted or renamed. The list shows what is there now."),
    (CommitExpired, 410, "Retention rules took it. A newer commit, or a tag, may still have what you look for."),
    (NoMergeBase, 400, "Compare them with “all that differs, in either”, which needs no common history."),
    (CatalogVersion, 500, "Whoever looks after this server has to bring lakeops or its catalog up to date."),
    (InvalidSettings, 500, "Whoever looks after this server has to correct its settings."),
    (PermissionDenied, 500, "Whoever looks after this server has to let it read the catalog."),
    (CatalogUnavailable, 503, "The catalog's database does not answer. Try again in a while."),
    (CatalogError, 503, "The catalog's database refused. Try again in a while; `lakeops doctor` says what is wrong."),
    (StoreUnavailable, 503, "The object store does not answer. Try again in a while; pages of refs and of upkeep do."),
    (StoreError, 503, "The object store refused. Whoever looks after this server has to look at its rights there."),
    (InvalidInput, 400, "Correct the address, or go back to the list."),
    (Transient, 503, "Try again in a while."),
)
DAMAGED = "Something is damaged or missing. `lakeops fsck` says what, and what to do. Other pages may still work."


class Problem(NamedTuple):
    """An error on a page.

    Attributes:
        message: what went wrong.
        status: the status of an answer that says nothing else.
        advice: what to do.
    """

    message: str
    status: int
    advice: str

    @property
    def is_damage(self) -> bool:
        """Whether something of the repository is damaged or missing."""
        return self.advice == DAMAGED

    @classmethod
    def of(cls, error: LakeopsError) -> Self:
        """What a page says of an error."""
        if type(error) is ObjectNotFound and isinstance(error.__cause__, ObjectNotFound):
            # No path that somebody asked for: the store lacks a file that a commit needs.
            return cls(error.message, 500, DAMAGED)
        known = ((status, advice) for kind, status, advice in STATUS if isinstance(error, kind))
        return cls(error.message, *next(known, (500, DAMAGED)))


MOST_QUERY = 2048
"""Characters of one value of an address."""
VIEWS = {
    "objects": ("Objects", "tree"),
    "blame": ("Who wrote it", "blame"),
    "uncommitted": ("Not committed", "uncommitted"),
}
"""Views of a ref beside its history: what each is called, and the part of its address."""


class Redirect(NamedTuple):
    """The answer is at another address."""

    to: str


@dataclass(frozen=True)
class Site:
    """Where pages are served.

    Attributes:
        root: what the addresses of a lake's pages begin with.
        lake_name: what the lake is called on them.
        home: the address of a list of lakes, if there are several.
        airflow: what addresses of Airflow's own pages begin with; None outside Airflow.
        acts: whether there are forms that change something, below ``act/`` of a repository.
        sees: whether whoever looks may see a repository; None where they may see all of the lake.
    """

    root: str
    lake_name: str
    home: str | None = None
    airflow: str | None = None
    acts: bool = False
    sees: Callable[[str], bool] | None = None

    def run_page(self, metadata: Mapping[str, str]) -> str | None:
        """The page of the task that made a commit, in the Airflow that shows this page."""
        names = [metadata.get(f"airflow_{part}") for part in ("dag_id", "run_id", "task_id")]
        if self.airflow is None or None in names:
            return None
        dag, run, task = (str(name) for name in names)
        index = metadata.get("airflow_map_index", "-1")
        mapped = ("mapped", index) if index.isdigit() else ()
        return address(self.airflow, "dags", dag, "runs", run, "tasks", task, *mapped)


class Page:
    """The pages of one lake, for one request: what every one of them uses.

    Args:
        site: where they are served.
        lake: the open lake.
        path: the parameters in the address.
        query: what follows the question mark.
    """

    def __init__(self, site: Site, lake: Lake, path: Mapping[str, str], query: Mapping[str, str]) -> None:
        self._site = site
        self._lake = lake
        self._path = path
        self._query = query

    def _query_value(self, name: str) -> str:
        """A value of the query; empty when it is not there. Raises ``InvalidInput``."""
        found = self._query.get(name, "")
        if len(found) > MOST_QUERY:
            raise InvalidInput(f"{name!r} in the address is longer than {MOST_QUERY} characters")
        return found

    def _repository(self) -> Repository:
        return self._lake.repository(self._path["repository"])

    def _address(self, *parts: str, **query: object) -> str:
        """The address of a page of this repository."""
        return address(self._site.root, self._path["repository"], *parts, **query)

    def _of_ref(self, template: str, ref: str, view: str, *, item: str = "", **values: Any) -> str:  # noqa: ANN401
        """A page of a ref. ``item`` is the name of the one object that it is about."""
        repository = self._repository()
        is_branch = True
        try:
            repository.branch(ref)
        except LakeopsError:
            is_branch = False
        crumbs: list[tuple[str, str | None]] = [(ref, self._address("ref", ref))]
        if view in VIEWS:
            name, part = VIEWS[view]
            crumbs.append((name, self._address(part, ref)))
        if item:
            crumbs.append((item, None))
        title = f"{item} · {ref}" if item else ref
        return self._of_repository(
            template,
            title,
            repository,
            tab="branches",
            crumbs=crumbs,
            ref=ref,
            view=view,
            is_branch=is_branch,
            **values,
        )

    def _of_repository(
        self,
        template: str,
        title: str,
        repository: Repository,
        *,
        tab: str,
        crumbs: list[tuple[str, str | None]] | None = None,
        **values: Any,  # noqa: ANN401
    ) -> str:
        trail = [(repository.id, self._address()), *(crumbs if crumbs is not None else [(title, None)])]
        acts = self._site.acts and (tab == "mirror" or not repository.record.read_only)
        act = (lambda kind, **fields: self._address("act", kind, **fields)) if acts else None
        given = {"repository": repository, "to": self._address, "tab": tab, "crumbs": trail, "act": act, **values}
        return self._page(template, f"{title} · {repository.id}", **given)

    def _page(self, template: str, title: str, **values: Any) -> str:  # noqa: ANN401
        given = {"crumbs": [], "tab": None, "repository": None, "runs": self._site.run_page, **values}
        return render(template, site=self._site, title=title, lake=self._lake_address, query=self._query, **given)

    def _lake_address(self, *parts: str, **query: object) -> str:
        """The address of a page of the lake."""
        return address(self._site.root, *parts, **query)
