"""What waiting tasks and watchers ask a repository, again and again until the answer is there.

A sensor asks in its own process, a trigger in the triggerer. Both ask the same question, so the plain and the
deferrable form of a task have the same answer. A question is a frozen dataclass: equal ones are asked once for
everybody who waits, and a condition travels to the triggerer as JSON.

A branch or tag that does not exist yet is waited for. What waiting cannot mend (no such repository, an expired commit,
an expression that cannot be read) is an error at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar

from lakeops.airflow import idempotent
from lakeops.airflow.compat import AirflowNotFoundException
from lakeops.airflow.events import describe
from lakeops.airflow.hook import source_of
from lakeops.airflow.task import made_by_airflow
from lakeops.model.errors import InvalidInput, LakeopsError, RefNotFound
from lakeops.model.mirrors import RefKind, RefName
from lakeops.model.names import COMMIT_ID, check_branch, check_tag
from lakeops.model.refs import parse_ref

if TYPE_CHECKING:
    from lakeops.lake import Lake, Mirror, Repository

NO_COMMIT = ""
"""The head of a branch that does not exist: every commit of it is new."""

KINDS: dict[str, type[Condition]] = {}
"""The conditions by their names in JSON."""

Answer_co = TypeVar("Answer_co", covariant=True)


class Question(Protocol[Answer_co]):
    """Anything hashable that reads a repository or a lake."""

    def __hash__(self) -> int: ...

    def met(self, place: Any, /) -> Answer_co:  # noqa: ANN401
        """The answer, read now, in a repository; or in a lake, where no repository is named."""
        ...


@dataclass(frozen=True)
class Condition(ABC):
    """Something that can be so in a repository. Waiting for it ends when it is."""

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        KINDS[cls.kind] = cls

    @abstractmethod
    def met(self, repository: Repository) -> dict[str, Any] | None:
        """What was found, as the waiting task returns it. None when it is not so yet."""

    @abstractmethod
    def __str__(self) -> str:
        """The condition in words, for messages that name the repository themselves."""

    def to_json(self) -> dict[str, Any]:
        """Plain data, which ``condition`` reads."""
        return {"kind": self.kind, **asdict(self)}


def condition(data: Mapping[str, Any]) -> Condition:
    """The condition that ``to_json`` wrote."""
    values = dict(data)
    return KINDS[values.pop("kind")](**values)


@dataclass(frozen=True)
class NewCommit(Condition):
    """``branch`` has a commit that ``since`` (any ref expression, or ``NO_COMMIT``) does not have."""

    kind: ClassVar[str] = "new_commit"
    branch: str
    since: str

    def met(self, repository: Repository) -> dict[str, Any] | None:
        """The record of the branch's head."""
        try:
            head = repository.branch(self.branch).head
        except RefNotFound:
            return None
        if self.since == NO_COMMIT:
            return head.to_json()
        if head.id == self.since or idempotent.contains(repository, self.since, head.id):
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
    """There are at least ``min_objects`` objects under ``prefix`` of ``ref``, uncommitted ones too on a branch."""

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
        """The tag's record. Raises ``InvalidName`` for what no tag can be called."""
        check_tag(self.tag)
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
    """Everything that the candidate of a mirror's branch or tag (``ref_kind``) needs has arrived."""

    kind: ClassVar[str] = "replicated"
    name: str
    ref_kind: str = "branch"

    def met(self, repository: Repository) -> dict[str, Any] | None:
        """The ref's record, with the commit that it can show now. Raises ``InvalidName`` for a name that none has."""
        from lakeops.lake import Mirror

        (check_branch if self.ref_kind == RefKind.BRANCH else check_tag)(self.name)
        found = Mirror.of(repository).arrived(RefName(RefKind(self.ref_kind), self.name))
        return None if found is None else {"id": self.name, "commit_id": found}

    def __str__(self) -> str:
        return f"everything that {self.ref_kind} {self.name!r} waits for has been replicated"


@dataclass(frozen=True)
class HeadSince:
    """Where a watched branch's head is now, and what to announce of its way there from ``cursor``.

    ``cursor`` is where the head was when it was read last: None when it was never read, ``NO_COMMIT`` when there was no
    branch. Without ``every``, a move by commits of Airflow's operators alone is not announced: they announce their own.
    """

    branch: str
    cursor: str | None
    every: bool

    def met(self, repository: Repository) -> Move:
        """The head now, and an event when there are commits to announce."""
        try:
            head = repository.branch(self.branch).head
        except RefNotFound:
            return Move(NO_COMMIT, None)
        if (
            self.cursor is None
            or head.id == self.cursor
            or not (self.every or self._moved_outside_airflow(repository, head.id))
        ):
            return Move(head.id, None)
        return Move(head.id, describe(repository, self.branch, head.to_json(), since=self.cursor or None))

    def _moved_outside_airflow(self, repository: Repository, head: str) -> bool:
        """Whether any commit on the way from the cursor to the head was made outside Airflow."""
        for commit in repository.log(head, first_parent=True):
            if commit.id == self.cursor:
                return False
            if not made_by_airflow(commit.metadata):
                return True
        return True


@dataclass(frozen=True)
class MirrorsDue:
    """Which mirrors of a lake have something to do."""

    def met(self, lake: Lake) -> tuple[str, ...]:
        """Their names. One whose source cannot be reached is among them: its run says why."""
        return tuple(mirror.id for mirror in lake.mirrors() if self._is_due(mirror))

    def _is_due(self, mirror: Mirror) -> bool:
        if mirror.configuration.promoted_writable is not None:
            return False
        try:
            with source_of(mirror) as source:
                return mirror.due(source)
        except (LakeopsError, AirflowNotFoundException):
            return True


class Move(NamedTuple):
    """A branch's head, and the event about its move there, if there is one."""

    head: str
    event: dict[str, Any] | None


def _missing(repository: Repository, ref: str) -> bool:
    """Whether a ref is about a branch or tag that does not exist yet, as ``main``, ``main@`` and ``main~1`` may be.

    Any other ref that does not exist raises: a commit that is not there, a step past the root.
    """
    try:
        repository.ref(ref).commit_id  # noqa: B018 - asked for its error
    except RefNotFound:
        base = parse_ref(ref).base
        if COMMIT_ID.fullmatch(base) or (base != ref and not _missing(repository, base)):
            raise
        return True
    return False


def check_interval(name: str, seconds: float) -> float:
    """The seconds, if they can be an interval between two questions. Raises ``InvalidInput``."""
    if not 0 < seconds < float("inf"):
        raise InvalidInput(f"{name} is a positive number of seconds, not {seconds!r}")
    return seconds
