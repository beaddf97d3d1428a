"""What every operator does: open the lake, do one verb, announce and link what it did, end cleanly when killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from lakeops.airflow.assets import COMMITS, announce, branch_asset
from lakeops.airflow.changes import report_conflict
from lakeops.airflow.failures import failing_at_once
from lakeops.airflow.hook import LakeopsHook
from lakeops.airflow.lineage import Trace
from lakeops.airflow.links import LakeopsBranchLink, address, host
from lakeops.airflow.task import LakeopsTask, TaskRun
from lakeops.machine import without_blas_threads
from lakeops.model.errors import MergeConflict

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from lakeops.lake import Lake, Repository


class TaskKilled(BaseException):
    """Raised in a task's main thread by ``on_kill``, so that everything the task holds is released on the way out.

    It is no ``Exception``, because code that handles errors must not take it for one.
    """


class LakeopsOperator(LakeopsTask, BaseOperator):
    """Does one verb on one repository and returns the verb's record.

    The record is a dictionary. Each of its keys is an XCom of its own too, so ``task.output["id"]`` works.

    Args:
        repo: the repository; the connection's default one when left out.
        lakeops_conn_id: the connection. ``lakeops_default`` is the environment's lake when nobody defined it.
        kwargs: what every Airflow operator takes.
    """

    template_fields_renderers: ClassVar[dict[str, str]] = {"metadata": "json"}
    ui_color = "#d9f2e6"
    announces: ClassVar[bool] = False
    """Whether the verb publishes. Without ``outlets`` the asset of the branch is then told, and ``COMMITS``."""

    _tells_by_itself = False
    _working = False
    _traced = Trace()

    def airflow_arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        """Each key of the record is an XCom, and what is published is announced."""
        if self.announces and "outlets" not in given:
            self._tells_by_itself = True
            given = {**given, "outlets": [COMMITS]}
        return {"multiple_outputs": True, **given}

    def execute(self, context: Context) -> dict[str, Any]:
        """The verb's record, with the keys of the public contract."""
        if self._tells_by_itself:
            # Airflow makes an event for each outlet at every success, and this task may publish nothing.
            self.outlets: list[Any] = []
        with failing_at_once(self.arguments()), self._killable(), without_blas_threads():
            self.check_values()
            hook = LakeopsHook(self.lakeops_conn_id)
            with hook.get_conn() as lake, hook.naming(lake):
                return self.work(lake, hook.repository_name(self.repo), context)

    def work(self, lake: Lake, name: str, context: Context) -> dict[str, Any]:
        """Do the operator's work in an open lake. ``name`` is the repository's."""
        repository = lake.repository(name)
        run = TaskRun.of(context)
        record = None
        try:
            record = self.run_verb(repository, run)
        except MergeConflict as conflict:
            report_conflict(conflict, repository, self.sides(repository), context, self.log)
            raise
        finally:
            self.links: dict[str, str] = self.pages(repository, record)
            for kind, page in self.links.items():
                if page:
                    self.log.info("See the %s: %s%s", kind, host(), page)
        published = self.published(repository, record, run)
        self._traced = self.trace(repository, record, published)
        branch = self.target(repository)
        if published is not None and branch is not None:
            self.announce(context, repository, branch, published)
        return record

    def announce(
        self,
        context: Context,
        repository: Repository,
        branch: str,
        commit: dict[str, Any],
        **more: Any,  # noqa: ANN401
    ) -> None:
        """Tell the outlets of a commit, and where its page is. ``more`` is for ``lakeops.airflow.assets.announce``."""
        asset = branch_asset(repository.id, branch)
        if self._tells_by_itself:
            # An asset that no DAG names has nobody to tell: Airflow then leaves the event out, and inserts nothing.
            self.outlets = [COMMITS, *(each for each in self.outlets if each not in (COMMITS, asset)), asset]
        page = self.page(repository, "commit", str(commit["id"]))
        also = {**({"page": f"{host()}{page}"} if page else {}), **(more.pop("more", None) or {})}
        announce(context, repository, branch, commit, more=also, **more)

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        """Do the operator's one verb; returns its record."""
        raise NotImplementedError

    def target(self, repository: Repository) -> str | None:
        """The branch that the verb works on."""
        return None

    def published(self, repository: Repository, record: dict[str, Any], run: TaskRun) -> dict[str, Any] | None:
        """The record of the commit that this DAG run has published on the target; None when it published none."""
        return None

    def pages(self, repository: Repository, record: dict[str, Any] | None) -> dict[str, str]:
        """Addresses for the task's extra links, by kind. The record is None when the verb failed."""
        branch = self.target(repository)
        return {} if branch is None else {"branch": self.page(repository, "ref", branch)}

    def page(self, repository: Repository, *parts: str, **query: str) -> str:
        """The address of one page of the repository."""
        return address(self.lakeops_conn_id, repository.id, *parts, **query)

    def sides(self, repository: Repository) -> tuple[str, str] | None:
        """The source and the destination, when a table of conflicts can compare their objects."""
        return None

    def trace(self, repository: Repository, record: dict[str, Any], published: dict[str, Any] | None) -> Trace:
        """What the verb read and wrote, for lineage."""
        return Trace()

    def get_openlineage_facets_on_complete(self, task_instance: object) -> OperatorLineage | None:
        """What the verb read and wrote. OpenLineage's provider calls this in the task's process."""
        return self._traced.to_openlineage()

    def on_kill(self) -> None:
        """End a verb that is under way. Airflow calls this in the task's main thread when the task gets SIGTERM.

        Spark jobs are cancelled and uploads given up on the way out, and nothing is published any more. A second
        signal changes nothing.
        """
        if self._working:
            self._working = False
            raise TaskKilled(f"task {self.task_id!r} was killed")

    @contextmanager
    def _killable(self) -> Iterator[None]:
        self._working = True
        try:
            yield
        finally:
            self._working = False


class LakeopsBranchOperator(LakeopsOperator):
    """Does a verb on one branch of a repository.

    Args:
        branch: the branch; the repository's default branch when left out.
        kwargs: see ``LakeopsOperator``.
    """

    operator_extra_links: Any = (LakeopsBranchLink(),)
    branch: str | None = None

    def target(self, repository: Repository) -> str:
        """The branch."""
        return self.branch or repository.default_branch
