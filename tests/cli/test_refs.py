"""``lakeops refs`` and ``lakeops hook`` on a real lake."""

from __future__ import annotations

import re

from support.copies import copied_file

R = "lakefs://flights"


def test_a_repository_is_dumped_lost_and_restored(run, flights, lake):
    assert "There is no dump." in run("refs", "status", R).stdout
    assert run.json("refs", "dump", R)["whole"] is True
    assert "nothing to add" in run("refs", "dump", R).stdout
    run("branch", "create", "lakefs://flights/more", "--source", "lakefs://flights/main")
    assert run.json("refs", "status", R)["behind"] is True
    assert "one more file" in run("refs", "dump", R).stdout
    shown, branches = run.lines("log", "lakefs://flights/main"), run.json("branch", "list", R)
    run("repo", "delete", R, "--yes")
    restored = run.json("refs", "restore", R, flights.storage_namespace)
    assert restored["repository"]["id"] == "flights"
    assert restored["commits"]
    assert (run.lines("log", "lakefs://flights/main"), run.json("branch", "list", R)) == (shown, branches)
    again = run.error("refs", "restore", R, flights.storage_namespace)
    assert (again["kind"], again["exit_code"]) == ("already_exists", 5)
    run("repo", "adopt", R, "--yes")
    assert run.error("gc", "mark", R)["kind"] == "mark_refused"
    assert "not accepted" in run("refs", "status", R).stdout
    assert run.json("refs", "accept", R, "--yes") == {"id": "flights", "restored_at": None}
    assert run("gc", "mark", R).exit_code == 0


def test_the_commands_that_a_restore_names_work(run, flights):
    run("refs", "dump", R)
    run("repo", "delete", R, "--yes")
    told = run("refs", "restore", R, flights.storage_namespace).stderr
    named = [line.split() for line in re.findall(r"lakeops (.+)$", told, re.MULTILINE)]
    assert [words[:-1] for words in named] == [["fsck"], ["repo", "adopt"], ["refs", "accept"]]
    assert [run(*words, *(["--yes"] if len(words) > 2 else [])).exit_code for words in named] == [0, 0, 0]
    assert run("gc", "mark", R).exit_code == 0


def test_what_is_no_dump_is_told(run, flights, tmp_path):
    missing = run.error("refs", "restore", "lakefs://other", (tmp_path / "none").as_uri())
    assert (missing["kind"], missing["exit_code"]) == ("not_found", 4)


def test_each_change_goes_to_the_dump(run, flights):
    assert run.json("refs", "automatic", R) == {"id": "flights", "automatic": True}
    run("tag", "create", "lakefs://flights/v9", "lakefs://flights/main")
    status = run("refs", "status", R).stdout
    assert "It has everything." in status
    assert "Each change of a ref is added" in status
    assert run.json("refs", "automatic", R, "--off")["automatic"] is False


def test_hooks_are_set_listed_and_removed(run, flights, tmp_path, monkeypatch):
    missing = run.error("hook", "set", R, "not-here")
    assert (missing["kind"], missing["exit_code"]) == ("hook_missing", 5)
    info = tmp_path / "site" / "ours-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ours\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[lakeops.hooks]\nnot-here = json:loads\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    hook = run.json("hook", "set", R, "not-here", "--on", "create-tag", "--ref", "v*", "--seconds", "5")
    assert hook == {"name": "not-here", "when": "before", "actions": ["create-tag"], "pattern": "v*", "seconds": 5}
    assert run.json("hook", "list", R) == [hook]
    assert "create-tag" in run("hook", "list", R).stdout
    (info / "entry_points.txt").unlink()  # as on another machine
    refused = run.error("tag", "create", "lakefs://flights/v9", "lakefs://flights/main")
    assert (refused["kind"], refused["exit_code"]) == ("hook_missing", 5)
    assert run.error("hook", "set", R, "x", "--on", "push")["exit_code"] == 2
    assert run.json("hook", "remove", R, "not-here") == {"name": "not-here"}
    assert run.error("hook", "remove", R, "not-here")["exit_code"] == 4
    run("tag", "create", "lakefs://flights/v9", "lakefs://flights/main")


def test_a_copy_of_the_catalog_says_whose_the_namespace_is_and_takes_it_over(run, flights, tmp_path, monkeypatch):
    home = flights._ctx.settings.home
    assert run.json("repo", "adopt", "lakefs://flights")["owner"]["epoch"] == 1
    assert "this catalog's already" in run.ok("repo", "adopt", "lakefs://flights")
    monkeypatch.setenv("LAKEOPS_DATABASE_URL", copied_file(home, tmp_path / "copy"))
    refused = run.error("gc", "mark", "lakefs://flights")
    assert (refused["kind"], refused["exit_code"]) == ("not_the_owner", 5)
    assert f"{home}/catalog.db" in refused["message"]
    asked = run("repo", "adopt", "lakefs://flights")
    assert asked.exit_code == 2
    assert "It will no longer collect garbage there" in asked.stderr
    assert f"{home}/catalog.db" in asked.stderr
    done = run.json("repo", "adopt", "lakefs://flights", "--yes")
    assert done["owner"]["epoch"] == 2
    assert done["before"]["database"] == f"sqlite {home}/catalog.db"
    assert done["owner"]["database"] == f"sqlite {tmp_path}/copy/catalog.db"
    run.ok("gc", "mark", "lakefs://flights")
    monkeypatch.delenv("LAKEOPS_DATABASE_URL")
    assert run.error("gc", "mark", "lakefs://flights")["kind"] == "not_the_owner"
    assert "is this catalog's now (epoch 3)" in run.ok("repo", "adopt", "lakefs://flights", "--yes")
