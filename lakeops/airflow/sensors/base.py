"""What the sensors share: one question, asked in the task or in the triggerer, with the same end either way.

The plain form asks in the task (``mode="poke"`` or ``"reschedule"``). The deferrable form asks once in the task too,
and then leaves it to the triggerer. Both return the same record, fail with the same words and heed ``timeout``,
``soft_fail`` and ``never_fail`` alike. Nothing is kept on the sensor: in reschedule mode and after a deferral the next
question is asked by another process.

Errors that may pass are waited out in both forms, within the timeout; only the first look of a deferrable task leaves
them to its ``retries``. Those that waiting cannot mend fail the task at once, whatever its ``retries``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferralError,
    TaskDeferred,
)

from lakeops.airflow.hook import DEFAULT_CONN_ID, LakeopsHook
from lakeops.airflow.operators import failing_at_once
from lakeops.airflow.triggers import LakeopsConditionTrigger
from lakeops.model.errors import Transient

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lakeops.airflow.conditions import Condition
    from lakeops.lake import Repository

SETTLE_SECONDS = 1.0
"""Beyond the executor's heartbeat: how long a deferred task rests before it is resumed."""


class LakeopsSensor(BaseSensorOperator):
    """Waits until a condition of a repository is met; returns what was found.

    The result is a dictionary; each of its keys is an XCom of its own too.

    Args:
        repo: the repository; the connection's default one when left out.
        lakeops_conn_id: the connection. ``lakeops_default`` is the environment's lake when nobody defined it.
        deferrable: wait in the triggerer, which takes no worker slot. Airflow's ``[operators] default_deferrable``
            decides when left out. A deferrable sensor is tried twice at least unless ``retries`` says otherwise:
            Airflow 3.3 sometimes takes a resumed task for a failed one.
        kwargs: what every Airflow sensor takes. ``exponential_backoff`` and ``max_wait`` are for the plain form.
    """

    template_fields: Sequence[str] = ("repo", "lakeops_conn_id")
    ui_color = "#d9e6f2"

    def __init__(
        self,
        *,
        repo: str | None = None,
        lakeops_conn_id: str = DEFAULT_CONN_ID,
        deferrable: bool | None = None,
        **kwargs: Any,  # noqa: ANN401 - BaseSensorOperator's
    ) -> None:
        kwargs.setdefault("multiple_outputs", True)
        if deferrable is None:
            deferrable = conf.getboolean("operators", "default_deferrable", fallback=False)
        if deferrable and "retries" not in {**kwargs, **(kwargs.get("default_args") or {})}:
            kwargs["retries"] = max(1, conf.getint("core", "default_task_retries", fallback=0))
            kwargs.setdefault("retry_delay", timedelta(seconds=5))
        super().__init__(**kwargs)
        self.repo = repo
        self.lakeops_conn_id = lakeops_conn_id
        self.deferrable = deferrable

    def asked(self) -> Condition:
        """What is waited for, by the sensor's arguments alone."""
        raise NotImplementedError

    def condition(self, repository: Repository, context: Context) -> Condition:  # noqa: ARG002 - for those that need it
        """What is waited for. The same for the whole wait, whichever process asks."""
        return self.asked()

    def awaited(self) -> str:
        """The same in words, for messages."""
        return str(self.asked())

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
        """What the trigger found. Raises ``AirflowFailException`` for what it could not get over."""
        if event["status"] == "error":
            raise AirflowFailException(event["message"])
        result: dict[str, Any] = event["result"]
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
        """What was found, the repository's name and what was asked; not found when the lake does not answer now."""
        with failing_at_once(), LakeopsHook(self.lakeops_conn_id).repository(self.repo) as repository:
            condition = self.condition(repository, context)
            try:
                found = condition.met(repository)
            except Transient as error:
                self.log.warning("Waiting goes on: %s", error.message)
                found = None
            return found, repository.id, condition

    @contextmanager
    def _naming_the_wait(self) -> Iterator[None]:
        """Say what was waited for when the wait has failed."""
        try:
            yield
        except AirflowSensorTimeout as error:
            raise AirflowSensorTimeout(f"waited {self.timeout:g} s in vain until {self.awaited()}") from error
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
