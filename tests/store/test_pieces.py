"""Pieces of immutable files on this machine's disk: what is right is given, all else is as if it were not there."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lakeops.store.disk_cache import FOLDERS, Pieces

MIB = 1024 * 1024


def digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


@pytest.fixture
def pieces(tmp_path: Path) -> Pieces:
    return Pieces(tmp_path / "cache", 64 * MIB)


def files(pieces: Pieces) -> list[Path]:
    return [path for path in pieces.folder.rglob("*") if path.is_file()]


def test_a_piece_comes_back_in_another_process(pieces, tmp_path):
    pieces.put(digest(b"data"), b"data")
    assert Pieces(tmp_path / "cache", 64 * MIB).get(digest(b"data")) == b"data"
    assert pieces.get(digest(b"other")) is None


@pytest.mark.parametrize("damage", [b"", b"dat", b"date", b"data and more"])
def test_a_damaged_piece_is_forgotten(pieces, damage):
    pieces.put(digest(b"data"), b"data")
    files(pieces)[0].write_bytes(damage)
    assert pieces.get(digest(b"data")) is None
    assert files(pieces) == []


def test_the_folder_is_the_users_alone(pieces):
    pieces.put(digest(b"data"), b"data")
    assert pieces.folder.stat().st_mode & 0o777 == 0o700
    assert files(pieces)[0].stat().st_mode & 0o777 == 0o600


def test_a_folder_that_others_may_read_is_not_used(pieces):
    pieces.folder.mkdir(mode=0o755)
    pieces.folder.chmod(0o755)
    pieces.put(digest(b"data"), b"data")
    assert not pieces.is_usable()
    assert files(pieces) == []


def test_a_place_where_no_folder_can_be_made_is_in_nobodys_way(tmp_path):
    (tmp_path / "file").write_text("")
    pieces = Pieces(tmp_path / "file" / "cache", 64 * MIB)
    pieces.put(digest(b"data"), b"data")
    assert pieces.get(digest(b"data")) is None
    assert pieces.kept().files == 0


def test_a_full_disk_is_in_nobodys_way(pieces, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lakeops.store.disk_cache.os.fdopen", full)
    pieces.put(digest(b"data"), b"data")
    assert pieces.get(digest(b"data")) is None
    assert files(pieces) == []


def test_what_was_used_longest_ago_goes_first(pieces):
    share = pieces.max_bytes // FOLDERS
    piece = share // 4
    first = bytes([7])  # one folder
    names = [first + digest(str(number).encode())[1:] for number in range(200)]
    now = time.time()
    for number, name in enumerate(names):
        pieces.put(name, bytes([number]) * piece)
        for path in files(pieces):
            if path.name == name.hex():
                os.utime(path, (now - 10_000 + number,) * 2)
    pieces._trim(pieces.folder / "v1" / "07")
    assert sorted(path.name for path in files(pieces)) == sorted(name.hex() for name in names[-4:])


def test_all_pieces_stay_within_bounds(tmp_path):
    pieces = Pieces(tmp_path / "cache", 8 * MIB)
    for number in range(4_000):
        data = number.to_bytes(4, "big") * 2_000  # 31 MiB in all
        pieces.put(digest(data), data)
    assert 4 * MIB < pieces.kept().size_bytes < 10 * MIB


def test_a_piece_in_use_is_noted_at_most_once_an_hour(pieces):
    pieces.put(digest(b"data"), b"data")
    [path] = files(pieces)
    old = time.time() - 7_200
    os.utime(path, (old, old))
    assert pieces.get(digest(b"data")) == b"data"
    noted = path.stat().st_mtime_ns
    assert noted > (old + 3_600) * 1e9
    pieces.get(digest(b"data"))
    assert path.stat().st_mtime_ns == noted


def test_leftovers_of_killed_processes_go(pieces):
    pieces.put(digest(b"data"), b"data")
    folder = files(pieces)[0].parent
    left, fresh = folder / ".0123456789abcdef", folder / ".fedcba9876543210"
    for path in (left, fresh):
        path.write_bytes(b"half")
    os.utime(left, (time.time() - 7_200,) * 2)
    pieces._trim(folder)
    assert not left.exists()
    assert fresh.exists()  # somebody may be at it
    assert pieces.get(digest(b"data")) == b"data"


WRITER = """
import hashlib, itertools, sys
from pathlib import Path
from lakeops.store.disk_cache import Pieces
pieces = Pieces(Path(sys.argv[1]), 1024 * 1024 * int(sys.argv[2]))
for number in itertools.count():
    data = (sys.argv[3] + str(number % 500)).encode() * 400
    pieces.put(hashlib.sha256(data).digest(), data)
    found = pieces.get(hashlib.sha256(data).digest())
    assert found in (None, data)
    if number == 500:
        print("busy", flush=True)
"""


def test_two_processes_that_evict_and_are_killed(pieces):
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(pieces.folder), "1", str(name)], stdout=subprocess.PIPE, text=True
        )
        for name in range(2)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "busy\n"
    for writer in writers:
        assert writer.poll() is None
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
    found = [path for path in files(pieces) if not path.name.startswith(".")]
    assert found
    for path in found:
        assert digest(path.read_bytes()).hex() == path.name


def test_clearing_says_how_much_it_was(pieces):
    pieces.put(digest(b"data"), b"data")
    pieces.put(digest(b"0123456789"), b"0123456789")
    cleared = pieces.clear()
    assert (cleared.files, cleared.size_bytes) == (2, 14)
    assert pieces.kept().files == 0
    pieces.put(digest(b"data"), b"data")
    assert pieces.get(digest(b"data")) == b"data"
