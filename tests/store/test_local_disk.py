"""Tests of a local store on a real disk that is full, read-only, forbidden or broken, and after a crash."""

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.damage import failing_disk
from support.errors import raising

from lakeops.model.errors import InvalidInput, InvalidPath, StoreError
from lakeops.store import local as local_store
from lakeops.store.local import LocalStore

MiB = 1024 * 1024


def mounted(place, *options):
    """Whether a small file system could be mounted there; that takes root, and a machine that allows it."""
    done = subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", str(place)], capture_output=True, check=False)
    return done.returncode == 0


@pytest.fixture
def small_disk(tmp_path):
    """A store on a disk of 3 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if not mounted(place, "-o", "size=3m"):
        pytest.skip("mounting a small disk needs root")
    yield LocalStore(place / "ns", fsync=True)
    subprocess.run(["umount", "-l", str(place)], check=True)


def hidden_files(store):
    hidden = store.root / ".lakeops" / "tmp"
    return [item.name for item in hidden.iterdir()] if hidden.exists() else []


def test_a_full_disk(small_disk):
    small_disk.put("data/old", b"o" * MiB)
    with pytest.raises(StoreError, match=r"data/new'.*no space left; free some") as raised:
        small_disk.put("data/new", b"n" * 4 * MiB)
    assert raised.value.kind == "store_error"
    assert hidden_files(small_disk) == []
    assert [item.key for item in small_disk.list()] == ["data/old"]
    with pytest.raises(StoreError):
        small_disk.put("data/old", b"n" * 4 * MiB)
    assert small_disk.get("data/old") == b"o" * MiB
    small_disk.delete(["data/old"])
    small_disk.put("data/new", b"n" * 2 * MiB)


def test_a_disk_that_is_read_only(small_disk):
    small_disk.put("a", b"x")
    place = small_disk.root.parent
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    with pytest.raises(StoreError, match="mounted read-only"):
        small_disk.put("b", b"x")
    [failure] = small_disk.delete(["a"])
    assert "mounted read-only" in failure.reason
    assert small_disk.get("a") == b"x"


def test_another_disk_inside_the_namespace(local):
    local.put("data/a", b"x")
    inner = local.root / "data" / "inner"
    inner.mkdir()
    if not mounted(inner, "-o", "size=1m"):
        pytest.skip("mounting a small disk needs root")
    try:
        with pytest.raises(StoreError, match="must be on one"):
            local.put("data/inner/b", b"x")
        assert hidden_files(local) == []
    finally:
        subprocess.run(["umount", "-l", str(inner)], check=True)


def test_a_file_larger_than_the_process_may_write(local):
    """A limit of the process: the write fails half-way on any disk, without being root."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MiB, hard))
    try:
        with pytest.raises(StoreError, match=r"data/big'.*larger than"):
            local.put("data/big", b"x" * 3 * MiB)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert hidden_files(local) == []
    assert list(local.list()) == []


READS = {
    "all": lambda file: file.read(),
    "a piece": lambda file: file.read(9),
    "a line": lambda file: file.readline(),
    "into a buffer": lambda file: file.readinto(bytearray(1 << 20)),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_file_that_the_disk_refuses_to_read(local, read):
    local.put("k", b"data")
    with failing_disk("k"), local.open("k") as file, pytest.raises(StoreError, match="k': Bad file descriptor"):
        read(file)


def test_without_permission():
    """In a process of an ordinary user, because root may do everything; so in a place that such a user can reach."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        local = LocalStore(Path(place) / "ns", fsync=False)
        local.put("data/a", b"x")
        for below in (local.root, *local.root.rglob("*")):
            below.chmod(0o555 if below.is_dir() else 0o000)
        lines = _without_permission(local.root)
        for below in (local.root, *local.root.rglob("*")):
            below.chmod(0o755)
    assert len(lines) == 3
    assert all("give this user access" in line for line in lines)
    assert lines[0].startswith("store_error")


def _without_permission(root):
    script = f"""
import os, sys
from pathlib import Path
from lakeops.model.errors import StoreError
from lakeops.store.local import LocalStore
if os.getuid() == 0:
    os.setgid(65534), os.setuid(65534)
store = LocalStore(Path({str(root)!r}))
for act in (lambda: store.get("data/a"), lambda: store.put("data/b", b"x")):
    try:
        act()
    except StoreError as error:
        print(error.kind, error.message)
print(store.delete(["data/a"])[0].reason)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_a_root_that_is_a_file(tmp_path):
    (tmp_path / "file").write_bytes(b"mine")
    store = LocalStore(tmp_path / "file")
    with pytest.raises(StoreError, match="not a directory"):
        store.put("a", b"x")
    assert list(store.list()) == []
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_a_relative_root_is_refused():
    with pytest.raises(InvalidInput):
        LocalStore(Path("relative"))


def test_nothing_is_made_before_the_first_write(local):
    assert list(local.list("data/")) == []
    assert local.delete(["a"]) == []
    assert not local.root.exists()


def test_only_the_key_is_left_after_a_write(local):
    local.put("data/h/a", b"x")
    local.put("data/h/a", b"y")
    found = {str(path.relative_to(local.root)) for path in local.root.rglob("*")}
    assert found == {"data", "data/h", "data/h/a", ".lakeops", ".lakeops/tmp"}
    assert stat.S_IMODE((local.root / "data/h/a").stat().st_mode) & 0o111 == 0
    local.delete(["data/h/a"])
    assert not (local.root / "data").exists()


def test_files_that_a_crash_left_behind_go_after_a_day(local):
    local.put("a", b"x")
    hidden = local.root / ".lakeops" / "tmp"
    now = (local.root / "a").stat().st_mtime
    for name, age in (("old", local_store.ABANDONED_SECONDS + 60), ("young", local_store.ABANDONED_SECONDS - 60)):
        (hidden / name).write_bytes(b"half")
        os.utime(hidden / name, (now - age, now - age))
    assert [item.key for item in local.list()] == ["a"]
    LocalStore(local.root, fsync=False).put("b", b"x")
    assert hidden_files(local) == ["young"]


def test_a_killed_writer_leaves_no_object(tmp_path):
    """kill -9 in the middle of a put: the next process sees nothing of it, and can write the key."""
    script = f"""
import os, sys, signal
from pathlib import Path
from lakeops.store.local import LocalStore
class Source:
    turns = 3
    def read(self, size):
        self.turns -= 1
        if not self.turns:
            os.kill(os.getpid(), signal.SIGKILL)
        return b"x" * size
LocalStore(Path({str(tmp_path / "ns")!r})).put("data/a", Source())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    store = LocalStore(tmp_path / "ns")
    assert list(store.list()) == []
    assert len(hidden_files(store)) == 1
    store.put("data/a", b"y", if_absent=True)
    assert store.get("data/a") == b"y"


def test_contents_and_names_are_forced_to_the_disk_in_order(tmp_path, monkeypatch):
    """The file before its name, the directory after it, and new directories in their parents."""
    steps: list[str] = []
    fsync, replace, link = os.fsync, os.replace, os.link

    def name_of(descriptor):
        return "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"

    monkeypatch.setattr(os, "fsync", lambda fd: (steps.append(f"sync {name_of(fd)}"), fsync(fd))[1])
    monkeypatch.setattr(os, "replace", lambda *a, **k: (steps.append("name"), replace(*a, **k))[1])
    monkeypatch.setattr(os, "link", lambda *a, **k: (steps.append("name"), link(*a, **k))[1])
    store = LocalStore(tmp_path / "ns", fsync=True)
    store.put("a", b"x")
    assert steps[-3:] == ["sync file", "name", "sync folder"]
    steps.clear()
    store.put("b", b"x", if_absent=True)
    assert steps == ["sync file", "name", "sync folder"]
    steps.clear()
    store.put("c/d/e", b"x")
    assert steps == ["sync file", "sync folder", "sync folder", "name", "sync folder"]
    steps.clear()
    (store.root / "made" / "by others").mkdir(parents=True)
    store.put("made/by others/f", b"x")
    assert steps == ["sync file", "sync folder", "sync folder", "name", "sync folder"]
    steps.clear()
    store.put("made/by others/g", b"x")
    assert steps == ["sync file", "name", "sync folder"]
    steps.clear()
    LocalStore(tmp_path / "loose", fsync=False).put("a/b", b"x")
    assert steps == ["name"]


@pytest.mark.parametrize("by", ["another", "itself"])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_directory_that_was_removed_and_made_again_is_forced_to_the_disk(tmp_path, monkeypatch, by, depth):
    synced, fsync = [], os.fsync
    store = LocalStore(tmp_path / "ns", fsync=True)
    other = LocalStore(store.root, fsync=True) if by == "another" else store
    folder = "/".join("de"[:depth])
    store.put("stays", b"x")
    store.put(f"{folder}/x", b"x")
    other.delete([f"{folder}/x"])
    assert not (store.root / "d").exists()
    monkeypatch.setattr(
        os, "fsync", lambda fd: (synced.append(str(Path(f"/proc/self/fd/{fd}").readlink())), fsync(fd))[1]
    )
    store.put(f"{folder}/y", b"x")
    folders = [store.root, *(store.root / folder[: 2 * n + 1] for n in range(depth))]
    assert [path for path in synced if Path(path).is_dir()] == [str(path) for path in folders]


def test_a_directory_that_could_not_be_forced_to_the_disk_is_forced_again(tmp_path, monkeypatch):
    store, synced, fsync = LocalStore(tmp_path / "ns", fsync=True), [], os.fsync
    store.put("d/x", b"x")
    LocalStore(store.root).delete(["d/x"])

    def refused(fd):
        synced.append(Path(f"/proc/self/fd/{fd}").readlink())
        if synced.count(store.root) == 1 and synced[-1] == store.root:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(StoreError, match="input/output error"):
        store.put("d/y", b"x")
    store.put("d/y", b"x")
    assert synced.count(store.root) == 2


def open_descriptors():
    return len([*Path("/proc/self/fd").iterdir()])


def test_descriptors_are_given_back(local):
    local.put("data/a/b", b"x")
    before = open_descriptors()
    for _ in range(5):
        local.get("data/a/b")
        list(local.list())
        for key in ("data/a", "data/a/none", "none", "data/a/b/c"):
            local.delete([key])
            with pytest.raises(Exception, match=key):
                local.get(key)
        with pytest.raises(InvalidPath):
            local.put("data/a/b/c", b"x")
        with pytest.raises(ZeroDivisionError):
            local.put("x", _Broken())
        next(local.list())
    assert open_descriptors() == before


class _Broken:
    def read(self, size):
        return b"x" * (1 // 0)


def test_presign_says_that_files_have_none(local):
    with raising("unsupported", "local file"):
        local.presign("data/a")
