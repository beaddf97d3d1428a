"""Files of this machine: downloads that break off."""

from __future__ import annotations

import io

import pytest

from lakeops.cli.fs import write_below


class Broken(io.BytesIO):
    """A file that fails after its first piece."""

    def read(self, size=-1):
        piece = super().read(4)
        if not piece:
            raise RuntimeError("the connection is gone")
        return piece


def test_a_download_that_breaks_off_leaves_what_was_there(tmp_path):
    target = tmp_path / "file"
    target.write_text("before")
    with pytest.raises(RuntimeError):
        write_below(tmp_path, target, Broken(b"12345678"))
    assert target.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
