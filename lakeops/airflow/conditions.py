"""What a waiting task waits for: questions about a repository that are asked again and again until one is met.

A sensor asks in its own process, a trigger asks for it in the triggerer; both ask the same question, so the plain and
the deferrable form of a task cannot come to different answers. A condition is plain data: it is compared (one answer
serves everybody who asks the same), and it travels to the triggerer as JSON.

A branch or tag that does not exist yet is waited for. Everything else that cannot come right by waiting (no such
repository, an expired commit, an expression that cannot be read) is an error at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from lakeops.airflow import once
from lakeops.model.errors import InvalidInput, RefNotFound
from lakeops.model.mirrors import RefKind, RefName
from lakeops.model.names import COMMIT_ID
from lakeops.model.refs import parse_ref

if TYPE_CHECKING:
    from lakeops.lake import Repository

NOTHING = ""
"""What a branch that does not exist has: every commit of it is news."""

KINDS: dict[str, type[Condition]] = {}


@dataclass(frozen=True)
class Condition(ABC):
    """A question about a repository; equal questions have equal answers."""

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        KINDS[cls.kind] = cls

    @abstractmethod
    def met(self, repository: Repository) -> dict[str, Any] | None:
        """What was found, as the waiting task returns it; None when it is not so yet."""

    @abstractmethod
    def __str__(self) -> str:
        """The state of things that is waited for, without the repository."""

    def to_json(self) -> dict[str, Any]:
        """Plain data that ``condition`` reads."""
        return {"kind": self.kind, **asdict(self)}


def condition(data: Mapping[str, Any]) -> Condition:
    """The condition that ``to_json`` wrote."""
    values = dict(data)
    return KINDS[values.pop("kind")](**values)


@dataclass(frozen=True)
class NewCommit(Condition):
    """``branch`` has a commit that ``since`` (any ref expression, or ``NOTHING``) does not have."""

    kind: ClassVar[str] = "new_commit"
    branch: str
    since: str

    def met(self, repository: Repository) -> dict[str, Any] | None:
        """The record of the branch's head."""
        try:
            head = repository.branch(self.branch).head
        except RefNotFound:
            return None
        if self.since == NOTHING:
            return head.to_json()
        if head.id == self.since or once.contains(repository, self.since, head.id):
            return None
        return head.to_json()

    def __str__(self) -> str:
        return f"branch {self.branch!r} has a commit that {self.since[:16]!r} does not have"


@dataclass(frozen=True)
class ObjectPresent(Condition):
    """There is an object at ``path`` of ``ref``; on a branch also one that is not committed yet."""

    kind: ClassVar[str] = "object_present"
    ref: str
    path: str

    def met(self, repository: Repository) -> dict[str, Any] | None:
        """The object's record."""
        if _missing(repository, self.ref):
            return None
        found = repository.ref(self.ref)
        return found.stat(self.path).to_json() if found.exists(self.path) else None

    def __str__(self) -> str:
        return f"there is an object {self.path!r} at {self.ref!r}"


@dataclass(frozen=True)
class PrefixPresent(Condition):
    """There are at least ``min_objects`` objects under ``prefix`` of ``ref``, uncommitted ones included."""

    kind: ClassVar[str] = "prefix_present"
    ref: str
    prefix: str
    min_objects: int = 1

    def met(self, repository: Repository) -> dict[str, Any] | None:
        """The ref, the prefix and the commit that the ref meant."""
        if _missing(repository, self.ref):
            return None
        ref = repository.ref(self.ref)
        if sum(1 for _ in islice(ref.list(self.prefix), self.min_objects)) < self.min_objects:
            return None
        return {"ref": self.ref, "prefix": self.prefix, "commit_id": ref.commit_id}

    def __str__(self) -> str:
        objects = "an object" if self.min_objects == 1 else f"at least {self.min_objects} objects"
        return f"there is {objects} under {self.prefix!r} at {self.ref!r}"


@dataclass(frozen=True)
class TagExists(Condition):
    """There is a tag ``tag``."""

    kind: ClassVar[str] = "tag_exists"
    tag: str

    def met(self, repository: Repository) -> dict[str, Any] | None:
        """The tag's record."""
        try:
            return repository.tag(self.tag).to_json()
        except RefNotFound:
            return None

    def __str__(self) -> str:
        return f"there is a tag {self.tag!r}"


@dataclass(frozen=True)
class NothingUncommitted(Condition):
    """``branch`` has no uncommitted changes under ``prefix``."""

    kind: ClassVar[str] = "nothing_uncommitted"
    branch: str
    prefix: str = ""

    def met(self, repository: Repository) -> dict[str, Any] | None:
        """The branch's ref record."""
        try:
            branch = repository.branch(self.branch)
            clean = next(iter(branch.uncommitted(self.prefix)), None) is None
            return {"id": branch.id, "commit_id": branch.commit_id} if clean else None
        except RefNotFound:
            return None

    def __str__(self) -> str:
        return f"branch {self.branch!r} has no uncommitted changes" + (f" under {self.prefix!r}" if self.prefix else "")


@dataclass(frozen=True)
class Replicated(Condition):
    """All that the candidate of a mirror's branch or tag (``ref_kind``) needs has arrived."""

    kind: ClassVar[str] = "replicated"
    name: str
    ref_kind: str = "branch"

    def met(self, repository: Repository) -> dict[str, Any] | None:
        """The ref's record, with the commit that it can show now."""
        from lakeops.lake import Mirror

        found = Mirror.of(repository).arrived(RefName(RefKind(self.ref_kind), self.name))
        return None if found is None else {"id": self.name, "commit_id": found}

    def __str__(self) -> str:
        return f"everything that {self.ref_kind} {self.name!r} waits for has been replicated"


def _missing(repository: Repository, ref: str) -> bool:
    """Whether a ref is a name that nothing answers to yet. Raises for a commit or expression that does not exist."""
    try:
        repository.ref(ref).commit_id  # noqa: B018 - asked for its error
    except RefNotFound:
        if parse_ref(ref).is_name and not COMMIT_ID.fullmatch(ref):
            return True
        raise
    return False


def check_interval(name: str, seconds: float) -> float:
    """The seconds, when one can wait that long between two questions. Raises ``InvalidInput``."""
    if not 0 < seconds < float("inf"):
        raise InvalidInput(f"{name} is a positive number of seconds, not {seconds!r}")
    return seconds
