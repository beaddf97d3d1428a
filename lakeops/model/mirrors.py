"""What a mirror knows: where its source is, which refs it follows, and how far each of them is.

A *mirror* is a read-only repository whose objects are replicated from another one. Each ref that it follows has a
*promoted* commit, which is complete here and which readers see, and at most one *candidate*, which is being waited for
and is not replaced while it waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from lakeops.model.errors import NotAMirror
from lakeops.model.sources import SourceReference


class RefKind(StrEnum):
    """What a mirror follows: branches move, tags come and go."""

    BRANCH = "branch"
    TAG = "tag"


class RefName(NamedTuple):
    """A branch or tag of a mirror."""

    kind: RefKind
    name: str


@dataclass(frozen=True, slots=True)
class Mirror:
    """How a repository mirrors another one.

    Attributes:
        repository_id: the mirror's own name.
        source: where the source lake is.
        registration: the name under which the source knows this mirror; unique.
        branches: glob patterns of the branches that are followed.
        tags: the same of tags.
        reports: whether the mirror tells the source which commits it needs, so that garbage collection there keeps
            them; False when it may only read its source.
        check_imported: whether objects outside the namespace are looked for as well.
        created: Unix seconds.
        sequence: counts what the mirror's passes and candidates are numbered by.
        last_sync: when the source was last seen, Unix seconds.
        error: what the last pass ended with, None when it went well.
        promoted_writable: when the mirror became a writable repository, None while it is one that follows its source.
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
        """The mirror's configuration, for people and programs; nothing in it is secret."""
        return {
            "id": self.repository_id,
            "source": self.source.text,
            "branch_patterns": list(self.branches),
            "tag_patterns": list(self.tags),
            "reports": self.reports,
            "check_imported": self.check_imported,
            "creation_date": self.created,
            "last_sync": self.last_sync,
            "error": self.error,
            "promoted_writable": self.promoted_writable,
        }


@dataclass(frozen=True, slots=True)
class MirrorRef:
    """One ref of a mirror.

    Attributes:
        kind: branch or tag.
        name: its name, here and at the source.
        source_head: where it pointed when the source was last seen.
        promoted: the commit that readers see here; None before the first promotion.
        candidate: the commit that is waited for.
        ticket: the number of that wait; a new candidate gets a new one, so a slow pass cannot take one for another.
        noticed: since when ``source_head`` is not what is promoted, Unix seconds.
        missing_objects: how many objects the candidate lacked when it was last looked at, as far as could be told.
        missing_bytes: their size.
        checked: when that was, Unix seconds.
        error: why the candidate cannot be promoted although it arrived, if that is so.
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

    @property
    def ref(self) -> RefName:
        """Kind and name."""
        return RefName(self.kind, self.name)


@dataclass(frozen=True, slots=True)
class MirrorState:
    """A mirror and its refs at one instant: default branch first, then by kind and name."""

    mirror: Mirror
    refs: tuple[MirrorRef, ...] = ()

    @property
    def needs(self) -> frozenset[str]:
        """The commits that the source must keep for this mirror: those shown here and those waited for."""
        return frozenset(commit for ref in self.refs for commit in (ref.promoted, ref.candidate) if commit is not None)


@dataclass(frozen=True, slots=True)
class Registration:
    """A mirror as its source knows it: ``commits`` are kept for it since it said so at ``at`` (Unix seconds)."""

    id: str
    commits: frozenset[str]
    at: int

    def to_json(self) -> dict[str, Any]:
        """One row of ``mirror registrations``."""
        return {"id": self.id, "commits": sorted(self.commits), "last_report": self.at}


@dataclass(frozen=True, slots=True)
class RefStatus:
    """How far a ref of a mirror is.

    ``lag_commits`` counts first parents from the source's head to what is promoted; None when the source went back or
    elsewhere, or nothing is promoted yet. ``lag_seconds`` is the age of the oldest commit that readers here do not see
    yet: 0 when there is none. ``missing_objects`` and ``missing_bytes`` are what the last look found missing; what a
    file that has not arrived itself will ask for is not in them.
    """

    id: str
    kind: RefKind
    promoted: str | None
    candidate: str | None
    source_head: str
    lag_commits: int | None
    lag_seconds: int
    missing_objects: int
    missing_bytes: int
    last_check: int | None
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """One row of ``mirror status``."""
        return {
            "id": self.id,
            "promoted": self.promoted,
            "candidate": self.candidate,
            "source_head": self.source_head,
            "lag_commits": self.lag_commits,
            "lag_seconds": self.lag_seconds,
            "missing_objects": self.missing_objects,
            "missing_bytes": self.missing_bytes,
            "last_check": self.last_check,
            "error": self.error,
        }


@dataclass(frozen=True)
class MirrorStatus(Mapping[str, RefStatus]):
    """A mirror's branches by name, and its tags beside them in ``tags``."""

    mirror: Mirror
    branches: Mapping[str, RefStatus] = field(default_factory=dict)
    tags: Mapping[str, RefStatus] = field(default_factory=dict)

    def __getitem__(self, name: str) -> RefStatus:
        return self.branches[name]

    def __iter__(self) -> Any:  # noqa: ANN401 - an iterator of names
        return iter(self.branches)

    def __len__(self) -> int:
        return len(self.branches)

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
        }
