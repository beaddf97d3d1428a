"""Waiting for replication."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from lakeops.airflow.conditions import Replicated
from lakeops.airflow.hook import LakeopsHook
from lakeops.airflow.operators import failing_at_once
from lakeops.airflow.sensors.base import LakeopsSensor
from lakeops.model.errors import InvalidInput

if TYPE_CHECKING:
    from lakeops.airflow.conditions import Condition


class LakeopsReplicationSensor(LakeopsSensor):
    """Waits until all that a mirror's branch or tag waits for has arrived; returns ``id`` and ``commit_id``.

    It looks only for what had not arrived at the last look, whoever looked, and asks the mirror alone: its source need
    not be reachable. Nothing is promoted; ``LakeopsMirrorPromoteOperator`` does that. A ref that waits for nothing is
    not waited for.

    Args:
        branch: the branch.
        tag: the tag; in place of a branch.
        kwargs: see ``LakeopsSensor``; ``repo`` is the mirror.
    """

    template_fields: Sequence[str] = (*LakeopsSensor.template_fields, "branch", "tag")

    def __init__(self, *, branch: str | None = None, tag: str | None = None, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(**kwargs)
        self.branch = branch
        self.tag = tag

    def asked(self) -> Condition:
        """The candidate's arrival. Raises ``InvalidInput``: only now is known what a mapped task was given."""
        if bool(self.branch) == bool(self.tag):
            raise InvalidInput("a replication sensor waits for a branch or for a tag: name one of them")
        return Replicated(self.branch or self.tag or "", "branch" if self.branch else "tag")

    @contextmanager
    def _naming_the_wait(self) -> Iterator[None]:
        """Never skip over what somebody has to look at."""
        try:
            with super()._naming_the_wait():
                yield
        except AirflowSkipException as skipped:
            problem = self._problem()
            if problem is None:
                raise
            raise AirflowFailException(problem) from skipped

    def _problem(self) -> str | None:
        """What is wrong with the ref as the last look left it."""
        with failing_at_once(), LakeopsHook(self.lakeops_conn_id).repository(self.repo) as repository:
            status = repository.as_mirror().status()
        ref = status.branches.get(self.branch) if self.branch else status.tags.get(self.tag or "")
        if ref is None:
            return None
        return ref.error or (f"{ref.kind} {ref.id!r} waits for {ref.awaited}" if ref.stalled else None)
