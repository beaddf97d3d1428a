"""Errors of lakeops that are Python's own too keep their words where Python's errors are caught."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.errors import has_kind

from lakeops import Lake
from lakeops.model.errors import InvalidInput, ObjectNotFound
from lakeops.model.names import LakeUri
from lakeops.ops.files import translated
from lakeops.ops.gc.unreferenced import _explained
from lakeops.settings import Settings
from lakeops.store.local import translated as translated_by_the_store


@pytest.mark.parametrize(
    "guard",
    [lambda: translated_by_the_store("file:///x", "k"), lambda: _explained(Path("x")), lambda: translated(Path("x"))],
)
@pytest.mark.parametrize("error", [ObjectNotFound("no object 'a'"), InvalidInput("of another kind")])
def test_what_lakeops_says_is_not_put_into_other_words(guard, error) -> None:
    with pytest.raises(type(error)) as caught, guard():
        raise error
    assert caught.value is error


def test_settings_that_are_refused_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lakeops.toml").write_text("cache_mb = 7\n")
    (tmp_path / "lakeops.toml").chmod(0o666)
    with pytest.raises(InvalidInput, match="because others can write it", check=has_kind("invalid_settings")):
        Settings.load()


def test_callers_may_catch_python_s_errors(lake: Lake) -> None:
    repo = lake.create_repository("repo")
    with pytest.raises(FileNotFoundError):
        repo.ref("main").read("nothing")
    with pytest.raises(ValueError, match="nothing"):
        repo.merge("main", "main", strategy="nothing")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="lakefs://") as caught:
        LakeUri.parse("s3://repo")
    assert caught.value.kind == "invalid_uri"
