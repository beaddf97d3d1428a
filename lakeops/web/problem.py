"""What went wrong, as a page tells it: the status of the answer, and what whoever reads it can do."""

from __future__ import annotations

from typing import NamedTuple, Self

from lakeops.model.errors import (
    CatalogError,
    CatalogUnavailable,
    CatalogVersion,
    CommitExpired,
    InvalidInput,
    InvalidSettings,
    LakeopsError,
    NoMergeBase,
    NotFound,
    NotReplicated,
    ObjectNotFound,
    PermissionDenied,
    StoreError,
    StoreUnavailable,
    Transient,
)

STATUS: tuple[tuple[type[LakeopsError], int, str], ...] = (
    (NotReplicated, 503, "Replication has not brought it here yet. The page of mirrors says what is missing."),
    (NotFound, 404, "It may have been deleted or renamed. The list shows what is there now."),
    (CommitExpired, 410, "Retention rules took it. A newer commit, or a tag, may still have what you look for."),
    (NoMergeBase, 400, "Compare them with “all that differs, in either”, which needs no common history."),
    (CatalogVersion, 500, "Whoever looks after this server has to bring lakeops or its catalog up to date."),
    (InvalidSettings, 500, "Whoever looks after this server has to correct its settings."),
    (PermissionDenied, 500, "Whoever looks after this server has to let it read the catalog."),
    (CatalogUnavailable, 503, "The catalog's database does not answer. Try again in a while."),
    (CatalogError, 503, "The catalog's database refused. Try again in a while; `lakeops doctor` says what is wrong."),
    (StoreUnavailable, 503, "The object store does not answer. Try again in a while; pages of refs and of upkeep do."),
    (StoreError, 503, "The object store refused. Whoever looks after this server has to look at its rights there."),
    (InvalidInput, 400, "Correct the address, or go back to the list."),
    (Transient, 503, "Try again in a while."),
)
DAMAGED = "Something is damaged or missing. `lakeops fsck` says what, and what to do. Other pages may still work."


class Problem(NamedTuple):
    """An error on a page.

    Attributes:
        message: what went wrong.
        status: the status of an answer that says nothing else.
        advice: what to do.
    """

    message: str
    status: int
    advice: str

    @property
    def is_damage(self) -> bool:
        """Whether something of the repository is damaged or missing."""
        return self.advice == DAMAGED

    @classmethod
    def of(cls, error: LakeopsError) -> Self:
        """What a page says of an error."""
        if type(error) is ObjectNotFound and isinstance(error.__cause__, ObjectNotFound):
            # No path that somebody asked for: the store lacks a file that a commit needs.
            return cls(error.message, 500, DAMAGED)
        known = ((status, advice) for kind, status, advice in STATUS if isinstance(error, kind))
        return cls(error.message, *next(known, (500, DAMAGED)))
