"""One error tree for every edge.

Each class has a stable ``kind`` (what programs match on, see the public contract) and an ``exit_code`` (what the
command line returns). Messages are one line without control characters and passwords. They name the ref, path or file
concerned, and say what to do next. Two branches of the tree matter to callers that retry: ``Transient`` may be tried
again as it is. Everything else will fail again until somebody changes something.

Some are Python's own errors as well: bad input is a ``ValueError``, a missing object a ``FileNotFoundError``. So code
that catches ``ValueError`` or ``OSError`` around a call of lakeops catches these too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from lakeops.model.text import excerpt, masked, safe

__all__ = [
    "AddressRefused",
    "AlreadyExists",
    "AmbiguousRef",
    "AttemptExpired",
    "BranchMoved",
    "CatalogError",
    "CatalogUnavailable",
    "CatalogVersion",
    "ClockInDoubt",
    "CloneConflict",
    "CollectionRunning",
    "CommitExpired",
    "Corrupted",
    "DefaultBranch",
    "DirtyBranch",
    "EngineUnavailable",
    "HookMissing",
    "HookRefused",
    "HooksChanged",
    "InvalidInput",
    "InvalidName",
    "InvalidPath",
    "InvalidRef",
    "InvalidRules",
    "InvalidSettings",
    "InvalidUri",
    "KeyReused",
    "LakeopsError",
    "MarkNotFound",
    "MarkRefused",
    "MergeConflict",
    "MirrorOvertaken",
    "MissingCheck",
    "NamespaceTaken",
    "NoChanges",
    "NoMergeBase",
    "NotAMirror",
    "NotAReplica",
    "NotAllReplicated",
    "NotForward",
    "NotFound",
    "NotReplicated",
    "NotTheOwner",
    "ObjectCollected",
    "ObjectNotFound",
    "PathTaken",
    "PermissionDenied",
    "PreconditionFailed",
    "ProtectedBranch",
    "ProtectedTag",
    "ReadOnlyRepository",
    "RecordRefused",
    "RefNotFound",
    "ReplicaMismatch",
    "ReplicaMissing",
    "RepositoryNotFound",
    "StoreError",
    "StoreUnavailable",
    "SweepIncomplete",
    "Transient",
    "Unsupported",
]


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


# --- bad input: the call itself is wrong (exit 2) ---------------------------------------------------------------


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


# --- things that are not there (exit 4) -------------------------------------------------------------------------


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


# --- conflicts (exit 3) -----------------------------------------------------------------------------------------


class MergeConflict(LakeopsError):
    """Both sides changed the same paths. Nothing was published. ``conflicts`` lists every path, in order."""

    kind = "merge_conflict"
    exit_code = 3

    def __init__(self, source: str, destination: str, conflicts: list[str]) -> None:
        self.source = source
        self.destination = destination
        self.conflicts = conflicts
        shown = ", ".join(conflicts[:3]) + (", ..." if len(conflicts) > 3 else "")
        paths = "path" if len(conflicts) == 1 else "paths"
        super().__init__(
            f"{source!r} conflicts with {destination!r} on {len(conflicts)} {paths}: {shown}; "
            "change one side, or settle a merge with the strategy source-wins or dest-wins"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.source, self.destination, self.conflicts))

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
            "version aside and pull, or give it up with --force",
        )


# --- the state does not allow it (exit 5) -----------------------------------------------------------------------


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


# --- everything else (exit 1) -----------------------------------------------------------------------------------


class NoChanges(LakeopsError):
    """There is nothing to commit, revert or pick."""

    kind = "no_changes"


class Corrupted(LakeopsError):
    """A file is not what was recorded: metadata or an object of another size, digest or form. It was not used."""

    kind = "corrupted"


class ReplicaMismatch(LakeopsError):
    """An object arrived at a mirror with another size or checksum than the source recorded."""

    kind = "replica_mismatch"


class RecordRefused(LakeopsError):
    """What a mirror's source, or a dump, says cannot be so: a commit, a ref's name, an entry. It was not taken over."""

    kind = "record_refused"


class ReplicaMissing(LakeopsError):
    """Nothing arrives at a mirror any more of what it waits for."""

    kind = "replica_missing"


class NotAllReplicated(LakeopsError):
    """Some objects could not be copied to, or deleted at, a mirror's storage namespace. The others were.

    ``failures`` has the key and the error of each that was tried in vain, ``done`` says how many succeeded.
    """

    kind = "not_all_replicated"

    def __init__(self, message: str, failures: Sequence[tuple[str, LakeopsError]] = (), done: int = 0) -> None:
        self.failures: tuple[tuple[str, LakeopsError], ...] = tuple(failures)
        self.done = done
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.message, self.failures, self.done))

    def to_json(self) -> dict[str, Any]:
        """The ``error`` object of the public contract, with the objects that failed."""
        shown = [{"key": key, "kind": error.kind, "message": error.message} for key, error in self.failures]
        return {**super().to_json(), "failures": shown, "done": self.done}


class StoreError(LakeopsError):
    """The object store refused: access denied, no such bucket, no space left."""

    kind = "store_error"


class SweepIncomplete(StoreError):
    """The store refused to delete some of a mark's files. The rest are gone, and another sweep tries again.

    ``failures`` are some of them, key and reason. ``count`` is how many there are.
    """

    kind = "sweep_incomplete"

    def __init__(self, mark: str, failures: list[tuple[str, str]], count: int) -> None:
        self.mark = mark
        self.failures = failures
        self.count = count
        key, reason = failures[0]
        super().__init__(
            f"the store refused to delete {count} of the files of mark {mark}: {key} ({reason}) for one; "
            "mend that and sweep the mark again"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.mark, self.failures, self.count))

    def to_json(self) -> dict[str, Any]:
        """The ``error`` object, with the failures."""
        failures = [{"key": key, "reason": reason} for key, reason in self.failures]
        return {**super().to_json(), "failures": failures, "failure_count": self.count}


class CatalogError(LakeopsError):
    """The database refused: no permission, no space left, not a database."""

    kind = "catalog_error"


class PermissionDenied(CatalogError):
    """The database's login may not do this."""

    kind = "permission_denied"
    exit_code = 5


class Unsupported(LakeopsError):
    """This store or engine cannot do what was asked."""

    kind = "unsupported"


class Transient(LakeopsError):
    """It may work if tried again: nothing was changed, or the change is safe to repeat."""

    kind = "transient"


class StoreUnavailable(Transient):
    """The object store did not answer, or answered with an error of its own, after all retries."""

    kind = "store_unavailable"


class CatalogUnavailable(Transient):
    """The database did not answer, or is locked by others for too long."""

    kind = "catalog_unavailable"


class EngineUnavailable(Transient):
    """Spark did not answer, gave no workers, or gave up on a task after all retries."""

    kind = "engine_unavailable"


class CollectionRunning(Transient):
    """Garbage collection is deciding about objects that the call wants to link."""

    kind = "collection_running"


class BranchMoved(Transient):
    """The branch's head or staging changed while the call was at work, more often than it would try again."""

    kind = "branch_moved"


class MirrorOvertaken(Transient):
    """A later pass over the same mirror has taken over. It goes on from where this one was."""

    kind = "mirror_overtaken"
