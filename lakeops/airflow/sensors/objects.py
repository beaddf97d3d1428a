"""Waiting for objects at a ref."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lakeops.airflow.conditions import ObjectPresent, PrefixPresent
from lakeops.airflow.sensors.base import LakeopsSensor
from lakeops.model.errors import InvalidInput

if TYPE_CHECKING:
    from lakeops.airflow.conditions import Condition


class LakeopsObjectSensor(LakeopsSensor):
    """Waits until there is an object at a path of a ref; returns the object's record.

    Args:
        ref: any ref expression. A branch shows its uncommitted objects too; ``main@`` is what is committed. A branch
            or tag that does not exist yet is waited for.
        path: the object's path.
        kwargs: see ``LakeopsSensor``.
    """

    template_fields: Sequence[str] = (*LakeopsSensor.template_fields, "ref", "path")

    def __init__(self, *, ref: str, path: str, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(**kwargs)
        self.ref = ref
        self.path = path

    def asked(self) -> Condition:
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

    template_fields: Sequence[str] = (*LakeopsSensor.template_fields, "ref", "prefix")

    def __init__(self, *, ref: str, prefix: str, min_objects: int = 1, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(**kwargs)
        if min_objects < 1:
            raise InvalidInput(f"min_objects is at least 1, not {min_objects!r}")
        self.ref = ref
        self.prefix = prefix
        self.min_objects = min_objects

    def asked(self) -> Condition:
        """The objects."""
        return PrefixPresent(self.ref, self.prefix, self.min_objects)
