from __future__ import annotations

from support.copies import copied_file


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
