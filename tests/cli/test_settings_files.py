"""Which settings files are used: what came with somebody else's directory names no server for the user's password."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.errors import has_kind, raising

from lakeops import Lake
from lakeops.model.errors import InvalidInput
from lakeops.settings import LakeAddress, Settings

FOREIGN = 'database_url = "postgresql+psycopg://evil.example/lake"\n'


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without any settings, and a home without any."""
    for name in [name for name in os.environ if name.startswith("LAKEOPS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "work" / "deep"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


FILES = {"lakeops.toml": FOREIGN, "pyproject.toml": f"[tool.lakeops]\n{FOREIGN}"}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("control", [".git", ".hg", ".svn", ".jj"])
@pytest.mark.parametrize("above", [0, 1])
def test_a_file_of_a_clone_is_an_error(place: Path, name: str, control: str, above: int) -> None:
    (place / name).write_text(FILES[name])
    assert Settings.load().database_url is not None
    folder = [place, place.parent][above]
    # A work tree of Git beside its repository has a file of this name.
    (folder / control).write_text("gitdir: elsewhere") if above else (folder / control).mkdir()
    with pytest.raises(InvalidInput, match=r"version-controlled.*--config", check=has_kind("invalid_settings")):
        Settings.load()


@pytest.mark.parametrize("name", FILES)
def test_a_link_to_a_file_of_a_clone_is_an_error(place: Path, tmp_path: Path, name: str) -> None:
    clone = tmp_path / "clone"
    (clone / ".git").mkdir(parents=True)
    (clone / name).write_text(FILES[name])
    (place / name).symlink_to(clone / name)
    with pytest.raises(InvalidInput, match="version-controlled", check=has_kind("invalid_settings")):
        Settings.load()


def test_a_file_that_everybody_may_write_is_an_error(place: Path) -> None:
    (place / "lakeops.toml").write_text(FOREIGN)
    (place / "lakeops.toml").chmod(0o666)
    with pytest.raises(InvalidInput, match="others can write it", check=has_kind("invalid_settings")):
        Settings.load()


def test_a_file_of_another_user_is_an_error(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "lakeops.toml").write_text(FOREIGN)
    owner = (place / "lakeops.toml").stat().st_uid
    if owner == 0:
        os.chown(place / "lakeops.toml", 12345, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(InvalidInput, match="others can write it", check=has_kind("invalid_settings")):
        Settings.load()


def test_a_project_without_settings_is_none_of_ours(place: Path) -> None:
    (place / ".git").mkdir()
    for text in ("[tool.other]\nx = 1\n", "tool = 1\n", "not TOML ="):
        (place / "pyproject.toml").write_text(text)
        assert Settings.load().database_url is None


BROKEN = {
    "[tool.lakeops]\nhome = \n": "is not TOML, at line 2",
    "[tool.lakeop]\nhome = 'x'\n": "has no table",
    "[tool]\nlakeops = 1\n": "has no table",
    "tool = 1\n": "has no table",
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_project_that_is_named_has_settings(place: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    file = place / "pyproject.toml"
    file.write_text(text)
    if "lakeops" in text:
        with pytest.raises(InvalidInput, match=BROKEN[text], check=has_kind("invalid_settings")):
            Settings.load()
    monkeypatch.setenv("LAKEOPS_CONFIG", str(file))
    with pytest.raises(InvalidInput, match=BROKEN[text], check=has_kind("invalid_settings")):
        Settings.load()


@pytest.mark.parametrize("where", ["environment", "file"])
def test_a_home_that_is_given_is_the_lake(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    other = f"sqlite:///{tmp_path}/other.db"
    if where == "file":
        (place / "lakeops.toml").write_text(f'database_url = "{other}"\n')
    else:
        monkeypatch.setenv("LAKEOPS_DATABASE_URL", other)
    assert Settings.load().catalog_url == other
    assert Settings.load(home=tmp_path).catalog_url == f"sqlite:///{tmp_path}/catalog.db"
    assert Settings.load(home=tmp_path, database_url=other).catalog_url == other
    with Lake.open(home=tmp_path / "scratch"), LakeAddress(home=str(tmp_path / "scratch")).open(Lake.open) as lake:
        assert lake.catalog.database.shown.endswith("scratch/catalog.db")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("home", ""), ("home", 5), ("disk_cache", "")),
        *(("committer", "é" * 2049), ("committer", "a\0b"), ("committer", "\udcff"), ("committer", 5)),
    ],
)
def test_a_setting_that_means_nothing_is_named(place: Path, name: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=f"setting '{name}'", check=has_kind("invalid_settings")):
        Settings.load(**{name: value})


def test_a_file_that_is_named_is_used_alone(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / ".git").mkdir()
    (place / "lakeops.toml").write_text("cache_mb = 7\n")
    named = tmp_path / "named.toml"
    named.write_text("cache_mb = 8\n")
    monkeypatch.setenv("LAKEOPS_CONFIG", str(place / "lakeops.toml"))
    assert Settings.load().cache_mb == 7
    monkeypatch.setenv("LAKEOPS_CONFIG", str(named))
    assert Settings.load().cache_mb == 8
    monkeypatch.setenv("LAKEOPS_CONFIG", str(tmp_path / "none.toml"))
    with pytest.raises(InvalidInput, match="no such file", check=has_kind("invalid_settings")):
        Settings.load()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("HOME", "~nosuchuser/x"),
        ("DISK_CACHE", "~nosuchuser/x"),
        ("CONFIG", "~nosuchuser/x"),
        *(
            (name, text)
            for name in ("GRACE_HOURS", "OUTAGE_MINUTES", "PUBLISH_MINUTES")
            for text in ("inf", "nan", "1e12")
        ),
        ("GRACE_HOURS", "0.0002"),
    ],
)
def test_a_value_that_cannot_work_is_named(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"LAKEOPS_{name}", text)
    with raising("invalid_settings", f"LAKEOPS_{name}"):
        Settings.load()


def test_a_user_without_a_home_is_asked_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # what it does for a user without a home
    with raising("invalid_settings", "LAKEOPS_HOME"):
        Settings.load()


def test_the_users_own_file_comes_last(place: Path, tmp_path: Path) -> None:
    own = tmp_path / "config" / "lakeops"
    own.mkdir(parents=True)
    (own / "lakeops.toml").write_text('cache_mb = 7\nengine = "local"\n')
    assert Settings.load().cache_mb == 7
    (place / "lakeops.toml").write_text("cache_mb = 8\n")
    assert (Settings.load().cache_mb, Settings.load().engine) == (8, "local")


def test_a_file_that_is_no_toml_shows_no_line_of_it(place: Path) -> None:
    (place / "lakeops.toml").write_text('database_url = "postgresql://ada:s3cr3t@db\n')
    with pytest.raises(InvalidInput, check=has_kind("invalid_settings")) as caught:
        Settings.load()
    assert "s3cr3t" not in str(caught.value)
    assert f"settings file '{place / 'lakeops.toml'}' is not TOML, at line 1, column 43" in str(caught.value)
    (place / "lakeops.toml").write_bytes(b'committer = "\xff"\n')
    with pytest.raises(InvalidInput, match=r"lakeops.toml' is not TOML$", check=has_kind("invalid_settings")):
        Settings.load()


def test_the_command_line_names_a_file(run, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("cache_mb = 9\n")
    shown = run.json("--config", str(file), "config", "show")
    assert shown["cache_mb"] == {"value": 9, "source": str(file)}
    assert "LAKEOPS_CONFIG" not in os.environ
    assert run.error("--config", str(tmp_path / "none"), "config", "show")["kind"] == "invalid_settings"


@pytest.mark.parametrize("engine", ["auto", "local", "spark"])
def test_the_command_line_names_an_engine(run, monkeypatch, engine: str) -> None:
    monkeypatch.setenv("LAKEOPS_ENGINE", "local")
    shown = run.json("--engine", engine, "config", "show")
    assert shown["engine"] == {"value": engine, "source": "LAKEOPS_ENGINE"}
    assert os.environ["LAKEOPS_ENGINE"] == "local"
    monkeypatch.delenv("LAKEOPS_ENGINE")
    run.json("--engine", engine, "config", "show")
    assert "LAKEOPS_ENGINE" not in os.environ
