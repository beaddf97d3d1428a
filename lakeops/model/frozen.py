"""Making frozen records by the thousand.

A frozen dataclass sets each of its fields by a call that goes around its own guard, so making one takes longer than
everything else about a line of a log or of a listing. Where records are read in bulk, they are made another way here;
what comes out is the same class, as frozen and as equal as any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, make_dataclass
from typing import Any, TypeVar, cast

T = TypeVar("T")


def maker(record: type[T]) -> Callable[..., T]:
    """What makes records of a frozen dataclass with slots in a third of the time that its constructor takes.

    It takes a value for every field, in order: no defaults, no names, and no ``__post_init__``.
    """
    # A twin of the same layout that is not frozen: its fields are set in one go, then it is called what it is.
    names = [field.name for field in fields(cast("Any", record))]
    twin = make_dataclass(record.__name__, names, slots=True, repr=False, eq=False)

    def make(*values: object) -> T:
        made = twin(*values)
        made.__class__ = record
        return made  # type: ignore[no-any-return]

    return make
