"""Uploads of files and directories: what goes where, what is refused, and links that appear late."""

from __future__ import annotations

import pytest
from support.scenes import open_faulty, tree

from lakeops.model.errors import InvalidInput, InvalidPath, StoreUnavailable
from lakeops.ops.files import reading
from lakeops.testing import Faults


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "tree"
    (folder / "deep").mkdir(parents=True)
    (folder / "a").write_bytes(b"1")
    (folder / "deep" / "b").write_bytes(b"2")
    return folder


@pytest.mark.parametrize(
    ("name", "path", "wanted"),
    [
        ("", "", {"a": b"1", "deep/b": b"2"}),
        ("", "raw", {"raw/a": b"1", "raw/deep/b": b"2"}),
        ("", "raw/", {"raw/a": b"1", "raw/deep/b": b"2"}),
        ("a", "", {"a": b"1"}),
        ("a", "raw/", {"raw/a": b"1"}),
        ("a", "raw/x.csv", {"raw/x.csv": b"1"}),
    ],
)
def test_files_go_below_a_folder_or_to_a_path(repo, folder, name, path, wanted):
    entries = repo.branch("main").upload(folder / name, path, metadata={"k": "v"}, content_type="text/csv")
    assert tree(repo, "main") == wanted
    assert [entry.path for entry in entries] == list(wanted)
    assert {(entry.content_type, entry.metadata["k"]) for entry in entries} == {("text/csv", "v")}


def test_links_are_refused_or_left_out(repo, folder):
    (folder / "link").symlink_to(folder / "a")
    with pytest.raises(InvalidInput, match="symbolic link"):
        repo.branch("main").upload(folder)
    assert tree(repo, "main") == {}
    repo.branch("main").upload(folder, skip_special=True)
    assert set(tree(repo, "main")) == {"a", "deep/b"}


def test_a_name_that_cannot_be_an_object_is_refused_before_anything_is_sent(repo, folder):
    with pytest.raises(InvalidPath):
        repo.branch("main").upload(folder, "x" * 1020)
    assert tree(repo, "main") == {}


def test_after_a_failure_what_was_uploaded_is_staged_and_the_rest_goes_again(settings, repo, tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number:02}").write_bytes(b"x")
    faults = Faults()

    def unavailable(_):
        raise StoreUnavailable("the store does not answer")

    faults.hook("put", at=5, when="before", action=unavailable)
    with open_faulty(settings, faults) as lake, pytest.raises(StoreUnavailable):
        lake.repository("repo").branch("main").upload(folder)
    assert 0 < len(tree(repo, "main")) < 40
    repo.branch("main").upload(folder)
    assert len(tree(repo, "main")) == 40


def test_a_file_that_became_a_link_is_refused(tmp_path):
    """A folder is walked first and read later; a link put in a file's place meanwhile leads nowhere."""
    (tmp_path / "secret").write_text("x")
    (tmp_path / "file").symlink_to(tmp_path / "secret")
    with pytest.raises(InvalidInput, match="file"), reading(tmp_path / "file", follow=False):
        pass
    with reading(tmp_path / "file", follow=True) as file:
        assert file.read() == b"x"


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidInput, match=r"nosuch.*no such file"), reading(tmp_path / "nosuch", follow=True):
        pass
