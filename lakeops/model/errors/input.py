"""The call itself is wrong, or names what is not there: exit codes 2 and 4."""

from __future__ import annotations

from typing import Any

from lakeops.model.errors.base import LakeopsError


class InvalidInput(LakeopsError, ValueError):
    """An argument has a value that can never work."""

    kind = "invalid_input"
    exit_code = 2


class InvalidName(InvalidInput):
    """A repository, branch or tag name breaks the naming rules."""

    kind = "invalid_name"


class InvalidPath(InvalidInput):
    """An object path is empty, too long, or holds NUL or a lone surrogate."""

    kind = "invalid_path"


class InvalidUri(InvalidInput):
    """A ``lakefs://`` URI cannot be parsed, or has parts that the verb does not take."""

    kind = "invalid_uri"


class InvalidRef(InvalidInput):
    """A ref expression is not in the grammar, or asks for a parent that the commit does not have."""

    kind = "invalid_ref"


class InvalidSettings(InvalidInput):
    """Settings from the environment or a file do not make sense."""

    kind = "invalid_settings"


class InvalidRules(InvalidInput):
    """Retention rules that make no sense, or name a branch that does not exist."""

    kind = "invalid_rules"


class AmbiguousRef(InvalidInput):
    """A commit id prefix matches several commits."""

    kind = "ambiguous_ref"

    def __init__(self, ref: str, candidates: list[str]) -> None:
        self.ref = ref
        self.candidates = candidates
        super().__init__(
            f"{ref!r} is ambiguous: it matches {', '.join(c[:16] for c in candidates)}; give more characters"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.ref, self.candidates))


class NotFound(LakeopsError):
    """Something named by the caller does not exist."""

    kind = "not_found"
    exit_code = 4


class RepositoryNotFound(NotFound):
    """No such repository."""

    kind = "repository_not_found"


class RefNotFound(NotFound):
    """No branch, tag or commit answers to this ref expression."""

    kind = "ref_not_found"


class MarkNotFound(NotFound):
    """The repository has no such mark of garbage collection."""

    kind = "mark_not_found"


class ObjectNotFound(NotFound, FileNotFoundError):
    """No object at this path of this ref, or a file that metadata names is missing from the store."""

    kind = "object_not_found"


class NotReplicated(ObjectNotFound):
    """What a mirror does not have: it has not arrived yet, or was deleted at the source. Heads are always whole."""

    kind = "not_replicated"
