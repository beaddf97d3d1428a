"""A model of a repository in plain dicts, for stateful tests: what lakeops must do, in the fewest words."""

from __future__ import annotations

from dataclasses import dataclass, field

Tree = dict[str, str]


@dataclass(frozen=True)
class ModelCommit:
    """A snapshot and the ids of its parents."""

    tree: Tree
    parents: tuple[str, ...]


@dataclass
class ModelBranch:
    """A head, and what is staged over it: path to contents, None for a deletion."""

    head: str
    staged: dict[str, str | None] = field(default_factory=dict)


@dataclass
class Model:
    """Commits by id, branches, tags. Ids come from the implementation: the model only says what they hold."""

    commits: dict[str, ModelCommit] = field(default_factory=dict)
    branches: dict[str, ModelBranch] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def tree(self, commit_id: str) -> Tree:
        return self.commits[commit_id].tree

    def shown(self, branch: str) -> Tree:
        state = self.branches[branch]
        laid = {**self.tree(state.head), **state.staged}
        return {path: text for path, text in laid.items() if text is not None}

    def changes(self, branch: str) -> dict[str, str]:
        return difference(self.tree(self.branches[branch].head), self.shown(branch))

    def ancestors(self, commit_id: str) -> set[str]:
        found: set[str] = set()
        waiting = [commit_id]
        while waiting:
            current = waiting.pop()
            if current not in found:
                found.add(current)
                waiting.extend(self.commits[current].parents)
        return found

    def best_common_ancestors(self, left: str, right: str) -> set[str]:
        common = self.ancestors(left) & self.ancestors(right)
        return {one for one in common if not any(one != other and one in self.ancestors(other) for other in common)}

    def first_parents(self, commit_id: str) -> list[str]:
        chain = [commit_id]
        while self.commits[chain[-1]].parents:
            chain.append(self.commits[chain[-1]].parents[0])
        return chain


def difference(left: Tree, right: Tree) -> dict[str, str]:
    """Path to added, removed or changed, from left to right."""
    kinds = {}
    for path in left.keys() | right.keys():
        if path not in left:
            kinds[path] = "added"
        elif path not in right:
            kinds[path] = "removed"
        elif left[path] != right[path]:
            kinds[path] = "changed"
    return kinds


def merged(base: Tree, source: Tree, destination: Tree, strategy: str | None) -> tuple[Tree, list[str]]:
    """The three-way merge, key by key, and the conflicts that no strategy settled."""
    result: Tree = {}
    conflicts = []
    for path in base.keys() | source.keys() | destination.keys():
        b, s, d = base.get(path), source.get(path), destination.get(path)
        if s in (b, d):
            winner = d
        elif d == b:
            winner = s
        elif strategy is None:
            conflicts.append(path)
            continue
        else:
            winner = s if strategy == "source-wins" else d
        if winner is not None:
            result[path] = winner
    return result, sorted(conflicts)
