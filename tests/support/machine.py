"""A model of a repository in plain dicts, for stateful tests: what lakeops must do, in the fewest words."""

from dataclasses import dataclass, field

Tree = dict[str, str]


@dataclass(frozen=True)
class ModelCommit:
    """A snapshot and the ids of its parents."""

    tree: Tree
    parents: tuple[str, ...]
    date: int = 0


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

    def best_common_ancestors(self, *groups: set[str]) -> set[str]:
        common = set.intersection(*(set.union(*map(self.ancestors, group)) for group in groups))
        return {one for one in common if not any(one != other and one in self.ancestors(other) for other in common)}

    def generation(self, commit_id: str) -> int:
        return 1 + max(map(self.generation, self.commits[commit_id].parents), default=0)

    def base(self, lefts: set[str], rights: set[str]) -> Tree:
        """The base of a merge: several best common ancestors are merged first, oldest first, over their own bases."""
        age = {one: (self.commits[one].date, self.generation(one), one) for one in self.commits}
        first, *others = sorted(self.best_common_ancestors(lefts, rights), key=age.__getitem__)
        tree, tips = self.tree(first), {first}
        for other in others:
            below = self.base(tips, {other})
            tips = tips | {other}
            tree, conflicts = merged(below, self.tree(other), tree, None)
            tree |= dict.fromkeys(conflicts, f"conflict of {sorted(tips)}")
        return tree

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


def foretold(before: Tree, source: Tree, after: Tree, conflicts: list[str]) -> dict[str, tuple[str, int]]:
    """Path to what a merge does there and the size of it, conflicts included."""
    kinds = {path: kind for path, kind in difference(before, after).items() if path not in conflicts}
    kinds |= dict.fromkeys(conflicts, "conflict")
    return {
        path: (
            kind,
            len(source[path] if kind == "conflict" and path in source else after.get(path, before.get(path, ""))),
        )
        for path, kind in kinds.items()
    }


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
