"""One error tree for every edge. A class stands for what callers catch, a ``kind`` for what went wrong.

``kind`` is stable: programs match on it (see the public contract). It is the class's name in snake case, unless the
class says another one. A kind that nobody catches has no class of its own: ``KINDS`` lists these. ``exit_code`` is what
the command line returns. Messages are one line without control characters and passwords. They name the ref, path or
file concerned, and say what to do next. A ``Transient`` error may be tried again as it is. Any other error comes again
until somebody changes something. Bad input is a ``ValueError`` too, and a missing object a ``FileNotFoundError``.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from lakeops.model.encoding import encode
from lakeops.model.sanitising import excerpt, masked, safe


class LakeopsError(Exception):
    """Root of every error that lakeops raises on purpose.

    Args:
        kind: what went wrong, where it is not the kind of the class. One of ``KINDS``.
    """

    kind: str = "error"
    exit_code: int = 1
    json_keys: ClassVar[tuple[str, ...]] = ()
    """Attributes that the JSON object has beside kind and message."""

    def __init_subclass__(cls) -> None:
        if cls.__module__ == __name__ and "kind" not in vars(cls):
            cls.kind = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def __init__(self, *args: object, kind: str | None = None) -> None:
        super().__init__(*(safe(masked(arg)) if isinstance(arg, str) else arg for arg in args))
        if kind is not None:
            self.kind = kind
            self.exit_code = _EXIT_CODES.get(kind, self.exit_code)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, vars(self))

    @property
    def message(self) -> str:
        """The error's one-line text."""
        return str(self.args[0]) if self.args else self.kind

    def to_json(self) -> dict[str, Any]:
        """The ``error`` object of the public contract."""
        more = {name: encode(getattr(self, name)) for name in self.json_keys}
        return {"kind": self.kind, "message": self.message, **more}


def _restored(which: type[LakeopsError], args: tuple[object, ...], attributes: dict[str, Any]) -> LakeopsError:
    """The error that another process pickled. Its class may take other arguments than its text."""
    error = which.__new__(which, *args)
    error.args = args
    vars(error).update(attributes)
    return error


_EXIT_CODES = {"permission_denied": 5}
"""Exit codes of kinds that differ from their class's."""


class Transient(LakeopsError):
    """A failure that may pass: nothing was changed, or the change is safe to repeat."""


class Corrupted(LakeopsError):
    """A file is not what was recorded: metadata or an object of another size, digest or form. It was not used."""


class RecordRefused(LakeopsError):
    """A record of a mirror's source, or of a dump, is not valid. lakeops did not use it."""


class StoreError(LakeopsError):
    """The object store refused: access denied, no such bucket, no space left."""


class CatalogError(LakeopsError):
    """The database refused: no permission, no space left, not a database."""


class NotAllReplicated(LakeopsError):
    """A replication could not copy or delete some objects. It copied and deleted the others.

    ``failures`` has the key and the error of each that was tried in vain, ``done`` says how many succeeded.
    """

    def __init__(self, message: str, failures: Sequence[tuple[str, LakeopsError]] = (), done: int = 0) -> None:
        self.failures: tuple[tuple[str, LakeopsError], ...] = tuple(failures)
        self.done = done
        super().__init__(message)

    def to_json(self) -> dict[str, Any]:
        """The ``error`` object of the public contract, with the objects that failed."""
        shown = [{"key": key, "kind": error.kind, "message": error.message} for key, error in self.failures]
        return {**super().to_json(), "failures": shown, "done": self.done}


class SweepIncomplete(StoreError):
    """The store refused to delete some of a mark's files. The rest are gone, and another sweep tries again.

    ``failures`` are some of them, key and reason. ``count`` is how many there are.
    """

    def __init__(self, mark: str, failures: list[tuple[str, str]], count: int) -> None:
        self.mark = mark
        self.failures = failures
        self.count = count
        key, reason = failures[0]
        super().__init__(
            f"the store refused to delete {count} of the files of mark {mark}: {key} ({reason}) for one; "
            "mend that and sweep the mark again"
        )

    def to_json(self) -> dict[str, Any]:
        """The ``error`` object, with the failures."""
        failures = [{"key": key, "reason": reason} for key, reason in self.failures]
        return {**super().to_json(), "failures": failures, "failure_count": self.count}


class NoChanges(LakeopsError):
    """There is nothing to commit, revert or pick."""


class StoreUnavailable(Transient):
    """The object store did not answer, or answered with an error of its own, after all retries."""


class BranchMoved(Transient):
    """The branch's head or staging changed while the call was at work, more often than it would try again."""


class MirrorOvertaken(Transient):
    """A later pass over the same mirror has taken over. It goes on from where this one was."""


class InvalidInput(LakeopsError, ValueError):
    """An argument has a value that can never work."""

    exit_code = 2


class InvalidPath(InvalidInput):
    """An object path is empty, too long, or holds NUL or a lone surrogate."""


class NotFound(LakeopsError):
    """Nothing has the name that the caller gave."""

    exit_code = 4


class RepositoryNotFound(NotFound):
    """No such repository."""


class RefNotFound(NotFound):
    """No branch, tag or commit answers to this ref expression."""


class ObjectNotFound(NotFound, FileNotFoundError):
    """No object at this path of this ref."""


class FileMissing(LakeopsError):
    """A file that metadata names is missing from the store. No ``NotFound``: nobody may take its path for absent.

    Its kind is ``not_replicated`` at a mirror: it has not arrived yet, or was deleted at the source.
    """

    kind = ObjectNotFound.kind  # scripts know it by this one
    exit_code = 4


class MergeConflict(LakeopsError):
    """A merge of two sides that changed the same paths. Nothing was published. ``conflicts`` lists every path.

    ``replayed`` when it is no merge but a revert or a cherry-pick, which no strategy settles. Of the kind
    ``clone_conflict`` when files of the directory ``source`` were changed there and at the ref that it follows.
    """

    exit_code = 3
    json_keys = ("conflicts", "conflict_count")

    def __init__(
        self,
        source: str,
        destination: str,
        conflicts: list[str],
        replayed: bool = False,
        kind: str | None = None,
        reasons: Sequence[str] = (),
    ) -> None:
        self.source = source
        self.destination = destination
        self.conflicts = conflicts
        self.replayed = replayed
        shown = ", ".join(conflicts[:3]) + (", ..." if len(conflicts) > 3 else "")
        if kind == "clone_conflict":
            changed = "1 file was" if len(conflicts) == 1 else f"{len(conflicts):,} files were"
            words = f"{changed} changed in {source!r} and at {destination!r}: {shown}; they stay as they are. "
            words += "Put your version aside and pull, or give it up: pull and checkout take --force"
        else:
            paths = "path" if len(conflicts) == 1 else "paths"
            advice = "change one side, or settle the merge with the strategy source-wins or dest-wins"
            if reasons:
                advice = "change one side, or write the table's rows again on a new branch of the destination"
            known = "".join(f"{reason}; " for reason in reasons)
            words = f"{source!r} conflicts with {destination!r} on {len(conflicts)} {paths}: {shown}; {known}"
            words += "change these paths yourself" if replayed else advice
        super().__init__(words, kind=kind)

    @property
    def conflict_count(self) -> int:
        """How many paths conflict."""
        return len(self.conflicts)


class PreconditionFailed(LakeopsError):
    """The call is valid, but the present state does not allow it."""

    exit_code = 5


class AlreadyExists(PreconditionFailed):
    """A repository, branch or tag with this name exists."""


class PathTaken(PreconditionFailed):
    """Files that were to be added have the paths of objects that are there: ``paths``. Nothing was staged."""

    json_keys = ("paths",)

    def __init__(self, message: str, paths: Sequence[str] = ()) -> None:
        self.paths: tuple[str, ...] = tuple(paths)
        super().__init__(message)


class NamespaceTaken(PreconditionFailed):
    """The storage namespace holds a repository already, or is not empty where lakeops would write."""


class MarkRefused(PreconditionFailed):
    """A mark of garbage collection that must not be swept: stale, unfinished, too large, or made by another clock."""


class NotAsSeen(PreconditionFailed):
    """A branch, its uncommitted changes, or a tag changed after the caller read it. Nothing was done."""


class CommitExpired(PreconditionFailed):
    """Retention expired this commit: its objects may be gone."""

    kind = "expired"


class AttemptExpired(PreconditionFailed):
    """The attempt began too long ago to be published safely beside garbage collection. Start it again."""


class KeyReused(PreconditionFailed):
    """The idempotency key belongs to an earlier call that asked for something else.

    ``reference`` is the commit that the key stands for, ``differs`` names what was asked for otherwise.
    """

    kind = "idempotency_key_reused"
    json_keys = ("reference", "differs")

    def __init__(self, key: str, reference: str, differs: Sequence[str]) -> None:
        self.key = key
        self.reference = reference
        self.differs: tuple[str, ...] = tuple(differs)
        super().__init__(
            f"idempotency key {excerpt(key)} stands for commit {reference[:16]}, which was made with another "
            f"{' and another '.join(differs)}; use a fresh key for other work"
        )


class NotAMirror(PreconditionFailed):
    """The repository follows no source: it never was a mirror, or was promoted to a writable repository."""


KINDS: dict[type[LakeopsError], tuple[str, ...]] = {
    LakeopsError: ("replica_mismatch", "replica_missing", "unsupported"),
    CatalogError: ("permission_denied",),
    Transient: ("catalog_unavailable", "collection_running", "engine_unavailable", "out_of_resources"),
    InvalidInput: ("ambiguous_ref", "invalid_name", "invalid_ref", "invalid_rules", "invalid_settings", "invalid_uri"),
    NotFound: ("mark_not_found",),
    FileMissing: ("not_replicated",),
    MergeConflict: ("clone_conflict",),
    MarkRefused: ("clock_in_doubt",),
    PreconditionFailed: (
        *("address_refused", "catalog_version", "default_branch", "dirty_branch", "hook_missing", "hook_refused"),
        *("hooks_changed", "missing_check", "no_merge_base", "not_a_replica", "not_forward", "not_the_owner"),
        *("object_collected", "protected_branch", "protected_tag", "read_only_repository"),
    ),
}
"""The kinds that have no class of their own, by the class that is raised."""

unsupported: Callable[[str], LakeopsError] = partial(LakeopsError, kind="unsupported")
"""The error for what this installation, platform, store or file cannot do."""
invalid_settings: Callable[[str], InvalidInput] = partial(InvalidInput, kind="invalid_settings")
"""The error for settings, or fields of a connection, that do not lead to a lake or make no sense."""

_NO_DESCRIPTOR = {errno.EMFILE, errno.ENFILE}
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


def out_of_resources(error: BaseException | None) -> Transient | None:
    """An error that says that memory, descriptors or room ran out, in lakeops' words. None for any other error.

    Stores name a full disk themselves, so room is that of temporary files. A module that is imported late when no
    descriptor is free ends in an ``ImportError``, sometimes with no cause, so whether one is free is tried out.
    """
    if isinstance(error, LakeopsError):
        return None
    if isinstance(error, MemoryError):
        words = "this process has no memory left for that; give it more "
        words += "(a commit of a million changes takes about 1 GB), or commit in smaller parts"
    elif (isinstance(error, OSError) and error.errno in _NO_DESCRIPTOR) or (
        isinstance(error, ImportError) and not _has_free_descriptor()
    ):
        words = "too many files are open in this process; raise the limit (ulimit -n)"
    elif isinstance(error, OSError) and (error.errno in _NO_ROOM or "No usable temporary directory" in str(error)):
        words = "no space left for temporary files; free some, or set TMPDIR to a directory on another disk"
    else:
        return None
    return Transient(words, kind="out_of_resources")


def _has_free_descriptor() -> bool:
    try:
        with open("/dev/null", "rb"):  # noqa: PTH123 - a path object may have to be imported
            return True
    except OSError as error:
        return error.errno not in _NO_DESCRIPTOR


__all__ = ["AlreadyExists", "AttemptExpired", "BranchMoved", "CatalogError", "CommitExpired", "Corrupted"]
__all__ += ["FileMissing", "InvalidInput", "InvalidPath", "KeyReused", "LakeopsError", "MarkRefused", "MergeConflict"]
__all__ += ["MirrorOvertaken", "NamespaceTaken", "NoChanges", "NotAMirror", "NotAllReplicated", "NotAsSeen", "NotFound"]
__all__ += ["ObjectNotFound", "PathTaken", "PreconditionFailed", "RecordRefused", "RefNotFound"]
__all__ += ["RepositoryNotFound", "StoreError", "StoreUnavailable", "SweepIncomplete", "Transient"]
