"""Waiting for a tag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lakeops.airflow.conditions import TagExists
from lakeops.airflow.sensors.base import LakeopsSensor

if TYPE_CHECKING:
    from lakeops.airflow.conditions import Condition


class LakeopsTagSensor(LakeopsSensor):
    """Waits until a tag exists; returns its ref record (``id``, ``commit_id``).

    Args:
        tag: the tag.
        kwargs: see ``LakeopsSensor``.
    """

    template_fields: Sequence[str] = (*LakeopsSensor.template_fields, "tag")

    def __init__(self, *, tag: str, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(**kwargs)
        self.tag = tag

    def asked(self) -> Condition:
        """The tag."""
        return TagExists(self.tag)
