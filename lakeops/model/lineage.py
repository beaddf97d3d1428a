"""The shape of a repository's history: what deciding about commits needs of them, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Node(NamedTuple):
    """A commit in the graph.

    ``expired`` says that it is gone for good. ``pending`` says that a mark expired it and can still be restored.
    """

    id: str
    parents: tuple[str, ...]
    creation_date: int
    generation: int
    expired: bool = False
    pending: bool = False


class RefMove(NamedTuple):
    """One move of a ref: the commits before and after, and the parents of the one after."""

    old: str | None
    new: str | None
    parents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lineage:
    """What decides which commits of a repository live, at one instant.

    Attributes:
        branches: names of branches, to the commits that they point to.
        tags: the same of tags.
        commits: every commit by its id, expired ones included.
        mirrors: registered mirrors, to the commits that they need.
        left: commits that a ref pointed to before it moved or went, to when that last happened (Unix seconds).
        deleted: the last commits of deleted branches, among those of ``left``.
        rules: the retention rules as they were set.
    """

    branches: Mapping[str, str]
    tags: Mapping[str, str]
    commits: Mapping[str, Node]
    mirrors: Mapping[str, frozenset[str]] = field(default_factory=dict)
    left: Mapping[str, int] = field(default_factory=dict)
    deleted: frozenset[str] = frozenset()
    rules: str | None = None
