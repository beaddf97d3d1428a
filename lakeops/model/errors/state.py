"""The call is right, but not in the state that things are in: exit codes 3 and 5, and 1 where nothing is to be done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lakeops.model.errors.base import LakeopsError
from lakeops.model.text import excerpt

_SETTLE = "change one side, or settle the merge with the strategy source-wins or dest-wins"


class MergeConflict(LakeopsError):
    """Both sides changed the same paths. Nothing was published. ``conflicts`` lists every path, in order.

    ``replayed`` when it is no merge but a revert or a cherry-pick, which has no strategy to settle it.
    """

    kind = "merge_conflict"
    exit_code = 3

    def __init__(self, source: str, destination: str, conflicts: list[str], replayed: bool = False) -> None:
        self.source = source
        self.destination = destination
        self.conflicts = conflicts
        self.replayed = replayed
        shown = ", ".join(conflicts[:3]) + (", ..." if len(conflicts) > 3 else "")
        paths = "path" if len(conflicts) == 1 else "paths"
        super().__init__(
            f"{source!r} conflicts with {destination!r} on {len(conflicts)} {paths}: {shown}; "
            + ("change these paths yourself" if replayed else _SETTLE)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.source, self.destination, self.conflicts, *([True] if self.replayed else [])))

    @property
    def conflict_count(self) -> int:
        """How many paths conflict."""
        return len(self.conflicts)

    def to_json(self) -> dict[str, Any]:
        """The ``error`` object of the public contract, with every conflicting path."""
        return {**super().to_json(), "conflicts": self.conflicts, "conflict_count": self.conflict_count}


class CloneConflict(MergeConflict):
    """Files of a directory that follows a ref were changed there and at the ref. ``conflicts`` lists their names."""

    kind = "clone_conflict"

    def __init__(self, source: str, destination: str, conflicts: list[str]) -> None:
        super().__init__(source, destination, conflicts)
        shown = ", ".join(conflicts[:3]) + (", ..." if len(conflicts) > 3 else "")
        changed = "1 file was" if len(conflicts) == 1 else f"{len(conflicts):,} files were"
        LakeopsError.__init__(
            self,
            f"{changed} changed in {source!r} and at {destination!r}: {shown}; none of them was replaced. Put your "
            "version aside and pull, or give it up: pull and checkout take --force",
        )


class PreconditionFailed(LakeopsError):
    """The call is fine, but not in the state that things are in."""

    kind = "precondition_failed"
    exit_code = 5


class AlreadyExists(PreconditionFailed):
    """A repository, branch or tag with this name exists."""

    kind = "already_exists"


class PathTaken(PreconditionFailed):
    """Files that were to be added have the paths of objects that are there: ``paths``. Nothing was staged."""

    kind = "path_taken"

    def __init__(self, message: str, paths: Sequence[str] = ()) -> None:
        self.paths: tuple[str, ...] = tuple(paths)
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.message, self.paths))

    def to_json(self) -> dict[str, Any]:
        """The ``error`` object, with every path."""
        return {**super().to_json(), "paths": list(self.paths)}


class AddressRefused(PreconditionFailed):
    """An entry refers to a place outside the storage namespace that this repository may not read."""

    kind = "address_refused"


class NamespaceTaken(PreconditionFailed):
    """The storage namespace holds a repository already, or is not empty where lakeops would write."""

    kind = "namespace_taken"


class ProtectedBranch(PreconditionFailed):
    """The branch matches a protection pattern: it changes through merges only."""

    kind = "protected_branch"


class ProtectedTag(PreconditionFailed):
    """The tag matches a protection pattern: it is neither moved nor deleted."""

    kind = "protected_tag"


class MissingCheck(PreconditionFailed):
    """The branch takes only commits that have passed certain checks, and this one has not."""

    kind = "missing_check"


class HookRefused(PreconditionFailed):
    """A hook that runs before the change stopped it, or took too long. The message says why."""

    kind = "hook_refused"


class HookMissing(PreconditionFailed):
    """A hook has to run before the change, and this process cannot load it."""

    kind = "hook_missing"


class HooksChanged(PreconditionFailed):
    """Hooks were set again and again while a change waited for them; or a caller passes them by."""

    kind = "hooks_changed"


class ReadOnlyRepository(PreconditionFailed):
    """The repository is read-only, for instance a mirror."""

    kind = "read_only_repository"


class DirtyBranch(PreconditionFailed):
    """The branch has uncommitted changes that the verb would mix up with its own."""

    kind = "dirty_branch"


class NotAsSeen(PreconditionFailed):
    """A branch, what is uncommitted on it, or a tag is no longer as the caller saw it. Nothing was done."""

    kind = "not_as_seen"


class NotForward(PreconditionFailed):
    """A branch would lose commits by moving: the commit does not descend from its head."""

    kind = "not_forward"


class DefaultBranch(PreconditionFailed):
    """The default branch cannot be deleted."""

    kind = "default_branch"


class CommitExpired(PreconditionFailed):
    """Retention expired this commit: its objects may be gone."""

    kind = "expired"


class NoMergeBase(PreconditionFailed):
    """The two refs share no history."""

    kind = "no_merge_base"


class AttemptExpired(PreconditionFailed):
    """The attempt began too long ago to be published safely beside garbage collection. Start it again."""

    kind = "attempt_expired"


class KeyReused(PreconditionFailed):
    """The idempotency key belongs to an earlier call that asked for something else.

    ``reference`` is the commit that the key stands for, ``differs`` names what was asked for otherwise.
    """

    kind = "idempotency_key_reused"

    def __init__(self, key: str, reference: str, differs: Sequence[str]) -> None:
        self.key = key
        self.reference = reference
        self.differs: tuple[str, ...] = tuple(differs)
        super().__init__(
            f"idempotency key {excerpt(key)} stands for commit {reference[:16]}, which was asked for with another "
            f"{' and another '.join(differs)}; use a fresh key for other work"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.key, self.reference, self.differs))

    def to_json(self) -> dict[str, Any]:
        """The ``error`` object, with the commit that the key stands for and what differs."""
        return {**super().to_json(), "reference": self.reference, "differs": list(self.differs)}


class NotAMirror(PreconditionFailed):
    """The repository follows no source: it never was a mirror, or was promoted to a writable repository."""

    kind = "not_a_mirror"


class NotAReplica(PreconditionFailed):
    """The mirror's storage namespace, or the source itself, belongs to another repository than the mirror follows."""

    kind = "not_a_replica"


class MarkRefused(PreconditionFailed):
    """A mark of garbage collection that must not be swept: stale, unfinished, too much, or made by another clock."""

    kind = "mark_refused"


class NotTheOwner(PreconditionFailed):
    """Another catalog may delete in the storage namespace: this one is a copy, or another lake took it over."""

    kind = "not_the_owner"


class ClockInDoubt(MarkRefused):
    """The clock was set back, or may have jumped ahead: nothing is expired or deleted by age until somebody looked."""

    kind = "clock_in_doubt"


class ObjectCollected(PreconditionFailed):
    """The object that was to be linked is garbage that a mark is about to delete."""

    kind = "object_collected"


class CatalogVersion(PreconditionFailed):
    """The catalog's schema is newer than this code, or not a lakeops catalog."""

    kind = "catalog_version"


class NoChanges(LakeopsError):
    """There is nothing to commit, revert or pick."""

    kind = "no_changes"
