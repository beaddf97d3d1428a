"""The root of the error tree, and the branch whose calls may be tried again as they are."""

from __future__ import annotations

from typing import Any, ClassVar

from lakeops.model.text import masked, safe


class LakeopsError(Exception):
    """Root of every error that lakeops raises on purpose."""

    kind: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init__(self, *args: object) -> None:
        super().__init__(*(safe(masked(arg)) if isinstance(arg, str) else arg for arg in args))

    @property
    def message(self) -> str:
        """The error's one-line text."""
        return str(self.args[0]) if self.args else self.kind

    def to_json(self) -> dict[str, Any]:
        """The ``error`` object of the public contract."""
        return {"kind": self.kind, "message": self.message}


class Transient(LakeopsError):
    """It may work if tried again: nothing was changed, or the change is safe to repeat."""

    kind = "transient"
