"""Making a repository of the dump in a storage namespace, for a catalog that was lost.

Every record is checked like those of a mirror's source, and a dump is taken whole or not at all. The repository reads
and writes, and deletes nothing: the namespace belongs to the lost catalog until somebody says otherwise (``adopt``),
but for a replica, which belonged to nobody. And no mark is made until somebody has looked at what was committed after
the dump (``accept``).
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from hashlib import sha256
from tempfile import TemporaryFile
from typing import Any

from lakeops.catalog.backups import IN_FULL, DumpedRepository
from lakeops.catalog.open import Catalog
from lakeops.model import ids as texts
from lakeops.model import protection
from lakeops.model.clock import LONGEST, Ids
from lakeops.model.encoding import JsonRecord
from lakeops.model.errors import AlreadyExists, Corrupted, InvalidInput, NamespaceTaken, NotFound, RecordRefused
from lakeops.model.mirrors import RefName
from lakeops.model.names import check_repository, flaw
from lakeops.model.records import Commit, RefKind, RepositoryRecord, Split
from lakeops.model.sanitising import excerpt, one_line
from lakeops.ops.mirror import record_validation
from lakeops.ops.overlap import CLAIM_ID, check_apart, claim
from lakeops.ops.owner import first_owner
from lakeops.ops.refs import dump
from lakeops.ops.refs.dump import DumpFile, Manifest
from lakeops.ops.repository import exists
from lakeops.store import layout
from lakeops.store.base import ObjectStore
from lakeops.store.open import Stores, parse_location
from lakeops.store.reader import read_text

ORIGIN = "the dump"
_MAX_LINE = 8 << 20
_MAX_TEXT = 2 << 20
_MAX_NAME = 1024
_Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RestoreResult(JsonRecord):
    """A repository that was made of a dump of the time ``at`` (Unix seconds).

    ``expired`` of its commits expired, as garbage collection had taken their files after the dump, or replication has
    yet to bring them (``verify_history``). ``missing`` are branches and tags whose commits' files are not there.
    """

    repository: RepositoryRecord
    at: int
    commits: int
    expired: int
    missing: tuple[str, ...] = ()


def restore(
    catalog: Catalog, stores: Stores, name: str, storage_namespace: str, *, of: str | None, ids: Ids
) -> RestoreResult:
    """Make a repository of the dump in a storage namespace: see ``Lake.restore_repository``."""
    check_repository(name)
    namespace = parse_location(storage_namespace).url
    if exists(catalog, name):
        raise AlreadyExists(f"repository {name!r} exists in this catalog already; nothing was restored")
    check_apart(catalog, stores, namespace)
    store = stores.at(namespace)
    found, folder = _find(store, of)
    state = _State()
    for part in found.parts:
        for line in _read_part(store, folder, part):
            _take(state, line)
    restored = _checked(state, found, name, namespace)
    capabilities = {**restored.repository.capabilities, **asdict(store.probe())}
    is_replica = found.namespace != store.url
    if is_replica:
        capabilities[texts.SOURCE_ETAG] = texts.etags_are_md5(restored.repository.capabilities)
    repository = replace(restored.repository, capabilities=capabilities)
    claim(store, repository, catalog.repositories.identity())
    commits, gone = _present(store, restored.commits)
    live = {commit.id for commit in commits if not commit.expired}
    shown = {**restored.tags, **restored.branches}
    missing = tuple(sorted(ref for ref, commit_id in shown.items() if commit_id not in live))
    kept = {*shown.values()}  # what a ref shows never expires; fsck names what is not there
    commits = [replace(one, expired=False) if one.id in kept else one for one in commits]
    owner = None
    if is_replica:
        # A replica is nobody's yet. From here on nobody replicates over what is written there.
        with suppress(NamespaceTaken):  # somebody's by now
            owner = first_owner(catalog, store, name, ids)
    restored = replace(restored, repository=repository, commits=commits, unproved={*restored.unproved, *gone})
    catalog.backups.restore_repository(restored, ids.new, owner)
    return RestoreResult(repository, restored.at // 1_000_000, len(commits), len(gone), missing)


def _find(store: ObjectStore, of: str | None) -> tuple[Manifest, str]:
    """The dump in a namespace. Raises ``NotFound``, ``Corrupted``, ``InvalidInput``."""
    folder = layout.dump_folder(store.url) if of is None else layout.dump_folder(parse_location(of).url)
    text = read_text(store, folder + dump.MANIFEST, dump.MAX_BYTES)
    if text is None and of is None:
        others = dump.folders(store)
        if len(others) > 1:
            raise InvalidInput(
                f"{store.url} has {len(others)} dumps that replication brought along; say of which storage namespace "
                "(--of)"
            )
        folder = others[0] if others else folder
        text = read_text(store, folder + dump.MANIFEST, dump.MAX_BYTES)
    if text is None:
        raise NotFound(f"there is no dump in {store.url}; `lakeops refs dump` makes one while there is a catalog")
    found = dump.parse(text)
    if found is None:
        raise Corrupted(
            f"{store.url}/{folder}{dump.MANIFEST} is no manifest of a dump, or not as it was written; bring back an "
            "earlier version of the file with the store's tools"
        )
    return found, folder


def _read_part(store: ObjectStore, folder: str, part: DumpFile) -> Iterator[bytes]:
    """The lines of a part, which has the digest that the manifest says. Raises ``Corrupted``."""
    place = f"{store.url}/{folder}{part.file}"
    with TemporaryFile() as file:
        digest, size, count = sha256(), 0, 0
        try:
            with store.open(folder + part.file) as source:
                while size <= part.size_bytes and (piece := source.read(1 << 20)):
                    size += len(piece)
                    digest.update(piece)
                    file.write(piece)
        except NotFound:
            raise Corrupted(f"{place}, a part of the dump, is not there; nothing was restored") from None
        if size != part.size_bytes or digest.hexdigest() != part.sha256:
            raise Corrupted(f"{place} is not what was dumped: its digest differs; nothing was restored")
        file.seek(0)
        try:
            with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
                while line := unpacked.readline(_MAX_LINE + 1):
                    count += 1
                    if len(line) > _MAX_LINE or count > part.records:
                        raise Corrupted(f"{place} holds more than was dumped; nothing was restored")
                    yield line
        except (OSError, EOFError, zlib.error) as error:
            raise Corrupted(f"{place} cannot be unpacked: {one_line(error)}") from None
    if count != part.records:
        raise Corrupted(f"{place} holds {count} records, and {part.records} were dumped; nothing was restored")


@dataclass
class _State:
    """The records of the parts so far. ``later`` are the moves of parts behind the first one, which has all refs."""

    repository: _Row = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)
    unproved: set[str] = field(default_factory=set)
    refs: dict[str, dict[str, str]] = field(default_factory=lambda: {"branch": {}, "tag": {}})
    full: dict[str, list[_Row]] = field(default_factory=dict)
    checks: dict[str, dict[str, _Row]] = field(default_factory=dict)
    moves: dict[int, _Row] = field(default_factory=dict)
    later: dict[int, _Row] = field(default_factory=dict)
    parts: int = 0
    records: dict[int, _Row] = field(default_factory=dict)


def _text(value: object, at_most: int = _MAX_NAME) -> str:
    reason = flaw(value, at_most=at_most)
    if reason is not None or not isinstance(value, str):
        raise ValueError(f"a text {reason}")
    return value


def _number(value: object) -> int:
    if type(value) is not int or not texts.EARLIEST <= value <= texts.LATEST:
        raise ValueError(f"{value!r:.80} is no moment")
    return value


def _one_of(*known: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        if value not in {*known}:
            raise ValueError(f"{value!r:.80} is none of {', '.join(known)}")
        return value

    return check


def _or_none(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else check(value)


_long_text = partial(_text, at_most=_MAX_TEXT)
_actor = partial(_text, at_most=texts.MAX_COMMITTER_BYTES)
_sequence = record_validation.check_sequence

_COLUMNS: Mapping[str, Mapping[str, Callable[[Any], Any]]] = {
    "protection": {
        "kind": _one_of(protection.BRANCH_PROTECTION, protection.TAG_PROTECTION, protection.CHECK_PROTECTION),
        **dict.fromkeys(("pattern", "check_name", "prefix"), _text),
    },
    "rules": {"rules": lambda rules: record_validation.check_rules(rules, ())[0]},
    "mirror": {
        "mirror": _text,
        "commits": lambda commits: list(map(_text, commits)),
        "at": _number,
        "sequence": _or_none(_sequence),
    },
    "check": {
        **dict.fromkeys(("commit_id", "name", "said_by", "run"), _text),
        "state": _one_of(protection.PASSED, protection.FAILED),
        "at": _number,
        "findings": partial(_text, at_most=4 * protection.MAX_FINDINGS),
    },
    "move": {
        "kind": _one_of(*RefKind),
        **dict.fromkeys(("ref", "action", "actor"), _actor),
        **dict.fromkeys(("old", "new"), lambda commit_id: commit_id),
        "at": _number,
    },
    "record": {
        **dict.fromkeys(("action", "kind", "ref", "claimed", "login"), _long_text),
        **dict.fromkeys(("before", "after", "person"), _or_none(_long_text)),
        "recorded": _number,
    },
}
"""Columns of the rows of each kind, each with what checks its value."""


def _take(state: _State, line: bytes) -> None:
    """Add the record of one line to the state. Raises ``RecordRefused``."""
    try:
        kind, row = json.loads(line)
        values = {name: check(row[name]) for name, check in _COLUMNS.get(kind, {}).items()}
        match kind:
            case "repository":
                state.repository = row
                state.parts += 1
                state.full = {one: [] for one, _ in IN_FULL}
            case "commit":
                commit = _commit(row)
                state.commits[commit.id] = commit
                state.unproved |= {commit.id} if row.get("unproved") is True else set()
            case "branch" | "tag":
                name = _text(row["name"])
                _check_ref(kind, name, row["commit_id"])
                state.refs[kind][name] = row["commit_id"]
            case "check":
                state.checks.setdefault(values["commit_id"], {})[values["name"]] = values
            case "no-checks":
                state.checks.pop(_text(row["commit_id"]), None)
            case "move":
                for end in (values["old"], values["new"]):
                    if end is not None:
                        _check_ref(values["kind"], values["ref"], end)
                state.moves[_sequence(row["sequence"])] = values
                if state.parts > 1:
                    state.later[row["sequence"]] = values
            case "record":
                state.records[_sequence(row["sequence"])] = values
            case _:
                state.full[kind].append(values)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, InvalidInput) as error:
        raise RecordRefused(f"a record of {ORIGIN} is refused: {one_line(error, 200)}; nothing was restored") from None


def _check_ref(kind: str, name: str, at: str) -> None:
    reason = record_validation.ref_flaw(RefName(RefKind(kind), name), at)
    if reason is not None:
        raise ValueError(reason)


def _commit(row: _Row) -> Commit:
    values = {one.name: row[one.name] for one in fields(Commit)}
    if type(values["expired"]) is not bool or type(values["parents"]) is not list:
        raise TypeError("a commit has values of other types")
    commit = record_validation.check_commit(Commit(**{**values, "parents": tuple(values["parents"])}), ORIGIN)
    if commit.is_pruned:
        raise ValueError("a commit has no generation")
    return commit


def _checked(state: _State, found: Manifest, name: str, namespace: str) -> DumpedRepository:
    """The repository as the parts have it together. Raises ``RecordRefused``."""
    row = state.repository
    try:
        repository = record_validation.check_repository(
            RepositoryRecord(
                name,
                namespace,
                _text(row["default_branch"]),
                _number(row["creation_date"]),
                bool(row["read_only"]),
                Split(**row["split"]),
                {**row["capabilities"], CLAIM_ID: row["capabilities"].get(CLAIM_ID)},
                tuple(map(protection.Hook.from_json, row["hooks"])),
                texts.check_metadata(row["metadata"], at_most=texts.COMMIT_METADATA_BYTES),
            )
        )
        grace, pruned = row["grace_seconds"], row["pruned"]
        if type(grace) is not int or not 0 <= grace <= LONGEST:
            raise ValueError(f"{grace!r:.80} seconds are no grace period")
        pruned = None if pruned is None else record_validation.check_sequence(pruned)
    except (ValueError, KeyError, TypeError, AttributeError, InvalidInput) as error:
        raise RecordRefused(f"the repository's record in {ORIGIN} is refused: {error!s:.200}") from None
    # Refs are where the whole part says, moved on by the moves that came after it. The moves of the whole part are no
    # more than its log, and the end of a line may have been pruned from that.
    for number in sorted(state.later):
        move = state.later[number]
        state.refs[move["kind"]].pop(move["ref"], None)
        if move["new"] is not None:
            state.refs[move["kind"]][move["ref"]] = move["new"]
    branches, tags = state.refs["branch"], state.refs["tag"]
    commits = sorted(state.commits.values(), key=lambda one: (one.generation, one.id))
    _check_history(commits, state.commits, pruned)
    for ref, at in (*branches.items(), *tags.items()):
        if at not in state.commits:
            raise RecordRefused(f"{excerpt(ref)} of {ORIGIN} points to a commit that it lacks; nothing was restored")
    if repository.default_branch not in branches:
        raise RecordRefused(f"{ORIGIN} lacks the default branch; nothing was restored")
    return DumpedRepository(
        repository,
        found.cut.at,
        grace,
        pruned,
        commits,
        branches,
        tags,
        protections=state.full["protection"],
        checks=[each for by_name in state.checks.values() for each in by_name.values()],
        rules=state.full["rules"][:1],
        mirrors=state.full["mirror"],
        moves=[state.moves[number] for number in sorted(state.moves)],
        records=[state.records[number] for number in sorted(state.records)],
        unproved=state.unproved,
    )


def _check_history(commits: Sequence[Commit], known: Mapping[str, Commit], pruned: int | None) -> None:
    """Parents are there, or were pruned. Generations follow from them. Raises ``RecordRefused``."""
    for commit in commits:
        gone = [parent for parent in commit.parents if parent not in known]
        if gone and (pruned is None or (len(gone) == len(commit.parents) and commit.generation - 1 > pruned)):
            raise RecordRefused(
                f"commit {commit.id[:16]} of {ORIGIN} is refused: {ORIGIN} lacks its parent {gone[0][:16]}; "
                "nothing was restored"
            )
    record_validation.check_generations(commits, known, ORIGIN)


def _present(store: ObjectStore, commits: Sequence[Commit]) -> tuple[list[Commit], set[str]]:
    """The commits, expired where their metarange is not there; and the ids of those that this concerns.

    A sweep deletes metaranges before anything else. So what it took after the dump was made is known by them.
    """
    there = {item.key.removeprefix(layout.METARANGES) for item in store.list(layout.METARANGES)}
    gone = {one.id for one in commits if not one.expired and one.meta_range_file and one.meta_range_file not in there}
    return [replace(one, expired=True) if one.id in gone else one for one in commits], gone
