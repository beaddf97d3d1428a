"""Waiting for replication."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lakeops.airflow.conditions import Replicated
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
