"""A store far away: what an attempt leaves there, and a cache on disk that never changes a result."""

import shutil
from random import Random

import pytest
from support.far import PATHS, SPLIT, Requests, objects, open_far, prepare, staged

from lakeops import Lake, Settings
from lakeops.model.errors import LakeopsError, StoreUnavailable
from lakeops.ops.fsck.findings import Severity
from lakeops.testing import Faults


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("far"))


def test_files_of_an_attempt_are_there_before_it_is_published(prepared):
    """Wherever one of the writes fails, nothing is published, and the next try publishes everything once."""
    staged(prepared, "failing", which=lambda _: range(0, PATHS, 200))
    faults = Faults()
    with open_far(prepared, Requests(), wrap=faults.around) as lake:
        branch = lake.repository("repo").branch("failing")
        head = branch.head
        faults.fail("put", at=None)
        with pytest.raises(StoreUnavailable):
            branch.commit("c")
        assert lake.repository("repo").branch("failing").head == head
        writes = faults.counts["put"]
        assert writes > 2
        for number in range(1, writes + 1):
            faults.revive()
            faults.fail("put", at=number)
            with pytest.raises(StoreUnavailable):
                branch.commit("c")
            assert lake.repository("repo").branch("failing").head == head
        faults.revive()
        published = branch.commit("c")
        assert len(list(lake.repository("repo").diff(head.id, published.id))) == len(range(0, PATHS, 200))


# --- a hostile cache ---
def spoil(folder, random):
    """Do to files of the cache what disks, other programs and other users may do."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in random.sample(files, len(files) // 2):
        data = path.read_bytes()
        place = random.randrange(len(data)) if data else 0
        other = random.choice(files)
        match random.randrange(6):
            case 0:
                path.write_bytes(data[:place])
            case 1:
                # An earlier round may have left the file empty: `flipped` is empty then, too.
                flipped = bytes(byte ^ 1 << random.randrange(8) for byte in data[place : place + 1])
                path.write_bytes(data[:place] + flipped + data[place + 1 :])
            case 2:
                path.unlink()
            case 3 if other.is_file():
                path.write_bytes(other.read_bytes())
            case 4:
                path.write_bytes(b"PAR1" + random.randbytes(len(data)))
            case _:
                path.unlink()
                path.mkdir()


def play(lake, random, rounds, *, before):
    """A history of many verbs, and everything that they answered."""
    repo = lake.create_repository("repo", split=SPLIT)
    main = repo.branch("main")
    main.stage(objects(range(800)))
    main.commit("base")
    told: list[object] = []

    def ask(verb):
        before()
        try:
            told.append(verb())
        except LakeopsError as error:
            told.append(type(error).__name__)

    for number in range(rounds):
        branch = repo.create_branch(f"b{number}", "main")
        for name in ("main", branch.id):
            rows = sorted(random.sample(range(1_000), random.choice([1, 5, 60])))
            repo.branch(name).stage(objects(rows, number * 2 + (name == "main")))
            ask(lambda name=name: repo.branch(name).commit("c").meta_range_id)
        ask(lambda branch=branch: [(one.type, one.path) for one in repo.compare("main", branch.id)])
        ask(lambda branch=branch: repo.merge(branch.id, "main", strategy="source-wins").summary)
        ask(lambda: main.head.meta_range_id)
        ask(lambda: [(one.type, one.path) for one in repo.diff("main~2", "main")])
        ask(lambda: main.revert("main", 1).meta_range_id)
        ask(lambda: [item.path for item in repo.ref("main@").list()])
        path = f"t/{random.randrange(1_000):06}"
        ask(lambda path=path: found.checksum if (found := repo.ref("main@").stat(path)) else None)
    return told


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_hostile_cache_changes_no_answer(tmp_path, seed):
    compare_with_none(tmp_path, seed, rounds=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 130))
def test_a_hostile_cache_changes_no_answer_of_long_histories(tmp_path, seed):
    compare_with_none(tmp_path, seed, rounds=10)


def compare_with_none(home, seed, *, rounds):
    plain = Settings.load(home=home / "plain", fsync=False, disk_cache_mb=0, engine="local")
    far = Settings.load(
        home=home / "far", fsync=False, disk_cache=home / "kept", disk_cache_mb=256, cache_mb=1, engine="local"
    )
    with Lake.open(settings=plain) as lake:
        expected = play(lake, Random(seed), rounds, before=lambda: None)
    damage = Random(seed)
    with open_far(far, Requests()) as lake:
        found = play(lake, Random(seed), rounds, before=lambda: spoil(home / "kept", damage))
    assert found == expected
    assert any(path.is_file() for path in (home / "kept").rglob("*"))


def test_what_is_gone_from_the_store_is_seen_by_those_who_look_there(prepared):
    """A cache says nothing of what is in the store: checks and mirrors ask the store itself."""
    with open_far(prepared, Requests()) as lake:
        repo = lake.repository("repo")
        assert repo.ref("main@").stat("t/000777") is not None
        files = sorted((prepared.home / "storage" / "repo" / "_lakefs" / "ranges").iterdir())
        away = prepared.home / "away"
        shutil.copytree(files[0].parent, away)
        for file in files:
            file.unlink()
        try:
            assert repo.ref("main@").stat("t/000777") is not None
            assert {finding.severity for finding in repo.fsck()} >= {Severity.ERROR}
        finally:
            for file in away.iterdir():
                shutil.copy(file, files[0].parent)
        assert Severity.ERROR not in {finding.severity for finding in repo.fsck()}
