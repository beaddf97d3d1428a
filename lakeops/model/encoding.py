"""Records as JSON: the one encoder of all records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from typing import Any, ClassVar

_AS_THEY_ARE = (str, int, float, bool, type(None))


class JsonRecord:
    """A dataclass that is written as a JSON object with a key for each field.

    ``json_keys`` are the fields and properties that are written, in order. All fields where it is empty.
    """

    __slots__ = ()
    json_keys: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """The JSON keys and values of the record."""
        names = self.json_keys or tuple(field.name for field in fields(self))  # type: ignore[arg-type]
        return {name: encode(getattr(self, name)) for name in names}


def encode(value: Any) -> Any:  # noqa: ANN401 - any value of a field
    """A value of a record as JSON writes it: enums by their value, records as objects, sequences as lists."""
    if type(value) in _AS_THEY_ARE:
        return value
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: encode(one) for key, one in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return [encode(one) for one in (sorted(value) if isinstance(value, set | frozenset) else value)]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
