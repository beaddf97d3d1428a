"""Records of mirrors: their source, the refs that they follow, and the progress of each ref.

A *mirror* is a read-only repository whose objects are replicated from another one. Each ref that it follows has a
*promoted* commit, which is complete here and which readers see, and at most one *candidate*, which is being waited for
and is not replaced while it waits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from lakeops.model.encoding import JsonRecord
from lakeops.model.errors import InvalidInput, LakeopsError, NotAMirror
from lakeops.model.names import check_repository, flaw
from lakeops.model.records import RefKind

_MAX_BYTES = 4096
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_OPTIONS = {"password", "sslpassword"}
_HOW = "write HOME#REPO, SETTINGS.toml#REPO, postgresql+psycopg://user@host/db#REPO or env:VARIABLE#REPO"


class SourceKind(StrEnum):
    """The kind of place that leads to the source lake."""

    HOME = "home"
    SETTINGS = "settings"
    DATABASE = "database"
    ENVIRONMENT = "env"
    CONNECTION = "airflow"


@dataclass(frozen=True, slots=True)
class SourceReference(JsonRecord):
    """A repository of another lake.

    Attributes:
        kind: the kind of ``place``.
        place: a directory, a settings file, a database URL without a password, a variable's or a connection's name.
        repository: the repository there.
        s3_endpoint_url: the S3-compatible server of its storage, where it is not the one that settings name.
        s3_region: its region.
    """

    kind: SourceKind
    place: str
    repository: str
    s3_endpoint_url: str | None = None
    s3_region: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether the source's catalog is a file of this machine, so that its files are those that it names."""
        return self.kind is SourceKind.HOME or (self.kind is SourceKind.DATABASE and self.place.startswith("sqlite"))

    @property
    def text(self) -> str:
        """The reference as it is written."""
        named = self.kind in {SourceKind.ENVIRONMENT, SourceKind.CONNECTION}
        return f"{self.kind}:{self.place}#{self.repository}" if named else f"{self.place}#{self.repository}"

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> SourceReference:
        """Read a reference that ``to_json`` wrote."""
        return cls(**{**values, "kind": SourceKind(values["kind"])})


def parse_source(text: str, default: str) -> SourceReference:
    """Read a reference from a text, such as ``HOME#REPO``. ``default`` is the repository where the text names none.

    Raises ``InvalidInput`` for a text that leads to no lake, or holds a password, which must not be stored.
    """
    unprintable = None if str(text).isprintable() else "has a character that cannot be printed"
    broken = flaw(text, at_least=1, at_most=_MAX_BYTES) or unprintable
    if broken is not None:
        raise InvalidInput(f"the mirror's source {broken}; {_HOW}")
    place, mark, repository = text.rpartition("#")
    if not mark:
        place, repository = text, default
    check_repository(repository)
    return SourceReference(*_parse_place(place), repository)


def check_no_password(url: str) -> str:
    """Return a database URL without a password. Raises ``InvalidInput``, whose message repeats nothing of the URL."""
    try:
        parts = urlsplit(url)
        options = {name.lower() for name, _ in parse_qsl(parts.query)}
        secret = parts.password is not None or bool(options & _SECRET_OPTIONS) or parts.netloc.count("@") > 1
    except ValueError:
        secret = True
    if secret:
        raise InvalidInput(
            "the source's database URL holds a password, which is never stored: leave it out and keep it in ~/.pgpass, "
            "or put the whole URL into an environment variable and give env:VARIABLE#REPO, or name a settings file"
        )
    return url


def _parse_place(text: str) -> tuple[SourceKind, str]:
    scheme, colon, rest = text.partition(":")
    if colon and scheme == SourceKind.ENVIRONMENT:
        if not _VARIABLE.fullmatch(rest):
            raise InvalidInput(f"env: takes the name of an environment variable; {_HOW}")
        return SourceKind.ENVIRONMENT, rest
    if colon and scheme == SourceKind.CONNECTION:
        if not rest or rest.strip() != rest:
            raise InvalidInput("airflow: takes the id of an Airflow connection, for instance airflow:source_lake#REPO")
        return SourceKind.CONNECTION, rest
    if text.startswith("file://"):
        host, slash, path = rest.removeprefix("//").partition("/")
        if host not in {"", "localhost"} or not slash:
            raise InvalidInput(f"a source's file:// URL names a directory of this machine; {_HOW}")
        return _local(unquote("/" + path))
    if "://" in text:
        if scheme.partition("+")[0] not in {"postgresql", "postgres", "sqlite"}:
            raise InvalidInput(f"a mirror's source is a lake, not a location of objects; {_HOW}")
        return SourceKind.DATABASE, check_no_password(text)
    if not text:
        raise InvalidInput(f"the mirror's source names no lake; {_HOW}")
    return _local(text)


def _local(text: str) -> tuple[SourceKind, str]:
    path = Path(text).expanduser().absolute()
    return (SourceKind.SETTINGS if path.suffix == ".toml" else SourceKind.HOME), str(path)


STALL_TIMEOUT = 15 * 60
"""For how many seconds nothing of a candidate may arrive before a newer one is looked at."""

LONGEST_STALL_TIMEOUT = 366 * 86_400

HEADS = 16
"""How many heads that the source showed during a wait are remembered."""

SAMPLE = 5
"""How many of the things that a candidate lacks are remembered by name."""


def check_stall_timeout(seconds: int) -> int:
    """Return a stall timeout of 1 second to 366 days. Raises ``InvalidInput`` for another one."""
    if not 1 <= seconds <= LONGEST_STALL_TIMEOUT:
        raise InvalidInput(f"a mirror's stall timeout is between 1 second and {LONGEST_STALL_TIMEOUT // 86_400} days")
    return seconds


class RefName(NamedTuple):
    """A branch or tag of a mirror."""

    kind: RefKind
    name: str


class Remaining(NamedTuple):
    """How much of a candidate has not arrived, as far as can be told.

    A metarange that is missing says nothing of ranges, and a range nothing of objects. So metaranges count most, and
    whatever arrives makes the tuple smaller.
    """

    metaranges: int = 0
    ranges: int = 0
    objects: int = 0


@dataclass(frozen=True, slots=True)
class Missing:
    """A file that a candidate lacks: its address, a path of the repository that needs it, and what it is to be."""

    address: str
    path: str = ""
    size_bytes: int = 0
    checksum: str = ""

    def to_json(self) -> dict[str, Any]:
        """One item of a ref's ``missing``."""
        return {"path": self.path or None, "physical_address": self.address, "size_bytes": self.size_bytes}


Pending = Mapping[str, str | None]
"""Range files that have arrived at a mirror, by name: JSON text that says which of their objects have not, or None."""


@dataclass(frozen=True)
class Inspection:
    """The result of an inspection of a candidate.

    ``arrived`` has range files that need not be inspected again, and what they lacked. ``missing_objects`` counts what
    is not there, as far as could be told; ``missing`` names some; ``remaining`` compares inspections. ``error`` is what
    arrived and is wrong.
    """

    arrived: Pending = field(default_factory=dict)
    missing_objects: int = 0
    missing_bytes: int = 0
    remaining: Remaining = field(default_factory=Remaining)
    missing: tuple[Missing, ...] = ()
    error: LakeopsError | None = None

    @property
    def complete(self) -> bool:
        """Whether everything is there, and is what it should be."""
        return not self.missing_objects and self.error is None


@dataclass(frozen=True, slots=True)
class Wait:
    """The wait for a candidate.

    Attributes:
        since: when it began, Unix seconds.
        progressed: when something of the candidate arrived last, or the wait began.
        best: the least that was remaining at any look. None before the first.
        missing: some of the files that it lacked at the last look.
        fallbacks: how many candidates a newer head replaced since the last promotion, as nothing of them arrived.
        heads: commits that the source showed since, oldest first. Newer ones and a few old ones.
    """

    since: int
    progressed: int
    best: Remaining | None = None
    missing: tuple[Missing, ...] = ()
    fallbacks: int = 0
    heads: tuple[str, ...] = ()

    def passed(self, head: str) -> Wait:
        """The wait once the source has gone on from a head. Of many heads every second of the older half is dropped."""
        heads = (*(one for one in self.heads if one != head), head)
        if len(heads) > HEADS:
            heads = (*heads[: HEADS // 2 : 2], *heads[HEADS // 2 :])
        return replace(self, heads=heads)

    def after(self, commit_id: str) -> tuple[str, ...]:
        """The heads that the source showed after one of them; all of them after the candidate."""
        return self.heads[self.heads.index(commit_id) + 1 :] if commit_id in self.heads else self.heads

    def seen(self, now: int, found: Inspection) -> Wait:
        """The wait after an inspection."""
        best = found.remaining if self.best is None else min(self.best, found.remaining)
        progressed = self.progressed if self.best in (None, best) else now
        return replace(self, progressed=progressed, best=best, missing=found.missing[:SAMPLE])

    def to_json(self) -> dict[str, Any]:
        """The wait as plain data, for ``from_json``."""
        return {**asdict(self), "best": None if self.best is None else [*self.best]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Wait:
        """Read a wait that ``to_json`` wrote."""
        best = None if data["best"] is None else Remaining(*data["best"])
        missing = tuple(Missing(**one) for one in data["missing"])
        return cls(**{**data, "best": best, "missing": missing, "heads": tuple(data["heads"])})


@dataclass(frozen=True, slots=True)
class MirrorRecord:
    """The configuration of a mirror, and how its last pass ended.

    Attributes:
        repository_id: the mirror's own name.
        source: where the source lake is.
        registration: the name under which the source knows this mirror. Unique.
        branches: glob patterns of the branches that are followed.
        tags: glob patterns of the tags that are followed.
        reports: whether the mirror tells the source which commits it needs, so that garbage collection there keeps
            them. False when it may only read its source.
        check_imported: whether objects outside the namespace are looked for as well.
        created: Unix seconds.
        sequence: the counter that numbers the mirror's passes and candidates.
        last_sync: when the source was last seen, Unix seconds.
        error: the error of the last pass. None when it went well.
        promoted_writable: when the mirror became a writable repository, None while it is one that follows its source.
        stall_timeout: for how many seconds nothing of a candidate may arrive before a newer one is looked at.
        kept: the commits that the source has agreed to keep for this mirror and for the mirrors of it.
        rules: the source's retention rules as they were last seen. They hold here from a fail-over on.
        protections: its patterns of protected branches as they were last seen.
        refusals: how many records of the source were refused at the last pass, because they cannot be so.
        refused: the reasons for some of them.
    """

    repository_id: str
    source: SourceReference
    registration: str
    branches: tuple[str, ...] = ("*",)
    tags: tuple[str, ...] = ("*",)
    reports: bool = True
    check_imported: bool = True
    created: int = 0
    sequence: int = 0
    last_sync: int | None = None
    error: str | None = None
    promoted_writable: int | None = None
    stall_timeout: int = STALL_TIMEOUT
    kept: tuple[str, ...] = ()
    rules: str | None = None
    protections: tuple[str, ...] = ()
    refusals: int = 0
    refused: tuple[str, ...] = ()

    def follows(self, kind: RefKind, name: str) -> bool:
        """Whether a ref of the source is mirrored."""
        patterns = self.branches if kind is RefKind.BRANCH else self.tags
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    def check_following(self) -> None:
        """Refuse a mirror that is a writable repository by now. Raises ``NotAMirror``."""
        if self.promoted_writable is not None:
            raise NotAMirror(
                f"repository {self.repository_id!r} was promoted to a writable repository and follows no source any "
                "more; to mirror it in turn, create a mirror of it elsewhere"
            )

    def to_json(self) -> dict[str, Any]:
        """The mirror's configuration, for people and programs. Nothing in it is secret."""
        follows = {"branch_patterns": [*self.branches], "tag_patterns": [*self.tags], "reports": self.reports}
        made = {"check_imported": self.check_imported, "creation_date": self.created}
        state = {name: getattr(self, name) for name in ("last_sync", "error", "promoted_writable", "stall_timeout")}
        refused = {"refused_records": self.refusals, "refused": [*self.refused]}
        return {"id": self.repository_id, "source": self.source.text, **follows, **made, **state, **refused}


@dataclass(frozen=True, slots=True)
class MirrorRef:
    """One ref of a mirror.

    Attributes:
        kind: branch or tag.
        name: its name, here and at the source.
        source_head: where it pointed when the source was last seen.
        promoted: the commit that readers see here. None before the first promotion.
        candidate: the commit that is waited for.
        ticket: the number of that wait. A new candidate gets a new one, so a slow pass cannot take one for another.
        noticed: since when ``source_head`` is not the promoted commit, Unix seconds.
        missing_objects: how many objects the candidate lacked at the last look, as far as could be told.
        missing_bytes: their size.
        checked: when that was, Unix seconds.
        error: why the candidate cannot be promoted although it arrived, if that is so.
        wait: the wait for the candidate. None when there is none.
    """

    kind: RefKind
    name: str
    source_head: str
    promoted: str | None = None
    candidate: str | None = None
    ticket: int = 0
    noticed: int | None = None
    missing_objects: int = 0
    missing_bytes: int = 0
    checked: int | None = None
    error: str | None = None
    wait: Wait | None = None

    @property
    def ref(self) -> RefName:
        """The ref that this is about, as kind and name."""
        return RefName(self.kind, self.name)


@dataclass(frozen=True, slots=True)
class MirrorState:
    """A mirror and its refs at one instant: default branch first, then by kind and name.

    ``mirrors`` are those that follow this mirror in turn. ``metadata`` is the mirror repository's.
    """

    mirror: MirrorRecord
    refs: tuple[MirrorRef, ...] = ()
    mirrors: tuple[Registration, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def needs(self) -> frozenset[str]:
        """The commits that the source must keep: promoted ones, candidates, and those that mirrors of this one need."""
        own = frozenset(commit for ref in self.refs for commit in (ref.promoted, ref.candidate) if commit is not None)
        return own.union(*(mirror.commits for mirror in self.mirrors))


@dataclass(frozen=True, slots=True)
class Registration:
    """A mirror as its source knows it: ``commits`` are kept for it since it said so at ``at`` (Unix seconds).

    ``sequence`` is the number of that report.
    """

    id: str
    commits: frozenset[str]
    at: int
    sequence: int = 0

    def to_json(self) -> dict[str, Any]:
        """One row of ``mirror registrations``."""
        return {"id": self.id, "commits": sorted(self.commits), "last_report": self.at}


@dataclass(frozen=True, slots=True)
class RefStatus(MirrorRef):
    """A ref of a mirror, and its progress.

    ``lag_commits`` counts first parents from the source's head to what is promoted. None when the source went back or
    elsewhere, or nothing is promoted yet. ``lag_seconds`` is the age of the oldest commit that readers here do not see
    yet: 0 when there is none. ``missing_objects`` and ``missing_bytes`` are those that the last pass found missing,
    without those that a missing file will ask for.
    """

    lag_commits: int | None = None
    lag_seconds: int = 0
    stalled: bool = False

    @property
    def id(self) -> str:
        """The mirror's name, under the key that all JSON has for names."""
        return self.name

    @property
    def last_pass(self) -> int | None:
        """When a pass last looked for its files, Unix seconds."""
        return self.checked

    @property
    def awaited(self) -> str:
        """The candidate in words: the commit, since when nothing arrived, and some of the missing files."""
        if self.wait is None or self.candidate is None:
            return "nothing"
        since = datetime.fromtimestamp(self.wait.progressed, UTC)
        missing = ", ".join(f"{one.path!r} ({one.address})" if one.path else one.address for one in self.wait.missing)
        return (
            f"commit {self.candidate[:16]}, of which nothing has arrived since {since:%Y-%m-%d %H:%M:%S} UTC; it lacks "
            f"{self.missing_objects:,} objects{f', such as {missing}' if missing else ''}"
        )

    def to_json(self) -> dict[str, Any]:
        """One row of ``mirror status``."""
        seen = ("id", "promoted", "candidate", "source_head", "lag_commits", "lag_seconds", "missing_objects")
        return {
            **{name: getattr(self, name) for name in (*seen, "missing_bytes", "last_pass", "error")},
            "waiting_since": None if self.wait is None else self.wait.since,
            "last_arrival": None if self.wait is None else self.wait.progressed,
            "missing": [] if self.wait is None else [one.to_json() for one in self.wait.missing],
            "stalled": self.stalled,
        }


@dataclass(frozen=True)
class MirrorStatus(Mapping[str, RefStatus]):
    """A mirror's branches by name, its tags beside them in ``tags``, and the mirrors of it in ``mirrors``."""

    mirror: MirrorRecord
    branches: Mapping[str, RefStatus] = field(default_factory=dict)
    tags: Mapping[str, RefStatus] = field(default_factory=dict)
    mirrors: tuple[Registration, ...] = ()

    def __getitem__(self, name: str) -> RefStatus:
        return self.branches[name]

    def __iter__(self) -> Any:  # noqa: ANN401 - an iterator of names
        return iter(self.branches)

    def __len__(self) -> int:
        return len(self.branches)

    def problems(self, now: int, *, max_lag: int | None = None) -> list[str]:
        """Problems that somebody should look at, in words. None when the mirror does as it should.

        Args:
            now: Unix seconds.
            max_lag: how many seconds a ref may be behind, and the source may not have been seen.
        """
        found = []
        seen = self.mirror.last_sync if self.mirror.last_sync is not None else self.mirror.created
        if max_lag is not None and self.mirror.promoted_writable is None and now - seen > max_lag:
            found.append(f"the source was last seen {now - seen:,} s ago")
        found += [f"the source gave a record that is refused: {reason}" for reason in self.mirror.refused]
        if self.mirror.refusals > len(self.mirror.refused):
            found.append(f"the source gave {self.mirror.refusals - len(self.mirror.refused):,} more such records")
        for ref in (*self.branches.values(), *self.tags.values()):
            name = f"{ref.kind} {ref.id!r}"
            if ref.error is not None:
                found.append(f"{name} cannot be shown: {ref.error}")
            if ref.stalled and ref.wait is not None:
                found.append(f"{name} waits for {ref.awaited}")
            if max_lag is not None and ref.lag_seconds > max_lag:
                found.append(f"{name} is {ref.lag_seconds:,} s behind")
        return found

    @property
    def caught_up(self) -> bool:
        """Whether every ref shows what the source showed when it was last seen."""
        return all(ref.promoted == ref.source_head for ref in (*self.branches.values(), *self.tags.values()))

    def to_json(self) -> dict[str, Any]:
        """The mirror, its branches and its tags."""
        return {
            **self.mirror.to_json(),
            "caught_up": self.caught_up,
            "branches": [ref.to_json() for ref in self.branches.values()],
            "tags": [ref.to_json() for ref in self.tags.values()],
            "mirrors": [mirror.to_json() for mirror in self.mirrors],
        }
