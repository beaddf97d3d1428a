"""What every operator shares: the connection, the repository, how errors end a task, and how a kill ends it.

An operator keeps nothing between ``__init__`` and ``execute`` but its arguments, and opens no lake before it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException

from lakeops.airflow.assets import announce
from lakeops.airflow.conflicts import report
from lakeops.airflow.hook import DEFAULT_CONN_ID, LakeopsHook
from lakeops.airflow.lineage import Trace
from lakeops.airflow.links import address
from lakeops.airflow.run import TaskRun
from lakeops.model.errors import AttemptExpired, InvalidInput, LakeopsError, MergeConflict, SweepIncomplete, Transient

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from lakeops.lake import Lake, Repository


@contextmanager
def failing_at_once() -> Iterator[None]:
    """Turn errors that would come again into a failure without retry; let those that may pass be retried.

    A conflict's message lists every conflicting path, one a line.
    """
    try:
        yield
    except (Transient, AttemptExpired, SweepIncomplete):
        raise
    except MergeConflict as conflict:
        paths = "\n".join(conflict.conflicts)
        raise AirflowFailException(f"{conflict.message}\nAll conflicting paths:\n{paths}") from conflict
    except AirflowNotFoundException as error:
        raise AirflowFailException(str(error)) from error
    except LakeopsError as error:
        raise AirflowFailException(f"{error.kind}: {error.message}") from error


class TaskKilled(BaseException):
    """Raised in a task's main thread by ``on_kill``, so that everything the task holds is given back on the way out.

    No ``Exception``: what handles errors on the way must not take it for one.
    """


class LakeopsOperator(BaseOperator):
    """Opens the connection's lake, does one verb on one repository, and returns the verb's record.

    The result is a dictionary; each of its keys is an XCom of its own too, so ``task.output["id"]`` works.

    Args:
        repo: the repository; the connection's default one when left out.
        lakeops_conn_id: the connection. ``lakeops_default`` is the environment's lake when nobody defined it.
        kwargs: what every Airflow operator takes.
    """

    template_fields: Sequence[str] = ("repo", "lakeops_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"metadata": "json"}
    ui_color = "#d9f2e6"
    _working = False
    _traced = Trace()

    def __init__(
        self,
        *,
        repo: str | None = None,
        lakeops_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,  # noqa: ANN401 - BaseOperator's
    ) -> None:
        kwargs.setdefault("multiple_outputs", True)
        super().__init__(**kwargs)
        self.repo = repo
        self.lakeops_conn_id = lakeops_conn_id
        self.links: dict[str, str] = {}

    def execute(self, context: Context) -> dict[str, Any]:
        """The verb's record, with the keys of the public contract."""
        with failing_at_once(), self._killable():
            hook = LakeopsHook(self.lakeops_conn_id)
            with hook.get_conn() as lake:
                return self.work(lake, hook.repository_name(self.repo), context)

    def work(self, lake: Lake, name: str, context: Context) -> dict[str, Any]:
        """Do the operator's work in an open lake; ``name`` is the repository's."""
        repository = lake.repository(name)
        run = TaskRun.of(context)
        record = None
        try:
            record = self.run_verb(repository, run)
        except MergeConflict as conflict:
            report(conflict, repository, self.sides(repository), context, self.log)
            raise
        finally:
            self.links = self.pages(repository, record)
        self._traced = self.trace(repository, record)
        moved = self.moved(repository, record, run)
        if moved is not None:
            announce(context, repository, *moved)
        return record

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        """Do the operator's one verb; returns its record."""
        raise NotImplementedError

    def moved(
        self,
        repository: Repository,  # noqa: ARG002 - for those that move none
        record: dict[str, Any],  # noqa: ARG002
        run: TaskRun,  # noqa: ARG002
    ) -> tuple[str, str] | None:
        """The branch that the task published on and the commit it published, from its record; None when it did not."""
        return None

    def trace(self, repository: Repository, record: dict[str, Any]) -> Trace:  # noqa: ARG002 - for those without data
        """What the verb read and wrote, for lineage."""
        return Trace()

    def get_openlineage_facets_on_complete(self, task_instance: object) -> OperatorLineage | None:  # noqa: ARG002
        """What the verb read and wrote; OpenLineage's provider calls this, in the task's process."""
        return self._traced.to_openlineage()

    def pages(self, repository: Repository, record: dict[str, Any] | None) -> dict[str, str]:  # noqa: ARG002
        """Addresses that the task's extra links lead to, by kind; the record is None when the verb failed."""
        return {}

    def page(self, repository: Repository, *parts: str, **query: str) -> str:
        """The address of one page of the repository."""
        return address(self.lakeops_conn_id, repository.id, *parts, **query)

    def sides(self, repository: Repository) -> tuple[str, str] | None:  # noqa: ARG002 - for those that merge nothing
        """The two refs whose objects a table of conflicts compares; None where they say nothing."""
        return None

    def on_kill(self) -> None:
        """End a verb that is under way; Airflow calls this when the task gets SIGTERM, in its main thread.

        Spark jobs are cancelled and uploads given up on the way out. Nothing is published from then on. A second
        signal does not disturb that.
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


_TRUE = {"true", "yes", "1", "on"}
_FALSE = {"false", "no", "0", "off", "none", ""}


def number(value: int | str | None) -> int | None:
    """A whole number; empty text means none. Raises ``InvalidInput``."""
    if value is None or value in {"", "None"}:
        return None
    try:
        return int(value)
    except ValueError:
        raise InvalidInput(f"{value!r} is not a number") from None


def truth(value: bool | str | None) -> bool:
    """Yes or no. Raises ``InvalidInput`` for anything that is neither: a guess could delete something."""
    word = str(value).strip().lower()
    if word not in _TRUE | _FALSE:
        raise InvalidInput(f"{value!r} is neither true nor false")
    return word in _TRUE
