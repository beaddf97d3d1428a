"""The domain's records: frozen, plain, comparable.

Attribute names are the JSON keys of the public contract (lakeFS's API names). Times are whole Unix seconds, UTC.
``to_json`` gives exactly the keys of the contract. What is stored beside them (file names, digests) stays out of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, make_dataclass
from typing import Any, ClassVar, TypeVar, cast

from lakeops.model.hooks import Hook
from lakeops.model.json_record import JsonRecord

T = TypeVar("T")

DEFAULT_CONTENT_TYPE = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Split:
    """Where ranges end: a format parameter of a repository, fixed at its creation because ids depend on it.

    A range ends after a path whose hash is below ``2**64 / target_entries``, once it has ``min_entries``; and after
    ``max_entries`` in any case. The defaults give about 2,800 entries a range.
    """

    min_entries: int = 1_400
    target_entries: int = 1_400
    max_entries: int = 10_000

    @classmethod
    def from_json(cls, record: Mapping[str, int]) -> Split:
        """The split of ``to_json``. Raises ``TypeError`` for other names."""
        return cls(**record)

    def to_json(self) -> dict[str, int]:
        """What catalogs, claims and dumps hold of it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Keys of an S3 store that somebody handed in. Only the key's id is ever shown."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class RepositoryRecord(JsonRecord):
    """A namespace for objects, branches and commits, tied to one storage namespace.

    ``storage_namespace`` is a URL without a trailing slash (``file:///data/flights``, ``s3://bucket/flights``).
    """

    json_keys: ClassVar[tuple[str, ...]] = (
        "id",
        "storage_namespace",
        "default_branch",
        "creation_date",
        "read_only",
        "metadata",
    )

    id: str
    storage_namespace: str
    default_branch: str
    creation_date: int
    read_only: bool = False
    split: Split = Split()
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    hooks: tuple[Hook, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RefRecord(JsonRecord):
    """A branch or a tag and the commit it points to."""

    id: str
    commit_id: str


ALONG = "lakeops.along."
"""How the keys of a commit's metadata begin that hold its co-author notes."""


@dataclass(frozen=True, slots=True)
class Along:
    """A co-author note: what a caller said of changes that somebody else's commit covers.

    ``cut`` says that it was too long to be kept whole.
    """

    committer: str
    message: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False

    @classmethod
    def parse(cls, text: str) -> Along:
        """What a value of a commit's metadata says. One that nobody can read is taken for the message."""
        try:
            found = json.loads(text)
            metadata = {str(key): str(value) for key, value in found["metadata"].items()}
            return cls(str(found["committer"]), str(found["message"]), metadata, bool(found.get("cut")))
        except (ValueError, TypeError, KeyError, AttributeError):
            return cls("", text)

    def to_text(self) -> str:
        """This record as a value of a commit's metadata."""
        cut = {"cut": True} if self.cut else {}
        parts = {"committer": self.committer, "message": self.message, "metadata": dict(self.metadata), **cut}
        return json.dumps(parts, ensure_ascii=False, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Commit:
    """An immutable snapshot of a repository.

    ``id`` digests committer, message, creation date, metadata, parents and metarange id (see ``model.ids``).
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
        """The co-author notes: what other callers said whose changes this commit covers. See ``Branch.commit``."""
        found = (self.metadata.get(f"{ALONG}{number}") for number in range(1, len(self.metadata) + 1))
        return [Along.parse(text) for text in found if text is not None]

    @property
    def is_gone(self) -> bool:
        """Whether it only stands for a commit that was pruned."""
        return self.generation == 0

    def to_json(self) -> dict[str, Any]:
        """The contract's ``commit`` record. One that retention took has ``expired`` beside it."""
        return {
            "id": self.id,
            "parents": list(self.parents),
            "committer": self.committer,
            "message": self.message,
            "creation_date": self.creation_date,
            "metadata": dict(self.metadata),
            "meta_range_id": self.meta_range_id,
            "generation": self.generation,
            **({"expired": True} if self.expired else {}),
        }


def gone(commit_id: str) -> Commit:
    """What stands for a commit that was pruned: expired, older than everything, and without parents."""
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
        return {
            "id": self.id,
            "commit_id": self.commit.id,
            "committer": self.commit.committer,
            "creation_date": self.commit.creation_date,
            "message": self.commit.message,
        }


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

    @property
    def path_type(self) -> str:
        """Always ``object``."""
        return "object"

    @property
    def identity(self) -> tuple[str, int, str, tuple[tuple[str, str], ...]]:
        """What a user calls the same object, at one path: checksum, size, content type, user metadata."""
        return (self.checksum, self.size_bytes, self.content_type, tuple(sorted(self.metadata.items())))

    def to_json(self) -> dict[str, Any]:
        """The contract's ``object`` record."""
        return {
            "path": self.path,
            "path_type": "object",
            "physical_address": self.physical_address,
            "checksum": self.checksum,
            "size_bytes": self.size_bytes,
            "mtime": self.mtime,
            "metadata": dict(self.metadata),
            "content_type": self.content_type,
        }


@dataclass(frozen=True, slots=True)
class CommonPrefix(JsonRecord):
    """A folder of a listing with a delimiter: every object below it is summed up as this one row.

    It has an object's attributes, which are None: a listing can be read without telling the two apart.
    """

    json_keys: ClassVar[tuple[str, ...]] = (
        "path",
        "path_type",
        "physical_address",
        "checksum",
        "size_bytes",
        "mtime",
        "metadata",
        "content_type",
    )

    path: str

    physical_address: ClassVar[None] = None
    checksum: ClassVar[None] = None
    size_bytes: ClassVar[None] = None
    mtime: ClassVar[None] = None
    metadata: ClassVar[None] = None
    content_type: ClassVar[None] = None

    @property
    def path_type(self) -> str:
        """Always ``common_prefix``."""
        return "common_prefix"


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


BRANCH_PROTECTION, TAG_PROTECTION, CHECK_PROTECTION = "branch", "tag", "check"


@dataclass(frozen=True, slots=True, order=True)
class Protection:
    """What refs that match a glob pattern do not take.

    Attributes:
        kind: ``branch``: they change through merges only. ``tag``: they are neither moved nor deleted. ``check``:
            branches change through merges only, and only of commits that have passed ``check``.
        pattern: a name or a glob.
        check: the name of the check.
    """

    kind: str
    pattern: str
    check: str = ""

    @property
    def text(self) -> str:
        """As one text. No pattern has a slash."""
        return self.pattern if self.kind == BRANCH_PROTECTION else f"{self.kind}/{self.pattern}/{self.check}"

    @staticmethod
    def parse(text: str) -> Protection:
        """What ``text`` wrote down."""
        kind, *rest = text.split("/", 2)
        if kind in {TAG_PROTECTION, CHECK_PROTECTION} and len(rest) > 1:
            return Protection(kind, *rest)
        return Protection(BRANCH_PROTECTION, text)


@dataclass(frozen=True, slots=True)
class PassedCheck(JsonRecord):
    """A check that a commit has passed: who said so, and when, in Unix seconds."""

    commit_id: str
    name: str
    passed_by: str
    at: int


@dataclass(frozen=True, slots=True)
class AuditRecord(JsonRecord):
    """One transition of a catalog, and who did it.

    Attributes:
        sequence: rises from record to record.
        repository: the repository. Empty for what concerns the whole catalog.
        action: the transition.
        kind: what it was done to: ``branch``, ``tag``, ``repository``, ``protection``, ``mark`` and so on.
        ref: the name of that.
        before: what was there: a commit id, a setting. None when there was nothing.
        after: what is there now.
        actor: who did it, as far as that is known: a user of Airflow, or else the database login.
        login: the database login; with SQLite the account of the process.
        claimed: the committer's name that the caller gave. Nobody has checked it.
        at: when, in Unix seconds, by the database's clock.
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


def maker(record: type[T]) -> Callable[..., T]:
    """What makes records of a frozen dataclass with slots in a third of the time that its constructor takes.

    It takes a value for every field, in order: no defaults, no names, and no ``__post_init__``.
    """
    twin = _unfrozen(record)

    def make(*values: object) -> T:
        made = twin(*values)
        made.__class__ = record
        return made  # type: ignore[no-any-return]

    return make


def maker_of_many(record: type[T]) -> Callable[..., list[T]]:
    """What makes such records of columns: an iterable for every field, in order, all of the same length."""
    twin = _unfrozen(record)

    def make(*columns: Iterable[object]) -> list[T]:
        made = list(map(twin, *columns))
        for one in made:
            one.__class__ = record
        return made

    return make


def _unfrozen(record: type[T]) -> Any:  # noqa: ANN401 - it is called what it is not until its fields are set
    """A twin of a frozen dataclass, of the same layout, whose fields are set in one go."""
    names = [field.name for field in fields(cast("Any", record))]
    return make_dataclass(record.__name__, names, slots=True, repr=False, eq=False)
