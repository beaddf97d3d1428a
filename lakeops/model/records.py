"""Records of the domain: repositories, refs, commits, entries, changes and audit records.

All are frozen and comparable. Attribute names are the JSON keys of the public contract (lakeFS's API names), and
``to_json`` writes exactly these keys. File names and digests stay out of it. Times are whole Unix seconds, UTC.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from enum import StrEnum
from functools import cache
from mimetypes import MimeTypes
from threading import Lock
from typing import Any, BinaryIO, ClassVar, Literal, NamedTuple, TypeVar, cast

from lakeops.model.encoding import JsonRecord, encode
from lakeops.model.errors import InvalidInput, LakeopsError
from lakeops.model.names import flaw
from lakeops.model.protection import Hook
from lakeops.model.sanitising import excerpt

MAX_KEY_BYTES = 256

OF_THE_ATTEMPT = frozenset({"airflow_try_number", "airflow_link"})
"""Metadata that tells which attempt made a commit. It differs when the same work is tried again."""


def check_key(key: str) -> str:
    """Return an idempotency key of 1 to 256 bytes of printable text. Raises ``InvalidInput`` for another one."""
    reason = flaw(key, at_least=1, at_most=MAX_KEY_BYTES)
    if reason is None and not key.isprintable():
        reason = "has a character that cannot be printed"
    if reason is not None:
        raise InvalidInput(f"{excerpt(key)} is not an idempotency key: it {reason}")
    return key


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    """A call of a verb, as an idempotency key remembers it.

    Attributes:
        action: the verb.
        branch: the branch, or another ref that it makes.
        parts: the verb's other arguments, by name.
        message: the commit's message as it was given, ``metadata`` likewise. None when it was left to the verb.
        key: the idempotency key. Raises ``InvalidInput`` for a bad one.
    """

    action: str
    branch: str
    parts: Mapping[str, str] = field(default_factory=dict)
    message: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None

    def __post_init__(self) -> None:
        if self.key is not None:
            check_key(self.key)

    @property
    def fingerprint(self) -> str:
        """The request as text of bounded size, to be kept with the key. Equal for equal requests only."""
        given = {name: text for name, text in self.metadata.items() if name not in OF_THE_ATTEMPT}
        values = {"verb": self.action, "ref": self.branch, **self.parts}
        for name, value in (("message", self.message), ("metadata", given)):
            values[name] = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
        return json.dumps(values, sort_keys=True)


def difference(known: str, asked: str) -> list[str]:
    """Names of the parts in which two fingerprints differ, such as ``message`` and ``source``."""
    if known == asked:
        return []
    try:
        one, other = json.loads(known), json.loads(asked)
        return sorted(name for name in {*one, *other} if one.get(name) != other.get(name)) or ["request"]
    except (ValueError, TypeError, AttributeError):  # no fingerprints
        return ["request"]


T = TypeVar("T")

DEFAULT_CONTENT_TYPE = "application/octet-stream"

_COMPRESSED = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}


@cache
def _types() -> MimeTypes:
    table = MimeTypes()
    table.add_type("application/vnd.apache.parquet", ".parquet")
    return table


def guess_type(path: str) -> str:
    """The content type that the end of a name stands for: the same on every machine, unlike the system's own list."""
    found, encoding = _types().guess_type(path.rpartition("/")[2], strict=False)
    return (found if encoding is None else _COMPRESSED.get(encoding)) or DEFAULT_CONTENT_TYPE


@dataclass(frozen=True, slots=True)
class Split:
    """A rule for the ends of ranges: a format parameter of a repository, fixed because ids depend on it.

    A range ends after a path whose hash is below ``2**64 / target_entries``, once it has ``min_entries``; and after
    ``max_entries`` in any case. The defaults give about 2,800 entries a range.
    """

    min_entries: int = 1_400
    target_entries: int = 1_400
    max_entries: int = 10_000


@dataclass(frozen=True, slots=True)
class Credentials:
    """Keys of an S3 store that somebody handed in. Only the key's id is ever shown."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


_REPOSITORY_KEYS = "id", "storage_namespace", "default_branch", "creation_date", "read_only", "metadata"


@dataclass(frozen=True, slots=True)
class RepositoryRecord(JsonRecord):
    """A namespace for objects, branches and commits, tied to one storage namespace.

    ``storage_namespace`` is a URL without a trailing slash (``file:///data/flights``, ``s3://bucket/flights``).
    """

    json_keys: ClassVar[tuple[str, ...]] = _REPOSITORY_KEYS

    id: str
    storage_namespace: str
    default_branch: str
    creation_date: int
    read_only: bool = False
    split: Split = Split()
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    hooks: tuple[Hook, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)


class RefKind(StrEnum):
    """A kind of ref: branches move, tags come and go."""

    BRANCH = "branch"
    TAG = "tag"


@dataclass(frozen=True, slots=True)
class RefRecord(JsonRecord):
    """A branch or a tag and the commit it points to."""

    id: str
    commit_id: str


ALONG = "lakeops.along."
"""The beginning of the keys of a commit's metadata that hold its co-author notes."""
DECLARED = "lakeops.checks"
"""The key of a commit's metadata with the names of the checks that it declares, a line each."""
VOUCHED, DESPITE = f"{DECLARED}.passed", f"{DECLARED}.despite"
"""Keys of a merge's metadata: the declared checks of what it brought that had passed, and those that it went around.
Each line is a commit's id, a space, and the check's name."""


@dataclass(frozen=True, slots=True)
class Along:
    """A co-author note: committer, message and metadata of a caller whose changes somebody else's commit covers.

    ``cut`` says that it was too long to be kept whole.
    """

    committer: str
    message: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False

    @classmethod
    def parse(cls, text: str) -> Along:
        """Read a note from a value of a commit's metadata. A value that is no JSON is taken for the message."""
        try:
            found = json.loads(text)
            metadata = {str(key): str(value) for key, value in found["metadata"].items()}
            return cls(str(found["committer"]), str(found["message"]), metadata, bool(found.get("cut")))
        except (ValueError, TypeError, KeyError, AttributeError):
            return cls("", text)

    def to_text(self) -> str:
        """Write the note as a value of a commit's metadata."""
        cut = {"cut": True} if self.cut else {}
        parts = {"committer": self.committer, "message": self.message, "metadata": dict(self.metadata), **cut}
        return json.dumps(parts, ensure_ascii=False, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Commit:
    """An immutable snapshot of a repository. ``id`` digests the rest but for what is said here (see ``model.ids``).

    ``parents`` holds the destination first and the source second for a merge. ``generation`` is 1 for the initial
    commit and one more than the highest parent's otherwise. ``meta_range_file`` is the file's name under
    ``_lakefs/metaranges/`` and ``meta_range_digest`` the SHA-256 of its bytes (hex): both belong to this copy of the
    commit and are not part of its id.
    """

    id: str
    parents: tuple[str, ...]
    committer: str
    message: str
    creation_date: int
    metadata: Mapping[str, str]
    meta_range_id: str
    generation: int
    meta_range_file: str = ""
    meta_range_digest: str = ""
    expired: bool = False

    @property
    def along(self) -> list[Along]:
        """The co-author notes of callers whose changes this commit covers. See ``Branch.commit``."""
        found = (self.metadata.get(f"{ALONG}{number}") for number in range(1, len(self.metadata) + 1))
        return [Along.parse(text) for text in found if text is not None]

    @property
    def declared_checks(self) -> list[str]:
        """The checks that the commit declares, and those of the commits that it covers, by name.

        No merge takes it before they have passed. What a cherry-pick has made of it declares none.
        """
        if "cherry-pick-origin" in self.metadata:
            return []
        lines = [self.metadata.get(DECLARED, "")]
        if f"{ALONG}1" in self.metadata:
            lines += [one.metadata.get(DECLARED, "") for one in self.along]
        return sorted({*"\n".join(lines).split("\n")} - {""})

    @property
    def is_pruned(self) -> bool:
        """Whether it only stands for a commit that was pruned."""
        return self.generation == 0

    def to_json(self) -> dict[str, Any]:
        """The contract's ``commit`` record, with ``expired`` where retention took the commit."""
        names = ("id", "parents", "committer", "message", "creation_date", "metadata", "meta_range_id", "generation")
        return {**{name: encode(getattr(self, name)) for name in names}, **({"expired": True} if self.expired else {})}


def gone(commit_id: str) -> Commit:
    """Make the stand-in for a commit that was pruned: expired, older than everything, and without parents."""
    return Commit(commit_id, (), "", "", 0, {}, "", 0, expired=True)


@dataclass(frozen=True, slots=True)
class BranchHead:
    """A branch and the commit that it points to."""

    id: str
    commit: Commit

    @property
    def commit_id(self) -> str:
        """The id of the commit."""
        return self.commit.id

    def to_json(self) -> dict[str, Any]:
        """The contract's ``ref`` record, with who committed last, when and why."""
        said = {name: getattr(self.commit, name) for name in ("committer", "creation_date", "message")}
        return {"id": self.id, "commit_id": self.commit.id, **said}


_OBJECT_KEYS = "path", "path_type", "physical_address", "checksum", "size_bytes", "mtime", "metadata", "content_type"


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of a ref: a row of a range, or a staged row.

    ``physical_address`` is stored relative to the storage namespace for managed objects (``data/...``) and absolute
    for imported ones. Records that leave the public API carry the absolute form.
    """

    path: str
    physical_address: str
    checksum: str
    size_bytes: int
    mtime: int
    content_type: str = DEFAULT_CONTENT_TYPE
    metadata: Mapping[str, str] = field(default_factory=dict)

    path_type: ClassVar[str] = "object"

    @property
    def identity(self) -> tuple[str, int, str, tuple[tuple[str, str], ...]]:
        """Checksum, size, content type and user metadata: equal for what a user calls the same object at one path."""
        return (self.checksum, self.size_bytes, self.content_type, tuple(sorted(self.metadata.items())))

    def to_json(self) -> dict[str, Any]:
        """The contract's ``object`` record."""
        return {  # spelled out: long listings make thousands
            "path": self.path,
            "path_type": "object",
            "physical_address": self.physical_address,
            "checksum": self.checksum,
            "size_bytes": self.size_bytes,
            "mtime": self.mtime,
            "metadata": dict(self.metadata),
            "content_type": self.content_type,
        }


def is_marker(entry: Entry) -> bool:
    """Tell whether an object only says that there is a folder: it is empty, and its path ends in a slash."""
    return entry.path.endswith("/") and not entry.size_bytes


@dataclass(frozen=True, slots=True)
class CommonPrefix(JsonRecord):
    """A folder of a listing with a delimiter: one row for every object below it. An object's attributes are None."""

    json_keys: ClassVar[tuple[str, ...]] = _OBJECT_KEYS

    path: str

    path_type: ClassVar[str] = "common_prefix"
    physical_address: ClassVar[None] = None
    checksum: ClassVar[None] = None
    size_bytes: ClassVar[None] = None
    mtime: ClassVar[None] = None
    metadata: ClassVar[None] = None
    content_type: ClassVar[None] = None


@dataclass(frozen=True, slots=True)
class ReflogRecord:
    """One move of a branch or tag: ``old`` or ``new`` is None when the ref began or ended there."""

    sequence: int
    ref: str
    old: str | None
    new: str | None
    action: str
    actor: str
    at: int

    @property
    def pointed_by(self) -> str | None:
        """The person who created or moved the branch, in words. None when this move was a commit or a merge."""
        done = {"create-branch": "created", "move-branch": "moved"}.get(self.action)
        return done and f"{done} by {self.actor}"


@dataclass(frozen=True, slots=True)
class AuditRecord(JsonRecord):
    """One transition of a catalog, and who did it.

    ``repository`` is empty for the whole catalog. ``kind`` and ``ref`` name what changed, ``before`` and ``after`` are
    its commit ids or settings. ``actor`` is a user of Airflow, or else the database ``login``, with SQLite the account
    of the process. Nobody has checked the committer's name ``claimed`` by the caller. ``at`` is by the database's
    clock.
    """

    sequence: int
    repository: str
    action: str
    kind: str
    ref: str
    before: str | None
    after: str | None
    actor: str
    login: str
    claimed: str
    at: int


class ChangeType(StrEnum):
    """A change of a path."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class Change(JsonRecord):
    """One path of a diff. ``size_bytes`` is the new object's, or the removed one's."""

    type: ChangeType
    path: str
    size_bytes: int


@dataclass
class Counts:
    """Numbers of changed paths by kind, and the bytes of their objects: those that are there now, or were removed."""

    by_kind: dict[str, int] = field(default_factory=lambda: {kind.value: 0 for kind in ChangeType})
    bytes: int = 0

    @property
    def total(self) -> int:
        """The number of all paths."""
        return sum(self.by_kind.values())

    def count(self, change: Change) -> None:
        """Count a change."""
        self.by_kind[change.type] += 1
        self.bytes += change.size_bytes

    def plus(self, *others: Counts) -> Counts:
        """Add the counts of others, and return itself."""
        for other in others:
            for kind, many in other.by_kind.items():
                self.by_kind[kind] += many
            self.bytes += other.bytes
        return self


@dataclass(frozen=True, slots=True)
class Summary(JsonRecord):
    """How many paths a commit or merge added, removed and changed."""

    added: int = 0
    removed: int = 0
    changed: int = 0

    @property
    def total(self) -> int:
        """The number of changed paths."""
        return self.added + self.removed + self.changed

    def __add__(self, other: Summary) -> Summary:
        return Summary(self.added + other.added, self.removed + other.removed, self.changed + other.changed)


@dataclass(frozen=True, slots=True)
class Written:
    """An object and the commit that wrote it.

    ``boundary`` says that an earlier commit may have, which retention took, or which lies deeper than the call looks.
    """

    path: str
    size_bytes: int
    commit: Commit
    boundary: bool

    @property
    def dag_run(self) -> dict[str, str | None] | None:
        """The run of an Airflow DAG that made the commit: ``dag_id``, ``run_id``, ``task_id`` and ``link`` to the log.

        The link is None where Airflow did not know its own address.
        """
        made = self.commit.metadata
        if "airflow_dag_id" not in made:
            return None
        return {name: made.get(f"airflow_{name}") for name in ("dag_id", "run_id", "task_id", "link")}

    def to_json(self) -> dict[str, Any]:
        """The object, and who wrote it."""
        made = {name: getattr(self.commit, name) for name in ("committer", "creation_date", "message")}
        written = {"path": self.path, "size_bytes": self.size_bytes, "commit_id": self.commit.id, **made}
        return {**written, "dag_run": self.dag_run, "boundary": self.boundary}


@dataclass(frozen=True, slots=True)
class Version(Written):
    """An object as one commit wrote it, or removed it; ``added`` at the boundary, where no parent could be read."""

    type: ChangeType
    checksum: str

    def to_json(self) -> dict[str, Any]:
        """The ``written`` record, with the change that the commit made and the checksum."""
        return {"type": self.type.value, "checksum": self.checksum, **Written.to_json(self)}


class Strategy(StrEnum):
    """Which side settles every conflict of a merge. A deletion counts as a side's state."""

    SOURCE_WINS = "source-wins"
    DEST_WINS = "dest-wins"


StrategyName = Literal["source-wins", "dest-wins"]
"""A strategy as people write it."""
TablesMode = Literal["rebase"]


@dataclass(frozen=True, slots=True)
class MergeResult(JsonRecord):
    """The result of a merge: ``reference`` is the new commit's id, or None when there was nothing to merge.

    ``source_uncommitted``: the source is a branch with uncommitted changes, which were left out. ``repeated``: an
    earlier call under the same idempotency key made the commit, and this one changed nothing.
    """

    json_keys: ClassVar[tuple[str, ...]] = ("reference", "up_to_date", "summary", "source_uncommitted")

    reference: str | None
    up_to_date: bool
    summary: Summary
    source_uncommitted: bool = False
    repeated: bool = field(default=False, compare=False)


Progress = Callable[[str, int, int], None]
"""Called with a label, how much is done, and how much there is."""


def quiet(label: str, done: int, total: int) -> None:
    """Show no progress."""


class ByteCounter:
    """Adds up the bytes that several threads move, and reports the sum, with a label and the total."""

    def __init__(self, report: Progress, label: str, total: int) -> None:
        self._report = report
        self._label = label
        self._total = total
        self._done = 0
        self._stopped = False
        self._lock = Lock()

    def counting(self, file: BinaryIO) -> BinaryIO:
        """The file, counted while it is read. It can only be read."""
        return cast("BinaryIO", _CountedFile(file, self))

    def stop(self) -> None:
        """Let the next read of every file fail."""
        self._stopped = True

    def add(self, size: int) -> None:
        """Count some more bytes. Raises ``LakeopsError`` once stopped."""
        if self._stopped:
            raise LakeopsError("stopped, because another file failed or the command was interrupted")
        with self._lock:
            self._done += size
            self._report(self._label, self._done, self._total)


class _CountedFile(NamedTuple):
    file: BinaryIO
    counter: ByteCounter

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size)
        self.counter.add(len(data))
        return data


def maker(record: type[T]) -> Callable[..., T]:
    """A function that makes records of a frozen dataclass with slots, in a third of the time of its constructor.

    It takes a value for every field, in order. ``__post_init__`` is not called.
    """
    twin = _unfrozen(record)

    def make(*values: object) -> T:
        made = twin(*values)
        made.__class__ = record
        return made  # type: ignore[no-any-return]

    return make


def maker_of_many(record: type[T]) -> Callable[..., list[T]]:
    """A function that makes such records of columns: an iterable for every field, in order, of equal length."""
    twin = _unfrozen(record)

    def make(*columns: Iterable[object]) -> list[T]:
        made = list(map(twin, *columns))
        for one in made:
            one.__class__ = record
        return made

    return make


def _unfrozen(record: type[T]) -> Any:  # noqa: ANN401 - it is called what it is not until its fields are set
    """Make a twin of a frozen dataclass, of the same layout, whose fields are set in one go."""
    names = [field.name for field in fields(cast("Any", record))]
    return make_dataclass(record.__name__, names, slots=True, repr=False, eq=False)


class ReportKind(StrEnum):
    """The subject of a report."""

    FSCK = "fsck"
    LAG = "lag"


KEPT = {ReportKind.FSCK: 1, ReportKind.LAG: 300}
"""How many reports of a kind a repository keeps."""


@dataclass(frozen=True, slots=True)
class Report:
    """The report of a run, at a time in Unix seconds. ``found`` has the keys of its kind."""

    at: int
    actor: str
    found: Mapping[str, Any]

    def number(self, name: str) -> int:
        """A number of ``found``. 0 where there is none of this name."""
        value = self.found.get(name)
        return value if isinstance(value, int) else 0
