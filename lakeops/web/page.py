"""What all pages have in common: where they are served, what was asked, and how they link to one another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from lakeops.model.errors import InvalidInput, LakeopsError
from lakeops.web.render import address, render

if TYPE_CHECKING:
    from lakeops.lake import Lake, Repository

MOST_QUERY = 2048
"""Characters of one value of an address."""
VIEWS = {
    "objects": ("Objects", "tree"),
    "blame": ("Who wrote it", "blame"),
    "uncommitted": ("Not committed", "uncommitted"),
}
"""Views of a ref beside its history: what each is called, and the part of its address."""


class Moved(NamedTuple):
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
