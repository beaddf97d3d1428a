"""Files of this machine: links that appear late, and downloads that break off."""

from __future__ import annotations

import io

import pytest

from lakeops.cli.files import reading, write_below
from lakeops.model.errors import InvalidInput


class Broken(io.BytesIO):
    """A file that fails after its first piece."""

    def read(self, size=-1):
        piece = super().read(4)
        if not piece:
            raise RuntimeError("the connection is gone")
        return piece


def test_a_file_that_became_a_link_is_refused(tmp_path):
    """A folder is walked first and read later; a link put in a file's place meanwhile leads nowhere."""
    (tmp_path / "secret").write_text("x")
    (tmp_path / "file").symlink_to(tmp_path / "secret")
    with pytest.raises(InvalidInput, match="file"), reading(tmp_path / "file", follow=False):
        pass
    with reading(tmp_path / "file", follow=True) as file:
        assert file.read() == b"x"


def test_a_download_that_breaks_off_leaves_what_was_there(tmp_path):
    target = tmp_path / "file"
    target.write_text("before")
    with pytest.raises(RuntimeError):
        write_below(tmp_path, target, Broken(b"12345678"))
    assert target.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidInput, match=r"nosuch.*no such file"), reading(tmp_path / "nosuch", follow=True):
        pass
