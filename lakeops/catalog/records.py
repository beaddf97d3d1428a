"""Records that go into the catalog's transitions and come out of them, each beside its rows: decoding and values.

Records of one part alone stand in its module.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from functools import wraps
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Table, Text, cast

from lakeops.catalog.database import AnyRow
from lakeops.catalog.tables import BRANCH, COMMIT, REPOSITORY, STAGED, VERDICT
from lakeops.model.errors import Corrupted, InvalidInput
from lakeops.model.protection import Hook, Verdict
from lakeops.model.records import Along, Commit, Entry, RepositoryRecord, Split, maker
from lakeops.model.sanitising import one_line

if TYPE_CHECKING:
    import pyarrow as pa

R = TypeVar("R")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WRONG = (TypeError, ValueError, KeyError, AttributeError, OverflowError)
"""How a value that is not of its column's kind fails where a record is made of it."""


def epoch_micros(moment: datetime) -> int:
    """A moment as microseconds since the Unix epoch, for times whose order matters."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def from_epoch_micros(count: int) -> datetime:
    """The moment of so many microseconds since the Unix epoch."""
    return _EPOCH + timedelta(microseconds=count)


def decoding(table: Table, *key: str | int) -> Callable[[Callable[[Any], R]], Callable[[Any], R]]:
    """Let a function that decodes a row raise ``Corrupted`` where it cannot, with the table and the row's ``key``.

    ``key`` are the names or places of the values that say which row it is.
    """

    def wrap(make: Callable[[Any], R]) -> Callable[[Any], R]:
        @wraps(make)
        def decode(row: Any) -> R:  # noqa: ANN401 - a row
            try:
                return make(row)
            except _WRONG as error:
                which = " ".join(str(row[part] if isinstance(part, int) else getattr(row, part)) for part in key)
                raise undecodable(table, which, error) from None

        return decode

    return wrap


def undecodable(table: Table, which: str, error: Exception) -> Corrupted:
    """The error for a row that makes no record."""
    return Corrupted(
        f"the catalog's row {which!r} of table {table.name} cannot be decoded: {one_line(error)}; "
        "run `lakeops fsck`, and restore the catalog from its backup"
    )


def text_list(value: object) -> tuple[str, ...]:
    """A list of texts out of a JSON column."""
    if type(value) is not list or not {str}.issuperset(map(type, value)):
        raise TypeError(f"{value!r:.80} is no list of texts")
    return tuple(value)


def text_map(value: object) -> dict[str, str]:
    """A map of texts out of a JSON column."""
    if type(value) is not dict or not {str}.issuperset(map(type, value.values())):
        raise TypeError(f"{value!r:.80} is no map of texts")
    return value


def number(value: object) -> int:
    """A whole number. SQLite keeps any value in any column."""
    if type(value) is not int:
        raise TypeError(f"{value!r:.80} is no whole number")
    return value


def optional_number(value: object) -> int | None:
    """A whole number, or nothing."""
    return None if value is None else number(value)


def check_texts(*values: object) -> None:
    """Refuse values that are no texts."""
    for value in values:
        if type(value) is not str:
            raise TypeError(f"{value!r:.80} is no text")


@dataclass(frozen=True, slots=True)
class Caller:
    """A user of a catalog: the committer's name that was set, and the user whom a program such as Airflow has."""

    claimed: str = ""
    person: str | None = None


@dataclass(frozen=True, slots=True)
class Intent:
    """A request of somebody who is about to commit sealed rows: what the commit says, and under which key."""

    committer: str
    message: str
    metadata: tuple[tuple[str, str], ...] = ()
    key: str | None = None
    fingerprint: str = ""

    def same_call(self, other: Intent | None) -> bool:
        """Whether both are of one call, or of one that was repeated."""
        return self == other or (other is not None and self.key is not None and self.key == other.key)

    @property
    def along(self) -> Along:
        """The co-author note of this intent, for a commit of somebody else that covers its rows."""
        return Along(self.committer, self.message, dict(self.metadata))


Intents = tuple[tuple[str, Intent], ...]
"""Sealed tokens, each with what somebody asked for whose rows are under it. A token may come several times."""


@dataclass(frozen=True, slots=True)
class BranchState:
    """A branch's row: its head and the tokens of its staging area.

    Reads go through ``staging_token``, then ``sealed_tokens`` (newest first), then the head. ``resets`` counts drops of
    staged rows, ``sealed_resets`` those of sealed tokens' rows. ``intents`` are in the order in which they began.
    """

    repository_id: str
    id: str
    commit_id: str
    staging_token: str
    sealed_tokens: tuple[str, ...] = ()
    resets: int = 0
    sealed_resets: int = 0
    intents: Intents = ()

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens whose rows the branch shows, newest first."""
        return (self.staging_token, *self.sealed_tokens)

    def without_sealed(self, tokens: Sequence[str]) -> BranchState | None:
        """The branch without these sealed tokens and their intents. None when they are not its oldest ones.

        Only the oldest may leave: an older row that stayed behind would cover what the newer ones put into a commit.
        """
        stay = len(self.sealed_tokens) - len(tokens)
        if stay < 0 or set(self.sealed_tokens[stay:]) != set(tokens):
            return None
        sealed = self.sealed_tokens[:stay]
        return replace(self, sealed_tokens=sealed, intents=tuple(one for one in self.intents if one[0] in sealed))


_BRANCH_NAMES = tuple(column.name for column in BRANCH.c)
_BRANCH_VALUES = attrgetter(*("id" if name == "name" else name for name in _BRANCH_NAMES))


@decoding(BRANCH, 0, 1)
def branch_record(row: Sequence[Any]) -> BranchState:
    """The branch of a row of its table, by position."""
    repository_id, name, commit_id, staging_token, sealed_tokens, resets, sealed_resets, intents, *_ = row
    check_texts(name, commit_id, staging_token)
    counts = number(resets), number(sealed_resets)
    found = _intents(intents) if intents != [] else ()
    return BranchState(repository_id, name, commit_id, staging_token, text_list(sealed_tokens), *counts, found)


@decoding(VERDICT, "commit_id", "name")
def verdict_record(row: AnyRow) -> Verdict:
    """The verdict of a row of its table."""
    found = Verdict(row.commit_id, row.name, row.state, row.said_by, number(row.at), row.findings, row.run)
    check_texts(found.commit_id, found.name, found.state, found.said_by, found.findings, found.run)
    return found


def _intents(value: object) -> Intents:
    if type(value) is not list:
        raise TypeError(f"{value!r:.80} is no list of intents")
    found = []
    for item in value:
        token, committer, message, metadata, key, fingerprint = item
        check_texts(token, committer, message, fingerprint)
        found.append((token, Intent(committer, message, tuple(text_map(metadata).items()), key, fingerprint)))
    return tuple(found)


def intent_values(intents: Intents) -> list[list[Any]]:
    """Intents as a column value."""
    return [[token, one.committer, one.message, dict(one.metadata), one.key, one.fingerprint] for token, one in intents]


def branch_values(state: BranchState) -> dict[str, Any]:
    """A branch as column values."""
    values = dict(zip(_BRANCH_NAMES, _BRANCH_VALUES(state), strict=True))
    return {**values, "sealed_tokens": list(state.sealed_tokens), "intents": intent_values(state.intents)}


@dataclass(frozen=True, slots=True)
class BranchSnapshot:
    """A branch at one instant: its row, the commit that it points to, and its staged rows (``STAGED_SCHEMA``).

    ``started`` is the database's time then: what is planned on it has started. ``staged`` is None where the rows were
    not read.
    """

    state: BranchState
    head: Commit
    started: datetime
    staged: pa.Table = None


@dataclass(frozen=True, slots=True)
class Sealed(BranchSnapshot):
    """A branch with its staged rows sealed, or ``earlier``: the commit under the call's key. Nothing is sealed then."""

    earlier: Commit | None = None


@dataclass(frozen=True, slots=True)
class ChangeCounter:
    """How often something was staged at a path, or below a prefix. Whatever is staged there later changes ``total``."""

    place: str
    below: bool
    total: int = 0
    paths: frozenset[str] = frozenset()
    """The paths below the prefix that count. Empty: all of them."""


@dataclass(frozen=True, slots=True)
class ExpectedState:
    """The state that a change of a branch depends on. A difference refuses the change. None is not compared.

    Attributes:
        state: the branch's row: head, tokens and resets.
        counter: how often something was staged at a place. What is committed there does not change with ``state``.
        marks: the marks that are known to hold none of the rows' objects, for rows that link objects which were there
            before the attempt began. To be found out before the objects are seen to be there.
        unclear: the marks that are still being made, and may come to hold one of the objects.
    """

    state: BranchState | None = None
    counter: ChangeCounter | None = None
    marks: frozenset[str] | None = None
    unclear: frozenset[str] = frozenset()

    @property
    def changes(self) -> int:
        """How often something was staged where the counter counts."""
        return 0 if self.counter is None else self.counter.total


@decoding(REPOSITORY, "id")
def repository_record(row: AnyRow) -> RepositoryRecord:
    """The repository of a row of its table."""
    split = Split(**row.split)
    for value in astuple(split):
        number(value)
    names = row.id, row.storage_namespace, row.default_branch
    check_texts(*names)
    if type(row.capabilities) is not dict:
        raise TypeError(f"{row.capabilities!r:.80} is no map")
    date, hooks, metadata = number(row.creation_date), hooks_of(row), text_map(row.metadata)
    return RepositoryRecord(*names, date, row.read_only, split, row.capabilities, hooks, metadata)


@decoding(REPOSITORY, "id")
def hooks_of(row: AnyRow) -> tuple[Hook, ...]:
    """The hooks of a repository's row. Raises ``Corrupted``."""
    if row.hooks == []:
        return ()
    if type(row.hooks) is not list:
        raise TypeError(f"{row.hooks!r:.80} is no list of hooks")
    try:
        return tuple(map(Hook.from_json, row.hooks))
    except InvalidInput as error:
        raise ValueError(error.message) from None


def repository_values(repository: RepositoryRecord) -> dict[str, Any]:
    """A repository as column values."""
    return {**asdict(repository), "hooks": [hook.to_json() for hook in repository.hooks]}


_commit, _entry = maker(Commit), maker(Entry)
COMMIT_COLUMNS = [COMMIT.c[field.name] for field in fields(Commit)]
"""The commit table's columns in the order of the record's fields."""
_COMMIT_NAMES = tuple(column.name for column in COMMIT_COLUMNS)
_COMMIT_VALUES = attrgetter(*_COMMIT_NAMES)
PARENTS = cast(COMMIT.c.parents, Text)
"""The parents of a commit as text, for ``parents_of``."""
_ONE_OR_TWO = re.compile(r'\["([0-9a-f]{64})"(?:, ?"([0-9a-f]{64})")?\]')
_PARENTS = re.compile(r'\[(?:"[0-9a-f]{64}"(?:, ?"[0-9a-f]{64}")*)?\]')


@decoding(COMMIT, 0)
def commit_record(row: Sequence[Any]) -> Commit:
    """The commit of a row of ``COMMIT_COLUMNS``; by position, because logs read thousands of them."""
    commit_id, parents, committer, message, date, metadata, meta_range_id, generation, file, digest, expired = row
    check_texts(committer, message, meta_range_id, file, digest)
    return _commit(
        commit_id, text_list(parents), committer, message, number(date), text_map(metadata), meta_range_id,
        number(generation), file, digest, expired,
    )  # fmt: skip


def commit_values(repository_id: str, commit: Commit) -> dict[str, Any]:
    """A commit as column values."""
    return {
        **dict(zip(_COMMIT_NAMES, _COMMIT_VALUES(commit), strict=True)),
        "repository_id": repository_id,
        "parents": list(commit.parents),
        "first_parent": commit.parents[0] if commit.parents else None,
        "metadata": dict(commit.metadata),
    }


def parents_of(written: object) -> tuple[str, ...] | None:
    """The ids in the text of ``PARENTS``, which takes a tenth of parsing it as JSON. None where it has no ids."""
    if type(written) is not str:
        return None
    usual = _ONE_OR_TWO.fullmatch(written)
    if usual is not None:
        one, other = usual.groups()
        return (one,) if other is None else (one, other)
    if not _PARENTS.fullmatch(written):
        return None
    return tuple(written.split('"')[1::2])


@dataclass(frozen=True, slots=True)
class Publish:
    """The input of the publish transaction: what it checks, and what it writes.

    Attributes:
        expected_head: the head that the work was planned on.
        sealed_resets: the branch's ``sealed_resets`` when its sealed tokens were read.
        commit: what to insert (kept as it is when its id exists already) and to move the head to.
        consumed: the sealed tokens whose rows are in the commit. They leave the branch.
        live: commits that must be live when this is published: parents, and every commit whose ranges are reused.
        started: when the attempt began, by the database's clock.
        action: the verb, for the reflog and for protection.
        key: an idempotency key, and ``fingerprint`` what the call asked for.
        publisher: whose place in the branch's queue this is published at, if anybody's.
        intent: what the caller asked for, as it is kept with sealed tokens.
        merged: of a merge, the id of the commit that is merged. A squash has it not among its parents.
        untouched: of a merge, prefixes of required checks below which it changes nothing.
        passed: of a merge, commits and checks that have passed and that it rests on; ``despite`` those it goes around.
    """

    repository_id: str
    branch: str
    expected_head: str
    sealed_resets: int
    commit: Commit
    consumed: tuple[str, ...]
    live: frozenset[str]
    started: datetime
    action: str
    actor: str
    key: str | None = None
    fingerprint: str = ""
    publisher: str | None = None
    intent: Intent | None = None
    hooks: frozenset[Hook] = frozenset()
    merged: str | None = None
    untouched: frozenset[str] = frozenset()
    passed: tuple[tuple[str, str], ...] = ()
    despite: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Staged:
    """One staged row: an entry, or a tombstone when ``entry`` is None."""

    path: str
    entry: Entry | None


@decoding(STAGED, 1, 2)
def staged_record(row: Sequence[Any]) -> Staged:
    """The staged row of a row of its table, by position."""
    _, _, path, tombstone, address, checksum, size_bytes, mtime, content_type, metadata, *_ = row
    if tombstone:
        return Staged(path, None)
    check_texts(address, checksum, content_type)
    return Staged(
        path, _entry(path, address, checksum, number(size_bytes), number(mtime), content_type, metadata_map(metadata))
    )


def staged_values(repository_id: str, token: str, staged: Staged) -> dict[str, Any]:
    """A staged row as column values."""
    entry = staged.entry
    return {
        "repository_id": repository_id,
        "token": token,
        "path": staged.path,
        "tombstone": entry is None,
        "physical_address": entry and entry.physical_address,
        "checksum": entry and entry.checksum,
        "size_bytes": entry and entry.size_bytes,
        "mtime": entry and entry.mtime,
        "content_type": entry and entry.content_type,
        "metadata": entry and metadata_text(entry.metadata),
        "changes": 1,
    }


def metadata_text(metadata: Mapping[str, str]) -> str | None:
    """User metadata as the staging table keeps it: JSON, or null when there is none."""
    return json.dumps(dict(metadata), ensure_ascii=False) if metadata else None


def metadata_map(text: str | None) -> dict[str, str]:
    """User metadata from what the staging table keeps."""
    return {} if text is None else text_map(json.loads(text))


STAGED_VALUES = [column.name for column in STAGED.columns if column.name not in {"repository_id", "token", "changes"}]
"""The staging table's columns between the token and the count of changes, in order."""


def insert_staged(source: str) -> str:
    """The statement that inserts or replaces staged rows. ``source`` gives the table's columns in order."""
    names = ", ".join(column.name for column in STAGED.columns)
    new = {column.name: f"excluded.{column.name}" for column in STAGED.columns if not column.primary_key}
    new["changes"] = f"{STAGED.name}.changes + 1"
    changes = ", ".join(f"{name} = {value}" for name, value in new.items())
    return (
        f"INSERT INTO {STAGED.name} ({names}) {source} ON CONFLICT (repository_id, token, path) DO UPDATE SET {changes}"
    )
