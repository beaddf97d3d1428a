"""Sensors: tasks that wait for something in a repository.

The plain form asks in the task (``mode="poke"`` or ``"reschedule"``). The deferrable form asks once in the task, and
then leaves the question to the triggerer. Both return the same record, fail with the same message and heed ``timeout``,
``soft_fail`` and ``never_fail`` alike.

Errors that may pass are waited out within the timeout. Only the first question of a deferrable task leaves them to its
``retries``. Errors that waiting cannot mend fail the task at once, whatever its ``retries`` are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
    conf,
)
from airflow.sdk import BaseSensorOperator, PokeReturnValue

from lakeops.airflow.compat import LakeopsFailure, LakeopsTimeout, TaskDeferralError, last_success, require
from lakeops.airflow.hook import LakeopsHook
from lakeops.airflow.task import LakeopsTask, address, host
from lakeops.airflow.triggers import NO_COMMIT, Condition, LakeopsConditionTrigger
from lakeops.model.errors import CommitExpired, InvalidInput, RefNotFound, Transient

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lakeops.lake import Repository

SETTLE_SECONDS = 1.0
"""Seconds that a deferred task rests before it is resumed, beyond the executor's heartbeat."""


class LakeopsSensor(LakeopsTask, BaseSensorOperator):
    """Waits until a condition of a repository is met; returns a dictionary, whose keys are XComs of their own too.

    Args:
        deferrable: wait in the triggerer, which takes no worker slot. Airflow's ``[operators] default_deferrable``
            decides when left out. A deferrable sensor is tried at least twice unless ``retries`` says otherwise,
            because Airflow 3.3 sometimes fails a task that it resumes.
        kwargs: what every Airflow sensor takes. ``exponential_backoff`` and ``max_wait`` are for the plain form.
    """

    ui_color = "#d9e6f2"
    asks: ClassVar[tuple[str, ...]]
    """The name of the condition, and the attributes that are its arguments."""

    def __init__(self, *, deferrable: bool | None = None, **kwargs: Any) -> None:
        if deferrable is None:
            deferrable = conf.getboolean("operators", "default_deferrable", fallback=False)
        if deferrable and "retries" not in {**kwargs, **(kwargs.get("default_args") or {})}:
            kwargs["retries"] = max(1, conf.getint("core", "default_task_retries", fallback=0))
            kwargs.setdefault("retry_delay", timedelta(seconds=5))
        super().__init__(**{"multiple_outputs": True, **kwargs})
        self.deferrable = deferrable

    def condition(self) -> Condition:
        name, *arguments = self.asks
        return Condition(name, tuple(getattr(self, argument) for argument in arguments))

    def condition_in(self, repository: Repository, context: Context) -> Condition:  # noqa: ARG002 - for LakeopsCommitSensor
        """The condition for the whole wait: every process that asks gets the same."""
        return self.condition()

    def awaited(self) -> str:
        """The condition in words, for messages."""
        return str(self.condition())

    def poke(self, context: Context) -> PokeReturnValue:
        """Ask once whether the condition is met; a lake that does not answer counts as *not yet*."""
        try:
            found, _, _ = self._ask(context)
        except Transient as error:
            self.log.warning("Waiting goes on: %s", error.message)
            found = None
        return PokeReturnValue(is_done=found is not None, xcom_value=found)

    def execute(self, context: Context) -> Any:
        with self._naming_the_wait():
            if not self.deferrable:
                return super().execute(context)
            try:
                found, name, condition = self._ask(context)
            except Exception as error:
                if self.never_fail or (self.soft_fail and isinstance(error, AirflowFailException)):  # as for pokes
                    raise AirflowSkipException(f"skipped instead of failed: {error}") from error
                raise
            if found is not None:
                return found
            trigger = LakeopsConditionTrigger(
                condition=asdict(condition),
                repo=name,
                lakeops_conn_id=self.lakeops_conn_id,
                poll_interval=max(self.poke_interval, SETTLE_SECONDS),
                settle=conf.getfloat("workers", "min_heartbeat_interval", fallback=5) + SETTLE_SECONDS,
            )
            timeout = timedelta(seconds=max(self.timeout, 1))
            raise TaskDeferred(trigger=trigger, method_name="execute_complete", timeout=timeout)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - Airflow's
        if event["status"] == "error":
            raise LakeopsFailure(event["message"])
        result: dict[str, Any] = event["result"]
        self.log.info("%s: %s", self.awaited(), _describe(result))
        return result

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        with self._naming_the_wait():
            return super().resume_execution(next_method, next_kwargs, context)

    def _ask(self, context: Context) -> tuple[dict[str, Any] | None, str, Condition]:
        """Ask the condition once; returns its record (None for *not yet*), the repository's name, and the condition."""
        with self.opened() as repository:
            condition = self.condition_in(repository, context)
            try:
                found = condition.met(repository)
            except Transient as error:
                self.log.warning("Waiting goes on: %s", error.message)
                found = None
            else:
                answer = "not yet" if found is None else _describe(found)
                self.log.info("lakefs://%s, %s: %s", repository.id, condition, answer)
            return found, repository.id, condition

    @contextmanager
    def _naming_the_wait(self) -> Iterator[None]:
        try:
            yield
        except AirflowSensorTimeout as error:
            where, page = "", ""
            with suppress(Exception):  # whoever cannot say where it waited still says for what
                name = LakeopsHook(self.lakeops_conn_id).repository_name(self.repo)
                where, page = f" in lakefs://{name}", address(self.lakeops_conn_id, name)
            said = f"waited {self.timeout:g} s in vain{where} until {self.awaited()}"
            raise LakeopsTimeout(said + (f". See the repository: {host()}{page}" if page else "")) from error
        except TaskDeferralError as error:
            said = f"the triggerer could not go on waiting until {self.awaited()}; its log says why: {error}"
            raise AirflowException(said) from error


def _describe(found: dict[str, Any]) -> str:
    named = ("id", "commit_id", "path", "message", "ref")
    return ", ".join(f"{name} {found[name]!r}" for name in named if found.get(name)) or "yes"


class LakeopsObjectSensor(LakeopsSensor):
    """Waits until there is an object at a path of a ref; returns the object's record.

    Args:
        ref: any ref expression. A branch shows its uncommitted objects too; ``main@`` is what is committed. A branch
            or tag that does not exist yet is waited for.
    """

    template_fields: Any = (*LakeopsSensor.template_fields, "ref", "path")
    asks = ("object", "ref", "path")

    def __init__(self, *, ref: str, path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ref = ref
        self.path = path


class LakeopsPrefixSensor(LakeopsSensor):
    """Waits until there are ``min_objects`` under a prefix of a ref; returns ``ref``, ``prefix`` and ``commit_id``."""

    template_fields: Any = (*LakeopsSensor.template_fields, "ref", "prefix")
    asks = ("prefix", "ref", "prefix", "min_objects")

    def __init__(self, *, ref: str, prefix: str, min_objects: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ref = ref
        self.prefix = prefix
        self.min_objects = min_objects
        if self.min_objects < 1:
            raise InvalidInput(f"min_objects must be at least 1, not {self.min_objects!r}")


class LakeopsTagSensor(LakeopsSensor):
    """Waits until a tag exists; returns its ref record (``id``, ``commit_id``)."""

    template_fields: Any = (*LakeopsSensor.template_fields, "tag")
    asks = ("tag", "tag")

    def __init__(self, *, tag: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tag = tag


class LakeopsUncommittedSensor(LakeopsSensor):
    """Waits until a branch exists without uncommitted changes under ``prefix``; returns ``id`` and ``commit_id``."""

    template_fields: Any = (*LakeopsSensor.template_fields, "branch", "prefix")
    asks = ("nothing uncommitted", "branch", "prefix")

    def __init__(self, *, branch: str, prefix: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.branch = branch
        self.prefix = prefix


class LakeopsReplicationSensor(LakeopsSensor):
    """Waits until all that a mirror's branch, or tag, waits for has arrived; returns ``id`` and ``commit_id``.

    It looks only for what was missing at the last pass of any task, and needs no source. It promotes nothing;
    ``LakeopsMirrorPromoteOperator`` does that. A ref that waits for nothing is not waited for.
    """

    template_fields: Any = (*LakeopsSensor.template_fields, "branch", "tag")

    def __init__(self, *, branch: str | None = None, tag: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.branch = branch
        self.tag = tag

    def condition(self) -> Condition:
        if bool(self.branch) == bool(self.tag):  # known only now: the task may be mapped
            raise InvalidInput("a replication sensor waits for a branch or for a tag: name one of them")
        return Condition("replicated", ("branch", self.branch) if self.branch else ("tag", self.tag or ""))

    @contextmanager
    def _naming_the_wait(self) -> Iterator[None]:
        """Fail instead of skipping when the ref needs somebody's attention."""
        try:
            with super()._naming_the_wait():
                yield
        except AirflowSkipException as skipped:
            from lakeops.lake.mirror import Mirror

            with self.opened() as repository:
                status = Mirror.of(repository).status()
            ref = status.branches.get(self.branch) if self.branch else status.tags.get(self.tag or "")
            if ref is None or not (ref.error or ref.stalled):
                raise
            raise LakeopsFailure(ref.error or f"{ref.kind} {ref.id!r} waits for {ref.awaited}") from skipped


SINCE = "lakeops_since"
"""The key, in Airflow's task state store, of the commit that a wait counts from."""


class LakeopsCommitSensor(LakeopsSensor):
    """Waits until a branch has a commit that ``since`` does not have; returns the record of the branch's head.

    Args:
        branch: the branch; the default one when left out. One that does not exist yet is waited for.
        since: a ref expression. When left out, the commit that this task returned in the last successful run before
            this one (by logical date), or else the branch's head when the wait began.
    """

    template_fields: Any = (*LakeopsSensor.template_fields, "branch", "since")

    def __init__(self, *, branch: str | None = None, since: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.branch = branch
        self.since = since
        if self.since is None and self.mode == "reschedule" and not self.deferrable:
            require((3, 3), 'LakeopsCommitSensor without since in mode="reschedule"')

    def condition_in(self, repository: Repository, context: Context) -> Condition:
        since = self.since or self._last_seen(repository, context)
        return Condition("new commit", (self.branch or repository.default_branch, since))

    def awaited(self) -> str:
        branch = f"branch {self.branch!r}" if self.branch else "the default branch"
        return f"{branch} has a commit that {self.since or 'the last run'!r} does not have"

    def _last_seen(self, repository: Repository, context: Context) -> str:
        """The commit that this run counts from. It is read once, and kept with the task for later tries and pokes."""
        store = context.get("task_state_store")
        # Before Airflow 3.3 it lasts as long as this process, which asks until the end.
        noted = cast("dict[str, Any]", context)
        seen = noted.get(SINCE) if store is None else store.get(SINCE)
        if seen is None:
            seen = self._start(repository, context)
            if store is None:
                noted[SINCE] = seen
            else:
                store.set(SINCE, seen)
        return str(seen)

    def _start(self, repository: Repository, context: Context) -> str:
        """The commit that this task returned in the last successful run before this one, or else the branch's head.

        ``NO_COMMIT`` where the catalog does not know it: one that was restored from a backup may not.
        """
        task, last = context["ti"], None
        if context.get("logical_date") is not None:
            index = -1 if task.map_index is None else task.map_index
            before = last_success(task, index)
            if before is not None:
                where: dict[str, Any] = {"run_id": before, "map_indexes": None if index < 0 else index}
                last = task.xcom_pull(task_ids=task.task_id, **where)
        try:
            if last is None:
                return repository.branch(self.branch or repository.default_branch).commit_id
            with suppress(CommitExpired):  # it is known, and no more is needed of it
                repository.ref(str(last["id"])).commit_id  # noqa: B018 - asked for its error
        except RefNotFound:
            return NO_COMMIT
        return str(last["id"])
