"""Directories that follow a ref: only differences travel, and no change in them is lost, whatever is killed."""

import json
import os
import shutil
import subprocess
from contextlib import ExitStack, suppress
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest
from support.copies import dumped_file, sqlite_url
from support.errors import raising
from support.killed_local import run
from support.scenes import tree

from lakeops import Lake, Settings
from lakeops.fs import LakeopsFileSystem
from lakeops.model.errors import (
    AlreadyExists,
    InvalidInput,
    InvalidPath,
    MergeConflict,
    NoChanges,
    ObjectNotFound,
    RefNotFound,
    StoreUnavailable,
)
from lakeops.ops.local.clone import followed
from lakeops.ops.local.index import RACY_NS, alone
from lakeops.testing.faults import READS

PLACE = ".lakeops-local"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "clone"


@pytest.fixture
def cloned(repo, fill, folder):
    """A repository with two files and two others, of which the first two are in a clone."""
    fill(repo, "main", **{"raw/a": "one", "raw/deep/b": "two", "other": "x", "rawer": "y"})
    repo.ref("main").clone(folder, "raw")
    return repo


def files(folder):
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_text() for name, path in found.items() if not name.startswith(PLACE)}


def short(changes):
    return [f"{change.type.value} {change.path}" for change in changes]


def test_a_clone_has_the_files_of_its_prefix(lake, cloned, folder):
    assert files(folder) == {"a": "one", "deep/b": "two"}
    status = lake.local(folder).status()
    assert (status.uri, status.commit_id) == ("lakefs://repo/main/raw/", cloned.ref("main").commit_id)
    assert (status.local, status.remote, status.conflicts, status.interrupted) == ([], (), (), None)
    assert lake.local(folder / "deep").directory == folder


def test_changes_here_are_committed_and_nothing_else_is_uploaded(lake, cloned, folder, faulty_lake, faults):
    (folder / "a").write_text("one!")
    (folder / "deep/b").unlink()
    (folder / "new").write_text("three")
    assert short(lake.local(folder).status().local) == ["changed a", "removed deep/b", "added new"]
    made = faulty_lake.local(folder).commit("by hand", {"k": "v"})
    assert sum("data/" in call.key for call in faults.calls if call.operation == "put") == 2
    assert tree(cloned, "main") == {"other": b"x", "rawer": b"y", "raw/a": b"one!", "raw/new": b"three"}
    assert (made.message, made.metadata, len(made.parents)) == ("by hand", {"k": "v"}, 1)
    status = lake.local(folder).status()
    assert (status.commit_id, status.local, status.remote) == (made.id, [], ())
    with pytest.raises(NoChanges):
        lake.local(folder).commit("again")


def test_a_pull_downloads_what_changed_and_nothing_else(lake, cloned, fill, folder, faulty_lake, faults):
    fill(cloned, "main", **{"raw/a": "ONE", "raw/c": "c", "raw/deep/b": None, "other": "z"})
    (folder / "mine").write_text("mine")
    done = faulty_lake.local(folder).pull()
    assert len(faults.keys_opened("data/")) == 2
    assert short(done.taken) == ["changed a", "added c", "removed deep/b"]
    assert short(done.local) == ["added mine"]
    assert files(folder) == {"a": "ONE", "c": "c", "mine": "mine"}
    assert not (folder / "deep").exists()
    assert lake.local(folder).pull().taken == []


def test_another_ref_is_checked_out_and_changes_stay(lake, cloned, fill, folder):
    cloned.create_tag("v1", "main")
    cloned.create_branch("dev", source="main")
    fill(cloned, "dev", **{"raw/a": "dev"})
    (folder / "mine").write_text("mine")
    local = lake.local(folder)
    assert short(local.checkout("dev").taken) == ["changed a"]
    local.commit("on dev")
    assert set(tree(cloned, "dev")) - set(tree(cloned, "main")) == {"raw/mine"}
    assert short(local.checkout("v1").taken) == ["changed a", "removed mine"]
    assert files(folder) == {"a": "one", "deep/b": "two"}
    (folder / "a").write_text("mine")
    with raising("clone_conflict"):
        local.checkout("dev")
    assert local.status().uri == "lakefs://repo/v1/raw/"


@pytest.mark.parametrize("ref", ["v1", "main~1", "main@", "{id}", "gone"])
def test_a_tag_or_commit_takes_no_commits(lake, cloned, fill, folder, ref):
    fill(cloned, "main", **{"raw/c": "c"})
    cloned.create_tag("v1", "main")
    cloned.create_branch("gone", source="main")
    local = lake.local(folder)
    local.checkout(ref.format(id=cloned.ref("main").commit_id))
    cloned.delete_branch("gone")
    (folder / "a").write_text("mine")
    with raising("invalid_ref", "is no branch, and only a branch takes commits") as refused:
        local.commit("no")
    assert "\n" not in refused.value.message
    assert files(folder)["a"] == "mine"


def test_branches_that_take_no_commits_refuse_before_anything_is_uploaded(lake, cloned, folder, faulty_lake, faults):
    (folder / "a").write_text("mine")
    cloned.branch("main").put("elsewhere", b"staged")
    with raising("dirty_branch"):
        lake.local(folder).commit("no")
    cloned.branch("main").reset()
    cloned.protect("main")
    with raising("protected_branch"):
        faulty_lake.local(folder).commit("no")
    assert [call for call in faults.calls if call.operation == "put"] == []


def test_content_type_and_metadata_stay(lake, cloned, folder):
    cloned.branch("main").put("raw/t", b"1", metadata={"k": "v"}, content_type="text/csv")
    cloned.branch("main").commit("typed")
    local = lake.local(folder)
    local.pull()
    (folder / "t").write_text("2")
    local.commit("changed")
    entry = cloned.ref("main").stat("raw/t")
    assert (entry.content_type, entry.metadata) == ("text/csv", {"k": "v"})


def test_a_file_is_read_when_its_size_or_time_differ(lake, cloned, folder):
    local = lake.local(folder)
    os.utime(folder / "a", ns=(1, 1))
    assert local.status().local == [], "touched, and the same"
    local.pull()
    (folder / "a").write_text("ONE")
    os.utime(folder / "a", ns=(2, 2))
    assert short(local.status().local) == ["changed a"]


def test_a_change_in_the_same_tick_of_the_clock_is_seen(lake, cloned, folder):
    stamp = (folder / "a").stat().st_mtime_ns
    (folder / "a").write_text("ONE")
    os.utime(folder / "a", ns=(stamp, stamp))
    assert short(lake.local(folder).status().local) == ["changed a"]


def test_a_change_that_keeps_size_and_time_is_seen_and_not_replaced(lake, cloned, fill, folder):
    local = lake.local(folder)
    _settle(folder)
    assert local.status().local == []
    stamp = (folder / "a").stat().st_mtime_ns
    (folder / "a").write_text("ONE")
    os.utime(folder / "a", ns=(stamp, stamp))
    assert short(local.status().local) == ["changed a"]
    fill(cloned, "main", **{"raw/a": "theirs"})
    with raising("clone_conflict"):
        local.pull()
    assert files(folder)["a"] == "ONE"


def _settle(folder):
    """Make a clone's index so much younger than its files that none of them is read for that."""
    index, written = folder / PLACE / "index.json", (folder / "a").stat().st_ctime_ns
    while index.stat().st_mtime_ns - written <= RACY_NS:
        index.touch()


def test_a_file_in_the_place_of_a_folder_is_carried_along_and_committed(lake, cloned, fill, folder):
    local = lake.local(folder)
    (folder / "deep/b").unlink()
    (folder / "deep").rmdir()
    (folder / "deep").write_text("a file")
    fill(cloned, "main", **{"raw/a": "theirs"})
    assert short(local.pull().taken) == ["changed a"]
    assert files(folder) == {"a": "theirs", "deep": "a file"}
    local.commit("a file in the place of a folder")
    assert {path for path in tree(cloned, "main") if path.startswith("raw/")} == {"raw/a", "raw/deep"}


def test_a_directory_that_exists_can_follow_a_ref(lake, cloned, tmp_path):
    place = tmp_path / "mine"
    place.mkdir()
    (place / "a").write_text("one")
    (place / "x").write_text("x")
    cloned.ref("main").init_clone(place, "raw/")
    local = lake.local(place)
    status = local.status()
    assert (short(status.local), short(status.remote)) == (["added x"], ["added deep/b"])
    local.commit("x")
    assert tree(cloned, "main")["raw/x"] == b"x"
    local.pull()
    assert files(place) == {"a": "one", "x": "x", "deep/b": "two"}
    with pytest.raises(InvalidInput, match="follows lakefs://repo/main/raw/ already"):
        cloned.ref("main").init_clone(place)


def test_where_a_clone_is_refused(cloned, folder, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_text("mine")
    for place in (tmp_path / "full", folder / "deep", tmp_path / "full/x"):
        with pytest.raises(InvalidInput):
            cloned.ref("main").clone(place)
    with pytest.raises(InvalidInput, match="follows lakefs://repo/main/raw/"):
        cloned.ref("main").clone(folder)
    with pytest.raises(RefNotFound):
        cloned.ref("nosuch").clone(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert files(tmp_path / "full") == {"x": "mine"}


@pytest.mark.parametrize("named", ["", "clone/nosuch", "clone/a", "clone/nosuch/deep"])
def test_a_directory_that_is_none_means_no_other_one(lake, cloned, folder, monkeypatch, named):
    (folder / "a").write_text("mine")
    monkeypatch.chdir(folder if named == "" else folder.parent)
    calls = [
        lambda: lake.local(named).commit("x"),
        lambda: lake.local(named).pull(force=True),
        lambda: [*followed(named)],
    ]
    calls += [lambda: cloned.ref("main").clone(named, "raw"), lambda: cloned.ref("main").init_clone(named, "raw")]
    for call in calls:
        with pytest.raises(InvalidInput):
            call()
    assert short(lake.local(folder).status().local) == ["changed a"]


def test_a_damaged_clone_hides_no_other_one(cloned, tmp_path):
    for name in ("a", "b", "c"):
        cloned.ref("main").clone(tmp_path / name, "raw")
    (tmp_path / "b" / PLACE / "index.json").write_text("{")
    found = {Path(one.directory).name: (one.uri, "damaged" in one.error) for one in followed(tmp_path)}
    uri = "lakefs://repo/main/raw/"
    assert found == {"clone": (uri, False), "a": (uri, False), "b": ("", True), "c": (uri, False)}


@pytest.mark.parametrize("paths", [["../x"], ["a//b"], ["/etc/x"], ["./x"], ["n" * 256], ["a", "a/b"]])
def test_objects_that_cannot_be_files_are_refused_before_anything_is_written(lake, repo, folder, paths):
    for path in ["raw/good", *(f"raw/{path}" for path in paths)]:
        repo.branch("main").put(path, b"x")
    repo.branch("main").commit("odd names")
    with pytest.raises(InvalidPath, match="nothing was written"):
        repo.ref("main").clone(folder, "raw/")
    assert not folder.exists()
    with pytest.raises(InvalidInput):
        lake.local(folder)


SPELLINGS = [
    PLACE, ".LAKEOPS-LOCAL", ".Lakeops-Local.", f"{PLACE} ", f"{PLACE}. .", ".lakeops\u200c-local",
    "\uff0elakeops-local", ".lakeop\u017f-local", f"{PLACE}::$INDEX_ALLOCATION", "LAKEOP~1", f"x\\{PLACE}",
    "LAKEOP~1.", "lakeop~2::$INDEX_ALLOCATION", ".lakeops\u034f-local", f"{PLACE}\ufe0f", ".\u3164lakeops-local",
    "\u180b.lakeops-local", ".lakeops-\u115flocal",
]  # fmt: skip
OTHERS = ["lakeops-local", f"{PLACE}-old", "x.lakeops-local", "lakeops", "é"]


def _planted(repo, name):
    """Commit such a file by its address, as another program may have done."""
    path, branch = f"raw/notes/{name}/index.json", repo.branch("main")
    entry = branch.put("raw/notes/plain", b"{}")
    names = ("physical_address", "checksum", "size_bytes", "mtime")
    branch.stage(pa.table({"path": [path], **{name: [getattr(entry, name)] for name in names}}))
    branch.commit("planted")
    return path


def _directory(tmp_path, name):
    file = tmp_path / "source/notes" / name / "index.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    return tmp_path / "source"


def _committed(lake, repo, tmp_path, name):
    repo.ref("main").clone(tmp_path / "edited")
    _directory(tmp_path, name).rename(tmp_path / "edited/source")
    lake.local(tmp_path / "edited").commit("with another clone's files")


def _pulled(lake, repo, tmp_path, name):
    repo.ref("main").clone(tmp_path / "old")
    _planted(repo, name)
    lake.local(tmp_path / "old").pull()


def _got(lake, repo, tmp_path, name):
    _planted(repo, name)
    LakeopsFileSystem(lake=lake).get("repo/main/raw", str(tmp_path / "got"), recursive=True)


def _got_one(lake, repo, tmp_path, name):
    LakeopsFileSystem(lake=lake).get_file(f"repo/main/{_planted(repo, name)}", str(tmp_path / "got" / name / "one"))


def _got_by_pattern(lake, repo, tmp_path, name):
    _planted(repo, name)
    LakeopsFileSystem(lake=lake).get("repo/main/raw/**", str(tmp_path / "got"))


def _got_by_list(lake, repo, tmp_path, name):
    LakeopsFileSystem(lake=lake).get([f"repo/main/{_planted(repo, name)}"], [str(tmp_path / "got" / name / "one")])


def _committed_below(lake, repo, tmp_path, name):
    """A clone of such a folder would add to it."""
    path = _planted(repo, name)
    repo.ref("main").clone(tmp_path / "edited", path.removesuffix("/index.json"))
    (tmp_path / "edited/added").write_text("{}")
    lake.local(tmp_path / "edited").commit("more of another clone's files")


def _followed(lake, repo, tmp_path, name):
    (tmp_path / "new" / name / "x").mkdir(parents=True)
    repo.ref("main").init_clone(tmp_path / "new" / name / "x")


def _batched(lake, repo, tmp_path, name):
    with repo.branch("main").batch() as batch:
        batch.put(f"raw/{name}/index.json", b"{}")


def _written(lake, repo, tmp_path, name):
    with repo.branch("main").output("raw/") as url:
        file = Path(url.removeprefix("file://")) / name / "index.json"
        file.parent.mkdir(parents=True)
        file.write_text("{}")


ENTRANCES = {
    "clone": lambda lake, repo, at, name: _planted(repo, name) and repo.ref("main").clone(at / "clone"),
    "pull": _pulled,
    "get": _got,
    "commit": _committed,
    "upload": lambda lake, repo, at, name: repo.branch("main").upload(_directory(at, name)),
    "clone into": lambda lake, repo, at, name: repo.ref("main").clone(at / "new" / name, "raw"),
    "init": _followed,
    "get one": _got_one,
    "get by pattern": _got_by_pattern,
    "get a list": _got_by_list,
    "commit below": _committed_below,
    "import": lambda lake, repo, at, name: repo.branch("main").import_objects(
        _directory(at, name).as_uri(), "imported", message="all"
    ),
    "put": lambda lake, repo, at, name: repo.branch("main").put(f"raw/{name}/index.json", b"{}"),
    "batch": _batched,
    "named upload": lambda lake, repo, at, name: repo.branch("main").upload(
        _directory(at, name) / "notes" / name / "index.json", f"raw/{name}/index.json"
    ),
    "copy": lambda lake, repo, at, name: repo.branch("main").copy("raw/plain", f"raw/{name}/index.json"),
    "copy a folder": lambda lake, repo, at, name: repo.branch("main").copy("raw", f"new/{name}", recursive=True),
    "move a folder": lambda lake, repo, at, name: repo.branch("main").rename("raw", f"new/{name}/x", recursive=True),
    "copy what holds it": lambda lake, repo, at, name: (
        _planted(repo, name) and repo.branch("main").copy("raw", "copied", recursive=True)
    ),
    "move": lambda lake, repo, at, name: repo.branch("main").rename("raw/plain", f"raw/{name}"),
    "fsspec": lambda lake, repo, at, name: LakeopsFileSystem(lake=lake).pipe(f"repo/main/raw/{name}/lock", b""),
    "output": _written,
}


def _crossed(names):
    """The first name at each entrance, and each name where one is read, written, and found in a listing."""
    return [*product(ENTRANCES, names[:1]), *product(["clone", "commit", "put", "import"], names[1:])]


@pytest.mark.parametrize(("entrance", "name"), _crossed(SPELLINGS))
def test_a_clone_s_own_files_come_from_no_other_one(lake, repo, tmp_path, name, entrance):
    """Whoever writes them decides which repository the next commit goes to."""
    repo.branch("main").put("raw/plain", b"plain")
    repo.branch("main").commit("plain")
    with pytest.raises((InvalidInput, InvalidPath), match=r"clone|not a regular file"):
        ENTRANCES[entrance](lake, repo, tmp_path, name)
    assert not [*tmp_path.glob("[cgo]*/**/index.json")][1:]
    assert not [*repo.branch("main").uncommitted()]


@pytest.mark.parametrize(("entrance", "name"), _crossed(OTHERS))
def test_names_that_are_alike_are_files(lake, repo, tmp_path, name, entrance):
    repo.branch("main").put("raw/plain", b"plain")
    repo.branch("main").commit("plain")
    ENTRANCES[entrance](lake, repo, tmp_path, name)


@pytest.mark.parametrize(("first", "second"), [("n", "n/y"), ("n/y", "n"), ("n/y/z", "n"), ("n", "n/y/z")])
@pytest.mark.parametrize("racing", [False, True])
def test_a_file_and_a_folder_of_one_name_are_a_conflict(
    lake, cloned, folder, tmp_path, faulty_lake, faults, first, second, racing
):
    """Both commits would succeed, and no clone could be made of the branch any more."""
    cloned.ref("main").clone(tmp_path / "other", "raw")
    for place, name in ((folder, first), (tmp_path / "other", second)):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(name)
    if racing:
        faults.hook("put", prefix="data/", action=lambda _: lake.local(folder).commit("first"))
    else:
        lake.local(folder).commit("first")
    with pytest.raises(MergeConflict) as raised:
        faulty_lake.local(tmp_path / "other").commit("second")
    assert raised.value.conflicts == [second]
    assert lake.local(tmp_path / "other").status().conflicts == [first]
    with pytest.raises(MergeConflict):
        lake.local(tmp_path / "other").pull()
    assert tree(cloned, "main").keys() == {"other", "rawer", "raw/a", "raw/deep/b", f"raw/{first}"}
    (tmp_path / "other" / second).unlink()
    for empty in (tmp_path / "other" / second).relative_to(tmp_path / "other").parents[:-1]:
        (tmp_path / "other" / empty).rmdir()
    lake.local(tmp_path / "other").pull()
    assert files(tmp_path / "other") == {"a": "one", "deep/b": "two", first: first}


def test_a_folder_that_took_a_file_s_place_is_committed(lake, cloned, fill, folder):
    """Others changed the branch meanwhile, elsewhere."""
    fill(cloned, "main", other="changed")
    (folder / "a").unlink()
    (folder / "a").mkdir()
    (folder / "a/x").write_text("x")
    lake.local(folder).commit("a folder")
    assert {"raw/a/x", "raw/deep/b"} < tree(cloned, "main").keys()


@pytest.mark.parametrize("verb", ["clone", "init_clone"])
def test_a_folder_that_is_an_object(cloned, tmp_path, verb):
    (tmp_path / "dir").mkdir()
    with pytest.raises(InvalidInput, match=r"'raw/a' is an object at .* and no folder"):
        getattr(cloned.ref("main"), verb)(tmp_path / "dir", "raw/a")
    with pytest.raises(InvalidInput, match="'raw/a' is an object at 'main' and no folder"):
        cloned.branch("main").copy("raw/a", "copied", recursive=True)


def test_markers_of_folders_are_left_alone(lake, repo, folder):
    for path, data in {"raw/": b"", "raw/deep/": b"", "raw/deep/b": b"2"}.items():
        repo.branch("main").put(path, data)
    repo.branch("main").commit("with markers")
    repo.ref("main").clone(folder, "raw/")
    assert files(folder) == {"deep/b": "2"}
    (folder / "deep/b").unlink()
    lake.local(folder).commit("removed")
    assert set(tree(repo, "main")) == {"raw/", "raw/deep/"}


def test_links_are_shown_and_never_committed_or_written_through(lake, cloned, fill, folder, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "b").write_text("precious")
    (folder / "deep/b").unlink()
    (folder / "deep").rmdir()
    (folder / "deep").symlink_to(outside)
    (folder / "new").write_text("new")
    local = lake.local(folder)
    status = local.status()
    assert (status.special, short(status.local)) == (["deep"], ["added new"])
    with pytest.raises(InvalidInput, match="'deep' is not a regular file"):
        local.commit("no")
    local.commit("without the link", skip_special=True)
    assert tree(cloned, "main")["raw/deep/b"] == b"two", "what lies behind a link was not removed"
    fill(cloned, "main", **{"raw/deep/b": "theirs"})
    with raising("clone_conflict"):
        local.pull()
    with pytest.raises(InvalidPath, match="symbolic link"):
        local.pull(force=True)
    assert (outside / "b").read_text() == "precious"


def test_names_that_are_not_utf_8_are_shown(lake, cloned, folder):
    (Path(os.fsdecode(os.fsencode(folder) + b"/\xff"))).write_text("x")
    assert lake.local(folder).status().special == ["\\xff"]


def test_a_failed_download_can_be_finished(lake, repo, fill, folder, faulty_lake, faults):
    fill(repo, "main", **{f"f{number:02}": str(number) for number in range(30)})
    for at in (12, 1):  # it fails again before it takes anything
        faults.fail(*READS, at=at, prefix="data/", error=StoreUnavailable("away"))
        with pytest.raises(StoreUnavailable):
            faulty_lake.repository("repo").ref("main").clone(folder)
        status = lake.local(folder).status()
        assert (status.local, status.interrupted, status.conflicts) == ([], "main", [])
        assert 0 < len(status.remote) < 30
    fill(repo, "main", **{f"f{number:02}": f"{number} again" for number in range(30)})
    again = repo.ref("main").clone(folder)
    assert len(again.taken) == 30
    assert len(files(folder)) == 30
    assert lake.local(folder).status().interrupted is None


def test_a_full_disk_loses_nothing(lake, cloned, tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "none", place], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("this user cannot mount a small disk")
    try:
        main = cloned.branch("main")
        cloned.ref("main").clone(place / "c", "raw")
        for name in ("raw/p", "raw/q"):
            main.put(name, os.urandom(200_000))
        main.commit("large")
        (place / "ballast").write_bytes(b"x" * 200_000)
        with pytest.raises(InvalidInput, match=r"no space left on device.*nothing was replaced"):
            lake.local(place / "c").pull()
        # A disk that fills while the call runs: the look at the room before it saw enough.
        (place / "ballast").unlink()
        (place / "c/mine").write_text("mine")
        for name in ("raw/p", "raw/q"):
            main.put(name, os.urandom(230_000))
        main.commit("larger")
        (place / "c/more").write_bytes(b"x" * 60_000)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("lakeops.ops.local.tree._check_room", lambda *_: None)
            with pytest.raises(InvalidInput, match="no space left on device"):
                lake.local(place / "c").pull()
        status = lake.local(place / "c").status()
        assert short(status.local) == ["added mine", "added more"]
        assert status.remote
        (place / "c/more").unlink()
        lake.local(place / "c").pull()
        names = {str(path.relative_to(place / "c")) for path in (place / "c").rglob("*") if path.is_file()}
        assert {name for name in names if not name.startswith(PLACE)} == {"a", "deep/b", "mine", "p", "q"}
        assert not [*(place / "c" / PLACE).glob("*.part")]
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_file_that_changes_while_a_pull_runs_is_kept(cloned, fill, folder, faulty_lake, faults):
    fill(cloned, "main", **{"raw/a": "theirs"})
    faults.hook(*READS, prefix="data/", action=lambda _: (folder / "a").write_text("just now"))
    with raising("clone_conflict"):
        faulty_lake.local(folder).pull()
    assert files(folder)["a"] == "just now"


def test_a_branch_that_moves_while_a_commit_runs(cloned, fill, folder, faulty_lake, faults):
    (folder / "a").write_text("mine")
    faults.hook("put", prefix="data/", action=lambda _: fill(cloned, "main", **{"raw/a": "theirs"}))
    with raising("clone_conflict"):
        faulty_lake.local(folder).commit("mine")
    assert tree(cloned, "main")["raw/a"] == b"theirs"


def test_one_call_at_a_time(lake, cloned, folder):
    with alone(folder), pytest.raises(AlreadyExists, match="another call works in"):
        lake.local(folder).pull()
    lake.local(folder).pull()


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"../x": ["", 0, 0, ""]}},
        {"files": {"a": ["", "0", 0, ""]}},
        {"prefix": "raw"},
        {"repository": "../x"},
        {"ref": ""},
        {"version": 2},
        {"whole": 1},
        {"claim_id": 1},
        {"more": 1},
    ],
)
def test_an_index_is_not_believed_further_than_it_reaches(lake, cloned, folder, change):
    place = folder / PLACE / "index.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), **change}))
    with pytest.raises(InvalidInput, match="is damaged"):
        lake.local(folder)


def test_an_index_that_is_gone_is_made_anew(lake, cloned, folder):
    (folder / PLACE / "index.json").write_text("{")
    (folder / "a").write_text("mine")
    with pytest.raises(InvalidInput, match="lakeops local init"):
        lake.local(folder)
    for path in (folder / PLACE).iterdir():
        path.unlink()
    cloned.ref("main").init_clone(folder, "raw/")
    status = lake.local(folder).status()
    assert status.conflicts == ["a"], "nobody knows any more which of both was changed"


VERBS = {
    "status": lambda lake, folder: lake.local(folder).status(),
    "pull": lambda lake, folder: lake.local(folder).pull(),
    "pull --force": lambda lake, folder: lake.local(folder).pull(force=True),
    "checkout": lambda lake, folder: lake.local(folder).checkout("main"),
    "commit": lambda lake, folder: lake.local(folder).commit("mine"),
    "clone again": lambda lake, folder: lake.repository("repo").ref("main").clone(folder, "raw"),
}
"""Everything that works on a clone."""


def open_other(stack, place, clock):
    settings = Settings.load(home=place, database_url=sqlite_url(place), fsync=False, committer="tester")
    return stack.enter_context(Lake.open(settings=settings, clock=clock))


@pytest.mark.parametrize("begun", ["clone", "init", "killed clone"])
@pytest.mark.parametrize("other", ["another lake", "made anew"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_clone_follows_no_other_repository_of_the_name(
    lake, cloned, fill, folder, tmp_path, clock, faulty_lake, faults, verb, other, begun
):
    if begun != "clone":
        shutil.rmtree(folder / PLACE)
    if begun == "init":
        cloned.ref("main").init_clone(folder, "raw")
    elif begun == "killed clone":
        shutil.rmtree(folder)
        faults.fail(*READS, prefix="data/", error=StoreUnavailable("away"))
        with pytest.raises(StoreUnavailable):
            faulty_lake.repository("repo").ref("main").clone(folder, "raw")
    with ExitStack() as stack:
        if other == "made anew":
            lake.delete_repository("repo")
        opened = lake if other == "made anew" else open_other(stack, tmp_path / "other", clock)
        namespace = (tmp_path / "anew").as_uri()
        stranger = opened.create_repository("repo", storage_namespace=namespace)
        head = fill(stranger, "main", **{"raw/a": "else", "raw/c": "c"})
        (folder / "mine").write_text("mine")
        before = files(folder), (folder / PLACE / "index.json").read_bytes()
        with pytest.raises(InvalidInput, match=r"follows lakefs://repo/main/raw/ of another lake, or") as refused:
            VERBS[verb](opened, folder)
        assert "\n" not in refused.value.message
        assert (files(folder), (folder / PLACE / "index.json").read_bytes()) == before
        assert stranger.ref("main").commit_id == head

        shutil.rmtree(folder / PLACE)  # what the message says
        stranger.ref("main").init_clone(folder, "raw")
        conflicts = ["a"] if (folder / "a").exists() else []  # a killed clone may have got as far
        assert opened.local(folder).status().conflicts == conflicts
        assert files(folder) == before[0]


MOVED = {
    "a copy of the catalog": lambda lake, place: dumped_file(lake.settings.home, place),
    "a dump": lambda lake, place: lake.repository("repo").refs.dump(),
    "a mirror": lambda lake, place: None,
}
"""Ways in which a repository comes to another lake, and what has to be done at its own lake first."""


@pytest.mark.parametrize("way", MOVED)
def test_a_clone_follows_its_repository_to_another_lake(lake, cloned, fill, folder, tmp_path, clock, way):
    MOVED[way](lake, tmp_path / "other")
    namespace = cloned.storage_namespace
    with ExitStack() as stack:
        opened = open_other(stack, tmp_path / "other", clock)
        if way == "a dump":
            opened.restore_repository("repo", namespace)
        elif way == "a mirror":
            mirror = opened.create_mirror("repo", source=lake)
            opened.replicate(namespace, mirror.storage_namespace)
            mirror.sync()
            mirror.promote_writable()
        assert opened.local(folder).pull().taken == []
        (folder / "a").write_text("mine")
        opened.local(folder).commit("at the other lake")
        moved = opened.repository("repo")
        fill(moved, "main", **{"raw/c": "c"})
        assert short(opened.local(folder).pull().taken) == ["added c"]
        assert files(folder) == {"a": "mine", "deep/b": "two", "c": "c"}


def test_a_clone_of_an_earlier_version_takes_its_repository_s_id(lake, cloned, folder, tmp_path, clock):
    place = folder / PLACE / "index.json"
    written = json.loads(place.read_text())
    assert written.pop("claim_id")
    place.write_text(json.dumps(written))
    assert lake.local(folder).status().local == []
    lake.local(folder).pull()
    with ExitStack() as stack:
        opened = open_other(stack, tmp_path / "other", clock)
        opened.create_repository("repo")
        with pytest.raises(InvalidInput, match="of another lake"):
            opened.local(folder).pull()


def test_an_expired_base_is_no_hindrance(lake, cloned, fill, folder, clock):
    fill(cloned, "main", **{"raw/c": "c"})
    cloned.gc.set_rules({"default_retention_days": 1, "branches": []})
    clock.advance(days=30)
    fill(cloned, "main", **{"raw/d": "d"})
    cloned.gc.mark()
    (folder / "a").write_text("mine")
    lake.local(folder).commit("mine")
    lake.local(folder).pull()
    assert files(folder) == {"a": "mine", "deep/b": "two", "c": "c", "d": "d"}


def test_what_is_gone_says_so(lake, cloned, folder):
    cloned.create_branch("dev", source="main")
    local = lake.local(folder)
    local.checkout("dev")
    cloned.delete_branch("dev")
    with pytest.raises(RefNotFound):
        local.status()
    local.checkout("main")
    with pytest.raises(ObjectNotFound):
        cloned.ref("main").stat("raw/nosuch")


OLD = {"a": "one", "deep/b": "two", "same": "same", "old": "old"}
NEW = {"a": "ONE", "same": "same", "deeper/c": "three", "new": "new"}
STEPS = 3
"""How many places of each call are tried; the slow form tries all."""


def files_of_clone(folder):
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_text() for name, path in found.items() if not name.startswith(".lakeops-local")}


@pytest.fixture
def scene(repo, fill, tmp_path):
    """A clone of the old files_of_clone at ``main``, which has the new ones by now, as ``dev`` has."""
    fill(repo, "main", **{f"raw/{name}": text for name, text in OLD.items()})
    repo.ref("main").clone(tmp_path / "old", "raw")
    repo.create_branch("dev", source="main")
    for branch in ("main", "dev"):
        fill(
            repo, branch, **{f"raw/{name}": NEW.get(name) for name in {**OLD, **NEW} if OLD.get(name) != NEW.get(name)}
        )
    return repo


def places(count, every):
    return (
        sorted({1 + number * (count - 1) // (STEPS - 1) for number in range(STEPS)})
        if not every
        else [*range(1, count + 1)]
    )


def again(lake, folder, verb):
    """The call that ``run`` makes, in this process, to its end."""
    if verb == "clone":
        lake.repository("repo").ref("main").clone(folder, "raw")
    elif verb == "checkout":
        lake.local(folder).checkout("dev")
    else:
        lake.local(folder).pull()


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("verb", ["clone", "pull", "checkout"])
def test_files_are_taken_whatever_was_killed(lake, scene, settings, tmp_path, verb, every):
    def fresh(name):
        folder = tmp_path / name
        if verb != "clone":
            shutil.copytree(tmp_path / "old", folder, copy_function=shutil.copy2)
            (folder / "mine").write_text("mine")
        return folder

    mine = {} if verb == "clone" else {"mine": "mine"}
    code, count = run(settings.home, fresh("whole"), verb, 0)
    assert (code, files_of_clone(tmp_path / "whole")) == (0, NEW | mine)
    for at in places(count, every):
        folder = fresh(f"killed{at}")
        assert run(settings.home, folder, verb, at)[0] == -9
        now = files_of_clone(folder) if folder.exists() else {}
        assert all(text in {OLD.get(name), NEW.get(name), mine.get(name)} for name, text in now.items()), (at, now)
        assert {name: now.get(name) for name in mine} == mine
        if (folder / ".lakeops-local/index.json").exists():
            status = lake.local(folder).status()
            assert ([change.path for change in status.local], status.conflicts) == ([*mine], []), at
        again(lake, folder, verb)
        assert files_of_clone(folder) == NEW | mine
        assert sorted(path.name for path in (folder / ".lakeops-local").iterdir()) == ["index.json", "lock"]
        status = lake.local(folder).status()
        assert ([change.path for change in status.local], status.remote, status.interrupted) == ([*mine], (), None)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_commit_is_published_once_whatever_was_killed(lake, scene, settings, tmp_path, every):
    def fresh(branch):
        scene.create_branch(branch, source="main")
        folder = tmp_path / branch
        scene.ref(branch).clone(folder, "raw")
        (folder / "a").write_text("mine")
        (folder / "new").unlink()
        return folder

    code, count = run(settings.home, fresh("whole"), "commit", 0)
    assert code == 0
    for at in places(count, every):
        branch = f"killed{at}"
        folder = fresh(branch)
        code, effects = run(settings.home, folder, "commit", at)
        assert code == -9 or effects < at, "a busy machine takes one effect more or less"
        lake.local(folder).status()
        with suppress(NoChanges):
            lake.local(folder).commit("mine")
        assert tree(scene, branch)["raw/a"] == b"mine"
        assert "raw/new" not in tree(scene, branch)
        assert scene.ref(f"{branch}~1").commit_id == scene.ref("main").commit_id, "one commit"
        lake.local(folder).pull()
        status = lake.local(folder).status()
        assert (status.local, status.remote) == ([], ())
