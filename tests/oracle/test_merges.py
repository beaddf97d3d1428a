"""Random histories made through the verbs, replayed in real Git: merge bases, expressions, logs and merges agree."""

import random
from dataclasses import dataclass, field
from itertools import permutations

import pytest
from support.git_oracle import Node

from lakeops import Commit, Lake, Repository, Settings, Split
from lakeops.model.errors import MergeConflict
from lakeops.testing import ManualClock

PATHS = ["_SUCCESS", *(f"{letter}{digit}" for letter in "abc" for digit in range(4))]
"""No path is a folder of another: Git has folders, lakeops does not."""


@dataclass
class Story:
    """A repository with a random history, and the same history in Git."""

    repo: Repository
    commits: list[Commit] = field(default_factory=list)
    in_git: dict[str, str] = field(default_factory=dict)

    def tree(self, commit_id):
        handle = self.repo.ref(commit_id)
        return {item.path: handle.read(item.path).decode() for item in handle.list()}


def tell(repo, clock, rng, git):
    story = Story(repo)
    branches = ["main"]
    for _ in range(30):
        clock.advance(seconds=rng.choice((0, 1, 5)))
        branch = rng.choice(branches)
        match rng.randrange(4):
            case 0 if len(branches) < 5:
                branches.append(f"b{len(branches)}")
                repo.create_branch(branches[-1], source=branch)
            case 1:
                repo.merge(rng.choice(branches), branch, strategy=rng.choice(("source-wins", "dest-wins")))
            case _:
                handle = repo.branch(branch)
                for path in rng.sample(PATHS, rng.randint(1, 4)):
                    if rng.random() < 0.3 and handle.exists(path):
                        handle.delete(path)
                    else:
                        handle.put(path, str(rng.randrange(4)).encode())
                handle.commit(f"on {branch}", allow_empty=True)
    seen = {commit.id: commit for branch in branches for commit in repo.log(branch)}
    story.commits = sorted(seen.values(), key=lambda commit: commit.generation)
    place = {commit.id: number for number, commit in enumerate(story.commits)}
    start = story.commits[0].creation_date
    nodes = [
        Node(tuple(place[parent] for parent in commit.parents), commit.creation_date - start, story.tree(commit.id))
        for commit in story.commits
    ]
    story.in_git = dict(zip((commit.id for commit in story.commits), git.import_dag(nodes), strict=True))
    return story


@pytest.mark.parametrize("seed", range(3))
def test_a_history_is_what_git_makes_of_it(tmp_path, git, seed):
    rng = random.Random(seed)
    clock = ManualClock()
    settings = Settings.load(home=tmp_path, fsync=False, committer="oracle")
    with Lake.open(settings=settings, clock=clock) as lake:
        repo = lake.create_repository("repo", split=Split(1, 2, 4))
        story = tell(repo, clock, rng, git)
        in_lake = {theirs: ours for ours, theirs in story.in_git.items()}
        heads = {ref.id: ref.commit_id for ref in repo.branches()}
        assert len(heads) > 1

        for left, right in permutations(heads, 2):
            best = {in_lake[one] for one in git.merge_base_all(story.in_git[heads[left]], story.in_git[heads[right]])}
            assert repo.merge_base(left, right).id in best
        for name, head in heads.items():
            chain = [commit.id for commit in repo.log(name, first_parent=True)]
            assert chain == [in_lake[one] for one in git.first_parents(story.in_git[head])]
            steps = ["^", "~", "^2", "~3", "^^", "^2~1", "~1^2", "^0", "~0", "^3"]
            wanted = git.rev_parse([story.in_git[head] + step for step in steps])
            assert [commit_at(repo, name + step) for step in steps] == [in_lake.get(one or "") for one in wanted]

        cases = []
        for source, destination in permutations(heads.values(), 2):
            bases = git.merge_base_all(story.in_git[source], story.in_git[destination])
            # Several bases are for ``test_criss_cross``.
            if len(bases) == 1 and bases != {story.in_git[source]}:
                cases.append((destination, source))
        assert cases
        merges = git.merge_commits([tuple(map(story.in_git.__getitem__, case)) for case in cases])
        for number, ((destination, source), wanted) in enumerate(zip(cases, merges, strict=True)):
            name = f"merge{number}"
            repo.create_branch(name, source=destination)
            try:
                repo.merge(source, name)
                assert story.tree(name) == wanted.merged
                assert not wanted.conflicts
            except MergeConflict as conflict:
                assert set(conflict.conflicts) == wanted.conflicts
                assert conflict.conflicts == sorted(conflict.conflicts)


def commit_at(repo, expression):
    from lakeops.model.errors import RefNotFound

    try:
        return repo.ref(expression).commit.id
    except RefNotFound:
        return None
