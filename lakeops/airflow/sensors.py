"""Sensors: tasks that wait for something in a repository.

The plain form asks in the task (``mode="poke"`` or ``"reschedule"``). The deferrable form asks once in the task, and
then leaves the question to the triggerer. Both return the same record, fail with the same message and heed ``timeout``,
``soft_fail`` and ``never_fail`` alike. Nothing is kept on the sensor, because another process asks the next question.

Errors that may pass are waited out in both forms, within the timeout. Only the first question of a deferrable task
leaves them to its ``retries``. Errors that waiting cannot mend fail the task at once, whatever its ``retries`` are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from lakeops.airflow.compat import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferralError,
    TaskDeferred,
    conf,
    last_success,
    require,
)
from lakeops.airflow.conditions import (
    NO_COMMIT,
    Condition,
    NewCommit,
    NothingUncommitted,
    ObjectPresent,
    PrefixPresent,
    Replicated,
    TagExists,
)
from lakeops.airflow.failures import LakeopsFailure, LakeopsTimeout
from lakeops.airflow.task import LakeopsTask, fixed
from lakeops.airflow.triggers import LakeopsConditionTrigger
from lakeops.model.errors import CommitExpired, InvalidInput, RefNotFound, Transient

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lakeops.lake import Repository

SETTLE_SECONDS = 1.0
"""How long a deferred task rests before it is resumed, beyond the executor's heartbeat."""


class LakeopsSensor(LakeopsTask, BaseSensorOperator):
    """Waits until a condition of a repository is met; returns what was found.

    The result is a dictionary. Each of its keys is an XCom of its own too.

    Args:
        repo: the repository; the connection's default one when left out.
        lakeops_conn_id: the connection. ``lakeops_default`` is the environment's lake when nobody defined it.
        deferrable: wait in the triggerer, which takes no worker slot. Airflow's ``[operators] default_deferrable``
            decides when left out. A deferrable sensor is tried at least twice unless ``retries`` says otherwise,
            because Airflow 3.3 sometimes fails a task that it resumes.
        kwargs: what every Airflow sensor takes. ``exponential_backoff`` and ``max_wait`` are for the plain form.
    """

    ui_color = "#d9e6f2"
    deferrable: bool | None = fixed(default=None)
    if TYPE_CHECKING:  # what Airflow's sensors take
        poke_interval: Any = 60
        timeout: Any = None
        soft_fail: bool = False
        mode: Any = "poke"
        exponential_backoff: bool = False
        max_wait: Any = None
        silent_fail: bool = False
        never_fail: bool = False

    def airflow_arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        """Each key of the record is an XCom, and a deferrable sensor has a second try."""
        if self.deferrable is None:
            self.deferrable = conf.getboolean("operators", "default_deferrable", fallback=False)
        arguments = {"multiple_outputs": True, **given}
        if self.deferrable and "retries" not in {**given, **(given.get("default_args") or {})}:
            arguments["retries"] = max(1, conf.getint("core", "default_task_retries", fallback=0))
            arguments.setdefault("retry_delay", timedelta(seconds=5))
        return arguments

    def condition(self) -> Condition:
        """What is waited for, as the arguments say it."""
        raise NotImplementedError

    def condition_in(self, repository: Repository, context: Context) -> Condition:  # noqa: ARG002 - for LakeopsCommitSensor
        """What is waited for. It is the same for the whole wait, whichever process asks."""
        return self.condition()

    def awaited(self) -> str:
        """What is waited for in words, for messages."""
        return str(self.condition())

    def poke(self, context: Context) -> PokeReturnValue:
        """Whether the condition is met now, and what was found."""
        try:
            found, _, _ = self._ask(context)
        except Transient as error:
            self.log.warning("Waiting goes on: %s", error.message)
            found = None
        return PokeReturnValue(is_done=found is not None, xcom_value=found)

    def execute(self, context: Context) -> Any:  # noqa: ANN401 - BaseSensorOperator's
        """What was found, once the condition is met."""
        with self._naming_the_wait():
            if not self.deferrable:
                return super().execute(context)
            with self._failing_softly():
                found, name, condition = self._ask(context)
            if found is not None:
                return found
            raise self._deferral(name, condition)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - Airflow's
        """What the trigger found. Raises ``LakeopsFailure`` for an error that waiting cannot mend."""
        if event["status"] == "error":
            raise LakeopsFailure(event["message"])
        result: dict[str, Any] = event["result"]
        self.log.info("%s: %s", self.awaited(), _describe(result))
        return result

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:  # noqa: ANN401 - Airflow's
        """The end of a deferral: ``execute_complete``, a timeout, or a trigger that died."""
        with self._naming_the_wait():
            return super().resume_execution(next_method, next_kwargs, context)

    def _deferral(self, repo: str, condition: Condition) -> TaskDeferred:
        trigger = LakeopsConditionTrigger(
            condition=condition.to_json(),
            repo=repo,
            lakeops_conn_id=self.lakeops_conn_id,
            poll_interval=max(self.poke_interval, SETTLE_SECONDS),
            settle=conf.getfloat("workers", "min_heartbeat_interval", fallback=5) + SETTLE_SECONDS,
        )
        return TaskDeferred(
            trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=max(self.timeout, 1))
        )

    def _ask(self, context: Context) -> tuple[dict[str, Any] | None, str, Condition]:
        """What was found (None when the lake does not answer), the repository's name, and what was asked."""
        with self.opened() as repository:
            condition = self.condition_in(repository, context)
            try:
                found = condition.met(repository)
            except Transient as error:
                self.log.warning("Waiting goes on: %s", error.message)
                found = None
            else:
                self.log.info(
                    "lakefs://%s, %s: %s", repository.id, condition, "not yet" if found is None else _describe(found)
                )
            return found, repository.id, condition

    @contextmanager
    def _naming_the_wait(self) -> Iterator[None]:
        """Say what was waited for when the wait has failed."""
        try:
            yield
        except AirflowSensorTimeout as error:
            raise LakeopsTimeout(f"waited {self.timeout:g} s in vain until {self.awaited()}") from error
        except TaskDeferralError as error:
            raise AirflowException(
                f"the triggerer could not go on waiting until {self.awaited()}; its log says why: {error}"
            ) from error

    @contextmanager
    def _failing_softly(self) -> Iterator[None]:
        """Skip instead of failing where ``soft_fail`` or ``never_fail`` asks for it, as Airflow does for pokes."""
        try:
            yield
        except AirflowFailException as error:
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(f"skipped instead of failed: {error}") from error
            raise
        except Exception as error:
            if self.never_fail:
                raise AirflowSkipException(f"skipped instead of failed: {error}") from error
            raise


def _describe(found: dict[str, Any]) -> str:
    """What was found, in a few words for a log."""
    named = ("id", "commit_id", "path", "message", "ref")
    return ", ".join(f"{name} {found[name]!r}" for name in named if found.get(name)) or "yes"


class LakeopsObjectSensor(LakeopsSensor):
    """Waits until there is an object at a path of a ref; returns the object's record.

    Args:
        ref: any ref expression. A branch shows its uncommitted objects too; ``main@`` is what is committed. A branch
            or tag that does not exist yet is waited for.
        path: the object's path.
        kwargs: see ``LakeopsSensor``.
    """

    ref: str
    path: str

    def condition(self) -> Condition:
        """The object."""
        return ObjectPresent(self.ref, self.path)


class LakeopsPrefixSensor(LakeopsSensor):
    """Waits until there are objects under a prefix of a ref; returns ``ref``, ``prefix`` and ``commit_id``.

    Args:
        ref: any ref expression, as for ``LakeopsObjectSensor``.
        prefix: the prefix.
        min_objects: how many objects there must be at least.
        kwargs: see ``LakeopsSensor``.
    """

    ref: str
    prefix: str
    min_objects: int = fixed(default=1)

    def check_arguments(self) -> None:
        """Refuse to wait for no object."""
        if self.min_objects < 1:
            raise InvalidInput(f"min_objects is at least 1, not {self.min_objects!r}")

    def condition(self) -> Condition:
        """The objects."""
        return PrefixPresent(self.ref, self.prefix, self.min_objects)


class LakeopsTagSensor(LakeopsSensor):
    """Waits until a tag exists; returns its ref record (``id``, ``commit_id``).

    Args:
        tag: the tag.
        kwargs: see ``LakeopsSensor``.
    """

    tag: str

    def condition(self) -> Condition:
        """The tag."""
        return TagExists(self.tag)


class LakeopsUncommittedSensor(LakeopsSensor):
    """Waits until a branch has no uncommitted changes; returns its ref record (``id``, ``commit_id``).

    Args:
        branch: the branch. One that does not exist yet is waited for.
        prefix: heed changes under this prefix only.
        kwargs: see ``LakeopsSensor``.
    """

    branch: str
    prefix: str = ""

    def condition(self) -> Condition:
        """A branch without changes."""
        return NothingUncommitted(self.branch, self.prefix)


class LakeopsReplicationSensor(LakeopsSensor):
    """Waits until all that a mirror's branch or tag waits for has arrived; returns ``id`` and ``commit_id``.

    It looks only for what was missing at the last check of any task, and asks the mirror alone, so the source need
    not be reachable. It promotes nothing; ``LakeopsMirrorPromoteOperator`` does that. A ref that waits for nothing is
    not waited for.

    Args:
        branch: the branch.
        tag: the tag, in place of a branch.
        kwargs: see ``LakeopsSensor``; ``repo`` is the mirror.
    """

    branch: str | None = None
    tag: str | None = None

    def condition(self) -> Condition:
        """The arrival of the ref's candidate."""
        if bool(self.branch) == bool(self.tag):  # known only now: the task may be mapped
            raise InvalidInput("a replication sensor waits for a branch or for a tag: name one of them")
        return Replicated(self.branch or self.tag or "", "branch" if self.branch else "tag")

    @contextmanager
    def _naming_the_wait(self) -> Iterator[None]:
        """Fail instead of skipping when the ref needs somebody's attention."""
        try:
            with super()._naming_the_wait():
                yield
        except AirflowSkipException as skipped:
            problem = self._problem()
            if problem is None:
                raise
            raise LakeopsFailure(problem) from skipped

    def _problem(self) -> str | None:
        """What was wrong with the ref at the last check."""
        from lakeops.lake import Mirror

        with self.opened() as repository:
            status = Mirror.of(repository).status()
        ref = status.branches.get(self.branch) if self.branch else status.tags.get(self.tag or "")
        if ref is None:
            return None
        return ref.error or (f"{ref.kind} {ref.id!r} waits for {ref.awaited}" if ref.stalled else None)


SINCE = "lakeops_since"
"""The key, in Airflow's task state store, of the commit that a wait counts from."""


class LakeopsCommitSensor(LakeopsSensor):
    """Waits until a branch has a commit that ``since`` does not have; returns the record of the branch's head.

    Args:
        branch: the branch; the default one when left out. One that does not exist yet is waited for.
        since: a commit id, a tag or any ref expression. Left out: the commit that this task returned in the last
            successful run before this one (by logical date). Where there is none, the branch's head when the wait
            began.
        kwargs: see ``LakeopsSensor``.
    """

    branch: str | None = None
    since: str | None = None

    def check_arguments(self) -> None:
        """Refuse what would count from another commit at each look: nothing outlasts its process before Airflow 3.3."""
        if self.since is None and self.mode == "reschedule" and not self.deferrable:
            require((3, 3), 'LakeopsCommitSensor without since in mode="reschedule"')

    def condition_in(self, repository: Repository, context: Context) -> Condition:
        """A commit beyond ``since``."""
        return NewCommit(self.branch or repository.default_branch, self.since or self._last_seen(repository, context))

    def awaited(self) -> str:
        """The same in words."""
        branch = f"branch {self.branch!r}" if self.branch else "the default branch"
        return f"{branch} has a commit that {self.since or 'the last run'!r} does not have"

    def _last_seen(self, repository: Repository, context: Context) -> str:
        """Where this run counts from. It is decided once, and kept with the task for later tries and pokes."""
        store = context.get("task_state_store")
        if store is None:  # before Airflow 3.3: it lasts as long as this process, which asks until the end
            noted = cast("dict[str, Any]", context)
            if SINCE not in noted:
                noted[SINCE] = self._start(repository, context)
            return str(noted[SINCE])
        seen = store.get(SINCE)
        if seen is None:
            seen = self._start(repository, context)
            store.set(SINCE, seen)
        return str(seen)

    def _start(self, repository: Repository, context: Context) -> str:
        """The commit of the last run, or the head. No commit where the catalog does not know the one of the last run.

        It was restored from a backup then. What the branch has may have been seen before, and may be new.
        """
        last = _last_result(context)
        if last is None:
            return self._head(repository)
        try:
            with suppress(CommitExpired):  # it is known, and no more is needed of it
                repository.ref(last).commit_id  # noqa: B018 - asked for its error
        except RefNotFound:
            return NO_COMMIT
        return last

    def _head(self, repository: Repository) -> str:
        try:
            head: str = repository.branch(self.branch or repository.default_branch).commit_id
        except RefNotFound:
            return NO_COMMIT
        return head


def _last_result(context: Context) -> str | None:
    """The commit that this task returned in the last successful run before this one, if that is known."""
    task = context["ti"]
    if context.get("logical_date") is None:
        return None
    index = -1 if task.map_index is None else task.map_index
    before = last_success(task, index)
    if before is None:
        return None
    found = task.xcom_pull(task_ids=task.task_id, run_id=before, map_indexes=None if index < 0 else index)
    return None if found is None else str(found["id"])
