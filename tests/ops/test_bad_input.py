"""Bad input and bad days: a clear error of the right kind, and nothing is lost."""

import io
import re
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.catalogs import expire_commits
from support.errors import raising
from support.scenes import open_faulty

from lakeops import Lake, Settings, Split
from lakeops.model import errors
from lakeops.model.errors import InvalidInput, ObjectNotFound
from lakeops.model.ids import make_commit
from lakeops.model.names import LakeUri
from lakeops.ops.files import translated
from lakeops.ranges.metarange import EMPTY_METARANGE_ID
from lakeops.store.local import translated as translated_by_the_store
from lakeops.testing import Faults, ManualClock


def state(repo):
    """Everything that must stay as it is."""
    return (
        [ref.to_json() for ref in repo.branches()],
        [ref.to_json() for ref in repo.tags()],
        [(item.path, item.checksum) for item in repo.ref("main").list()],
        [change.to_json() for change in repo.branch("main").uncommitted()],
    )


def seed(repo):
    main = repo.branch("main")
    main.put("a", b"1")
    main.put("b", b"2")
    main.commit("on main")
    dev = repo.create_branch("dev")
    dev.put("a", b"3")
    dev.commit("on dev")
    repo.create_tag("v1", "main")
    return repo


@pytest.fixture
def seeded(repo):
    return seed(repo)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One repository for all calls that change nothing."""
    settings = Settings.load(home=tmp_path_factory.mktemp("shared"), fsync=False, committer="tester")
    with Lake.open(settings=settings, clock=ManualClock()) as lake:
        yield seed(lake.create_repository("repo", split=Split(2, 4, 8)))


BAD_CALLS = [
    (lambda repo: repo.ref("nothing").commit, errors.RefNotFound, "nothing"),
    (lambda repo: repo.ref("main~99").commit, errors.RefNotFound, "first commit"),
    (lambda repo: repo.ref("main^2").commit, errors.RefNotFound, "parent 2"),
    (lambda repo: repo.ref("main^{tree}").commit, "invalid_ref", "tree"),
    (lambda repo: repo.ref("").commit, "invalid_ref", "empty"),
    (lambda repo: repo.ref("a/b").commit, "invalid_ref", "a/b"),
    (lambda repo: repo.create_branch("a b"), "invalid_name", "a b"),
    (lambda repo: repo.create_branch("-x"), "invalid_name", "-x"),
    (lambda repo: repo.create_branch("x/y"), "invalid_name", "x/y"),
    (lambda repo: repo.create_branch("dev"), errors.AlreadyExists, "dev"),
    (lambda repo: repo.create_branch("new", source="gone"), errors.RefNotFound, "gone"),
    (lambda repo: repo.create_tag("v1", "main"), errors.AlreadyExists, "v1"),
    (lambda repo: repo.create_tag("v..2", "main"), "invalid_name", "v..2"),
    (lambda repo: repo.delete_tag("v9"), errors.RefNotFound, "v9"),
    (lambda repo: repo.delete_branch("main"), "default_branch", "main"),
    (lambda repo: repo.delete_branch("gone"), errors.RefNotFound, "gone"),
    (lambda repo: repo.branch("v1"), errors.RefNotFound, "v1"),
    (lambda repo: repo.branch("main~1"), "invalid_ref", "main~1"),
    (lambda repo: repo.branch("main").put("", b""), errors.InvalidPath, "empty"),
    (lambda repo: repo.branch("main").put("é" * 513, b""), errors.InvalidPath, "1024"),
    (lambda repo: repo.branch("main").put("a\0b", b""), errors.InvalidPath, "NUL"),
    (lambda repo: repo.branch("main").put("\ud800", b""), errors.InvalidPath, "character"),
    (lambda repo: repo.branch("main").put("p", b"", metadata={"k": 1}), errors.InvalidInput, "k"),
    (lambda repo: repo.branch("main").put("p", b"", content_type="a\r\nb"), errors.InvalidInput, "content type"),
    (lambda repo: repo.branch("main").copy("a", "c", ref=""), "invalid_ref", "empty"),
    (lambda repo: repo.branch("main").delete("gone"), errors.ObjectNotFound, "gone"),
    (lambda repo: repo.ref("main").read("gone"), errors.ObjectNotFound, "gone"),
    (lambda repo: repo.branch("main").commit("nothing to do"), errors.NoChanges, "main"),
    (lambda repo: repo.branch("main").commit(" "), errors.InvalidInput, "message"),
    (lambda repo: repo.merge("dev", "gone"), errors.RefNotFound, "gone"),
    (lambda repo: repo.merge("dev", "main~1"), "invalid_ref", "main~1"),
    (lambda repo: repo.merge("dev", "main", strategy="mine"), errors.InvalidInput, "mine"),
    (lambda repo: repo.branch("main").revert("main~1"), "invalid_ref", "initial"),
    (lambda repo: list(repo.branch("main").revert_changes("main~1")), "invalid_ref", "initial commit"),
    (lambda repo: repo.cherry_pick("dev", "main", parent_number=2), "invalid_ref", "parent 2"),
    (lambda repo: repo.branch("main").reset(prefix="a", path="a"), errors.InvalidInput, "both"),
    (lambda repo: repo.protect(""), "invalid_name", "glob"),
    (lambda repo: repo.unprotect("never-*"), errors.NotFound, "never"),
    (lambda repo: repo.branch("main").output("x", mode="upsert").__enter__(), errors.InvalidInput, "upsert"),
    (lambda repo: repo.ref("main").presign("a"), "unsupported", ""),
]


@pytest.mark.parametrize(("call", "error", "says"), BAD_CALLS)
def test_bad_calls_change_nothing(shared, call, error, says):
    before = state(shared)
    with raising(error) as caught:
        call(shared)
    assert says in caught.value.message
    assert "\n" not in caught.value.message
    assert state(shared) == before


@pytest.mark.parametrize("name", ["", "ab", "Upper", "-dash", "under_score", "a" * 64, "a/b", "../x"])
def test_bad_repository_names(lake, name):
    with raising("invalid_name"):
        lake.create_repository(name)
    with raising("invalid_name"):
        lake.create_mirror("flights", source=lake, source_repository=name)
    assert list(lake.repositories()) == []


@pytest.mark.parametrize("split", [Split(0, 0, 0), Split(min_entries=20_000), Split(target_entries=0)])
def test_a_split_that_cuts_no_ranges(lake, split):
    with raising(errors.InvalidInput, "cannot cut ranges"):
        lake.create_repository("repo", split=split)
    assert list(lake.repositories()) == []


def test_a_branch_with_its_uncommitted_changes_beside_a_longer_name(seeded):
    seeded.branch("main").put("staged", b"")
    seeded.create_branch("main$old")
    assert seeded.ref("main$").exists("staged")
    assert not seeded.ref("main$old").exists("staged")
    seeded.create_tag("main$", "main")
    assert not seeded.ref("main$").exists("staged")


@pytest.mark.parametrize(
    "namespace", ["", "relative/path", "http://host/x", "s3://", "file:///a/../b", "s3://bucket/x?y=1", "s3://u:p@b/x"]
)
def test_bad_namespaces(lake, namespace):
    with raising("invalid_uri"):
        lake.create_repository("other", storage_namespace=namespace or "nothing")


def test_an_ambiguous_prefix_lists_the_candidates(seeded, fill):
    digits = [commit.id[0] for commit in seeded.log("dev")]
    while len(digits) == len(set(digits)):  # there are sixteen digits
        digits.append(fill(seeded, "dev", a=f"version {len(digits)}")[0])
    prefix = next(digit for digit in digits if digits.count(digit) > 1)
    with raising("ambiguous_ref") as caught:
        _ = seeded.ref(prefix).commit
    named = re.findall(r"\b[0-9a-f]{16}\b", caught.value.message)
    assert len(named) > 1
    assert all(one.startswith(prefix) for one in named)


def test_a_taken_namespace_is_refused(lake, seeded, tmp_path, settings):
    with pytest.raises(errors.AlreadyExists):
        lake.create_repository("repo")
    with pytest.raises(errors.NamespaceTaken):
        lake.create_repository("other", storage_namespace=seeded.storage_namespace)
    with pytest.raises(errors.NamespaceTaken):
        lake.create_repository("other", storage_namespace=seeded.storage_namespace + "/")
    elsewhere = Lake.open(home=tmp_path / "elsewhere")
    with pytest.raises(errors.NamespaceTaken), elsewhere:
        elsewhere.create_repository("other", storage_namespace=seeded.storage_namespace)
    assert [repo.id for repo in lake.repositories()] == ["repo"]


def test_what_a_deleted_repository_left_may_be_deleted_to_begin_again(lake, seeded):
    lake.delete_repository("repo")
    with raising("namespace_taken", "this catalog does not have any more; choose an empty location, or delete"):
        lake.create_repository("repo")
    shutil.rmtree(urlsplit(seeded.storage_namespace).path)
    lake.create_repository("repo")


def test_a_dirty_destination(seeded):
    seeded.branch("main").put("dirty", b"")
    before = state(seeded)
    for call in (
        lambda: seeded.merge("dev", "main"),
        lambda: seeded.branch("main").revert("main"),
        lambda: seeded.cherry_pick("dev", "main"),
    ):
        with raising("dirty_branch", "dirty"):
            call()
    assert state(seeded) == before


def test_a_protected_branch_takes_merges_only(seeded):
    seeded.branch("main").put("staged", b"")
    seeded.protect("mai*")
    before = state(seeded)
    for call in (
        lambda: seeded.branch("main").put("x", b""),
        lambda: seeded.branch("main").delete("a"),
        lambda: seeded.branch("main").commit("no"),
        lambda: seeded.branch("main").output("x").__enter__(),
    ):
        with raising("protected_branch", "main"):
            call()
    assert state(seeded) == before
    seeded.unprotect("mai*")
    seeded.branch("main").reset()
    seeded.protect("main")
    with raising("protected_branch"):
        seeded.branch("main").revert("main")
    assert seeded.merge("dev", "main").reference


def test_a_read_only_repository_refuses_every_change(lake, seeded):
    seeded.set_read_only()
    before = state(seeded)
    for call in (
        lambda: seeded.branch("main").put("x", b""),
        lambda: seeded.branch("main").delete("a"),
        lambda: seeded.branch("main").reset(),
        lambda: seeded.branch("main").commit("no", allow_empty=True),
        lambda: seeded.merge("dev", "main"),
        lambda: seeded.create_branch("new"),
        lambda: seeded.delete_branch("dev"),
        lambda: seeded.create_tag("v2", "main"),
        lambda: seeded.delete_tag("v1"),
        lambda: seeded.update_metadata({"k": "v"}),
        lambda: seeded.gc.set_rules({"default_retention_days": 1}),
    ):
        with raising("read_only_repository", "repo"):
            call()
    assert state(seeded) == before
    assert lake.repository("repo").record.read_only


def test_refs_without_common_history(lake, seeded):
    """Only commit records copied from elsewhere can lead to this; no verb does."""
    orphan = make_commit(
        parents=(), committer="else", message="root", creation_date=0, meta_range_id=EMPTY_METARANGE_ID
    )
    lake.catalog.database.write(  # type: ignore[attr-defined]
        lambda conn: conn.execute(_insert(orphan, "repo")), resolve=lambda conn: None
    )
    seeded.create_branch("orphan", source=orphan.id)
    with raising("no_merge_base", "share no history"):
        seeded.merge("orphan", "main")
    with raising("no_merge_base"):
        seeded.merge_base("orphan", "main")
    with raising("no_merge_base"):
        seeded.compare("main", "orphan")


def _insert(commit, repository_id):
    from sqlalchemy import insert

    from lakeops.catalog.records import commit_values
    from lakeops.catalog.tables import COMMIT

    return insert(COMMIT).values(commit_values(repository_id, commit))


def test_an_expired_commit_says_so_everywhere(lake, seeded, fill):
    old = seeded.delete_tag("v1").commit_id
    fill(seeded, "main", c="3")
    assert expire_commits(lake.catalog, "repo", [old]) == [old]
    for call in (
        lambda: seeded.ref(old).read("a"),
        lambda: seeded.ref("main~1").stat("a"),
        lambda: seeded.ref("main~1").list(),
        lambda: seeded.ref(old).entries(),
        lambda: seeded.diff(old, "main"),
        lambda: seeded.compare("dev", old),
        lambda: seeded.create_branch("new", source=old),
        lambda: seeded.create_tag("v2", old),
        lambda: seeded.merge(old, "dev"),
        lambda: seeded.branch("main").revert(old),
        lambda: seeded.branch("main").revert("main"),
        lambda: seeded.cherry_pick(old, "main"),
        lambda: seeded.cherry_pick("main", "main"),
    ):
        with pytest.raises(errors.CommitExpired, match=f"{old[:8]}.*expired") as caught:
            call()
        assert (caught.value.kind, caught.value.exit_code) == ("expired", 5)
    assert old in {commit.id for commit in seeded.log("main")}, "it stays in the log"


class Cut(io.RawIOBase):
    """A file that breaks off half-way."""

    def __init__(self):
        self.left = 3

    def readable(self):
        return True

    def readinto(self, buffer):
        if not self.left:
            raise OSError("connection reset")
        self.left -= 1
        buffer[:] = b"x" * len(buffer)
        return len(buffer)


def test_an_upload_cut_off_half_way_leaves_nothing_visible(seeded):
    before = state(seeded)
    with pytest.raises((OSError, errors.LakeopsError), match="connection reset"):
        seeded.branch("main").put("a", io.BufferedReader(Cut()))
    assert state(seeded) == before


@pytest.mark.parametrize(
    "error",
    [errors.StoreUnavailable("503 SlowDown"), errors.StoreError("no space left on device")],
    ids=["unavailable", "full"],
)
@pytest.mark.parametrize("verb", ["put", "commit", "merge"])
def test_a_store_that_fails_loses_nothing(lake, seeded, settings, error, verb):
    if verb == "commit":
        seeded.branch("main").put("new", b"n")
    before = state(seeded)
    faults = Faults()
    with open_faulty(settings, faults) as failing:
        repo = failing.repository("repo")
        faults.fail("put", at=None, error=error)
        act = {
            "put": lambda: repo.branch("main").put("x", b"y"),
            "commit": lambda: repo.branch("main").commit("c", idempotency_key="k"),
            "merge": lambda: repo.merge("dev", "main", strategy="source-wins"),
        }[verb]
        if verb == "merge":
            repo.create_branch("side", source="main")
            faults.revive()
            repo.branch("side").put("s", b"")
            repo.branch("side").commit("side")
            repo.merge("side", "main")
            before = state(seeded)
            faults.fail("put", at=None, error=error)
        with pytest.raises(type(error)):
            act()
        assert state(seeded) == before
        faults.revive()
        act()
    assert state(seeded) != before


@pytest.mark.parametrize("kind", ["ranges", "metaranges"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "swap", "remove"])
def test_damaged_metadata_is_found_before_it_is_used(lake, repo, settings, clock, fill, kind, damage):
    for number in range(2):
        fill(repo, "main", **{f"{number}-{name}": str(number) for name in "abcdefghij"})
    files = sorted(Path(urlsplit(repo.storage_namespace).path, "_lakefs", kind).iterdir())
    for victim in files:
        data = victim.read_bytes()
        match damage:
            case "flip":
                victim.write_bytes(
                    data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
                )
            case "truncate":
                victim.write_bytes(data[:-7])
            case "empty":
                victim.write_bytes(b"")
            case "swap":
                other = files[files.index(victim) - 1]
                victim.write_bytes(other.read_bytes() if other.read_bytes() != data else data[::-1])
            case "remove":
                victim.unlink()
    with Lake.open(settings=settings, clock=clock) as fresh:
        main = fresh.repository("repo").branch("main")
        wanted = errors.FileMissing if damage == "remove" else errors.Corrupted
        for call in (lambda: main.read("1-a"), lambda: list(main.list()), lambda: main.entries().read_all()):
            with pytest.raises(wanted) as caught:
                call()
            assert any(file.name in caught.value.message for file in files)
        main.put("1-b", b"new")
        with pytest.raises(wanted):
            main.commit("over damage")
        assert fresh.repository("repo").ref("main").commit == repo.ref("main").commit


@pytest.mark.parametrize(
    "guard",
    [lambda: translated_by_the_store("file:///x", "k"), lambda: translated(Path("x"))],
)
@pytest.mark.parametrize("error", [ObjectNotFound("no object 'a'"), InvalidInput("of another kind")])
def test_what_lakeops_says_is_not_put_into_other_words(guard, error):
    with pytest.raises(type(error)) as caught, guard():
        raise error
    assert caught.value is error


def test_callers_may_catch_python_s_errors(lake):
    repo = lake.create_repository("repo")
    with pytest.raises(FileNotFoundError):
        repo.ref("main").read("nothing")
    with pytest.raises(ValueError, match="nothing"):
        repo.merge("main", "main", strategy="nothing")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="lakefs://") as caught:
        LakeUri.parse("s3://repo")
    assert isinstance(caught.value, InvalidInput)
    assert caught.value.kind == "invalid_uri"
