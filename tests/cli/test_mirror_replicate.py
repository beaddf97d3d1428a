"""``lakeops mirror replicate``: copies, goes on, and says what it did."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakeops.cli import replication
from lakeops.lake import Lake
from lakeops.model.errors import StoreUnavailable
from lakeops.ops.mirror import replicate as verb
from lakeops.store.local import LocalStore


@pytest.fixture
def there(home) -> LocalStore:
    return LocalStore(home.parent / "there", fsync=False)


@pytest.fixture
def args(flights, there) -> list[str]:
    return ["mirror", "replicate", "lakefs://flights", "--destination", there.url]


def managed(url: str) -> set[str]:
    store = LocalStore(Path(url.removeprefix("file://")), fsync=False)
    return {item.key for prefix in verb.MANAGED for item in store.list(prefix)}


def test_it_copies_what_is_missing(run, args, flights, there):
    count = len(managed(flights.storage_namespace))
    assert run.ok(*args).startswith(f"{count} objects copied (")
    assert managed(there.url) == managed(flights.storage_namespace)
    assert run.ok(*args) == f"0 objects copied (0 B), {count} present\n"


def test_what_is_extra_is_told_and_deleted_when_asked(run, args, there):
    run.ok(*args)
    there.put("data/2026010100/extra", b"x")
    assert "1 not at the source (--delete removes them)" in run.ok(*args)
    assert "1 deleted" in run.ok(*args, "--delete")
    assert run.json(*args)["extra"] == 0


def test_namespaces_without_a_repository(run, flights, there):
    words = ["mirror", "replicate", "--source", flights.storage_namespace, "--destination", there.url]
    assert run.json(*words)["copied"] == len(managed(flights.storage_namespace))


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["lakefs://flights"], "invalid_input"),
        (["--destination", "file:///tmp/nowhere/x"], "invalid_input"),
        (["lakefs://none", "--destination", "file:///tmp/nowhere/x"], "repository_not_found"),
        (["--source", "file:///nowhere/at/all", "--destination", "file:///tmp/nowhere/x"], "not_found"),
        (["lakefs://flights", "--destination", "ftp://x"], "invalid_uri"),
        (["lakefs://flights", "--destination", "file:///tmp/nowhere/x", "--watch", "0"], "invalid_input"),
    ],
)
def test_what_is_wrong_is_said(run, flights, words, kind):
    assert run.error("mirror", "replicate", *words)["kind"] == kind


def test_a_failure_names_the_object(run, args, there):
    blocked = there.root / "data"
    blocked.parent.mkdir(parents=True)
    blocked.write_text("a file where a directory is needed")
    found = run.error(*args)
    assert found["kind"] == "not_all_replicated"
    assert found["exit_code"] == 1
    assert {failure["kind"] for failure in found["failures"]} == {"invalid_path"}
    blocked.unlink()
    assert run.json(*args)["copied"] == len(found["failures"])


def test_watching_goes_on_through_failures(run, args, flights, there, monkeypatch):
    """Passes that did nothing say nothing; one that failed is told, and the next one goes on."""
    passes = []

    def pause(seconds: float) -> None:
        passes.append(seconds)
        if len(passes) == 2:
            flights.branch("dev").put("raw/new.csv", b"new")
        if len(passes) == 4:
            raise KeyboardInterrupt

    replicate, failed = verb.replicate, []

    def flaky(*args, **options):
        if len(passes) == 1 and not failed:
            failed.append(True)
            raise StoreUnavailable("no answer")
        return replicate(*args, **options)

    monkeypatch.setattr(replication, "pause", pause)
    monkeypatch.setattr(verb, "replicate", flaky)
    result = run(*args, "--watch", "7", "--json")
    assert result.exit_code == 130
    assert passes == [7, 7, 7, 7]
    assert result.stdout.count('"copied": 1,') == 1
    assert "no answer" in result.stderr
    assert managed(there.url) == managed(flights.storage_namespace)


@pytest.fixture
def mirror(flights, home, monkeypatch):
    """A mirror of the repository, in a lake of its own that the environment names."""
    other = home.parent / "other"
    monkeypatch.setenv("LAKEOPS_HOME", str(other))
    with Lake.open() as lake:
        yield lake.create_mirror("copy", source=f"{home}#flights")


def test_a_mirror_knows_both_places(run, mirror, flights):
    assert run.json("mirror", "replicate", "lakefs://copy")["copied"] == len(managed(flights.storage_namespace))
    assert managed(mirror.storage_namespace) == managed(flights.storage_namespace)
    mirror.sync()
    assert mirror.ref("main").read("readme.md") == b"# flights\n"


def test_a_mirror_of_a_directory_is_not_for_s3(run, mirror):
    assert "no bucket" in run.error("mirror", "setup-s3", "lakefs://copy")["message"]


def test_a_mirror_can_be_copied_on(run, mirror, home):
    run.ok("mirror", "replicate", "lakefs://copy")
    again = home.parent / "again"
    assert run.json("mirror", "replicate", "lakefs://copy", "--destination", str(again))["copied"] > 5
