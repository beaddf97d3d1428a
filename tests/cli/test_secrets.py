"""A canary that nobody may ever see: it stands where passwords and tokens stand, and no answer or error repeats it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakeops import Lake, Settings
from lakeops.model.errors import LakeopsError
from lakeops.model.sanitising import masked

CANARY = "c4n4ry-S3CR3T"

DATABASES = [
    f"postgresql+psycopg://ada:{CANARY}@127.0.0.1:1/lake",
    f"postgresql://ada:{CANARY}",  # the host was forgotten
    f"postgresql://ada:{CANARY}/lake",
    f"postgresql://ada:{CANARY}@",
    f"postgresql://ada:a/{CANARY}@127.0.0.1/lake",
    f"postgresql://ada:a@{CANARY}@127.0.0.1/lake",
    f"postgresql+psycopg://127.0.0.1:1/lake?password={CANARY}",
    f"postgresql+psycopg://127.0.0.1:1/lake?sslpassword={CANARY}&user=ada",
    f"mysql://ada:{CANARY}@db/lake",
    f"{CANARY}",
]
COMMANDS = (("config", "show"), ("repo", "list"), ("doctor",), ("log", "lakefs://flights/main"))


@pytest.mark.parametrize("url", DATABASES)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_databases_password(run, home, monkeypatch, caplog, url: str, command: tuple[str, ...]) -> None:
    monkeypatch.setenv("LAKEOPS_DATABASE_URL", url)
    for how in ((), ("--json",)):
        assert CANARY not in run(*command, *how).output
    assert CANARY not in caplog.text


@pytest.mark.parametrize("url", DATABASES)
def test_a_databases_password_in_python(home, url: str) -> None:
    settings = Settings.load(database_url=url)
    assert CANARY not in repr(settings)
    with pytest.raises(LakeopsError) as caught:
        Lake.open(settings=settings)
    error: BaseException | None = caught.value
    while error is not None:
        assert CANARY not in str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SPARK_MASTER", f"sc://spark.example:15002/;token={CANARY}"),
        ("SPARK_MASTER", f"sc://;token={CANARY}"),
        ("SPARK_MASTER", f"spark://ada:{CANARY}@x:y"),
        ("S3_ENDPOINT_URL", f"https://key:{CANARY}@store:9000"),
        ("S3_ENDPOINT_URL", f"https://store/?token={CANARY}"),
    ],
)
def test_the_token_of_a_cluster_and_the_password_of_a_store(run, home, monkeypatch, variable: str, value: str) -> None:
    monkeypatch.setenv(f"LAKEOPS_{variable}", value)
    commands = [("config", "show"), ("doctor",)]
    if variable == "SPARK_MASTER":
        monkeypatch.setenv("LAKEOPS_ENGINE", "spark")
    else:
        commands.append(("repo", "create", "lakefs://other", "s3://bucket/x"))
    for command in commands:
        for how in ((), ("--json",)):
            assert CANARY not in run(*command, *how).output


@pytest.mark.parametrize("url", DATABASES[:9])
def test_a_password_in_an_argument(run, flights, url: str) -> None:
    for arguments in (
        ("repo", "create", "lakefs://other", url),
        ("mirror", "create", "lakefs://other", "--source", url),
        ("import", "--from", url, "--to", "lakefs://flights/main/x/", "-m", "m"),
    ):
        assert CANARY not in run(*arguments, "--json").output


def test_a_password_in_a_settings_file(run, home, monkeypatch, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    for text in (f'database_url = "postgresql://ada:{CANARY}', f'database_url = 7\ncache_mb = "{CANARY}"'):
        file.write_text(text)
        assert CANARY not in run("--config", str(file), "repo", "list").output


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no URL: a=b?password=x", "no URL: a=b?password=x"),
        ("sqlite:////a/b.db", "sqlite:////a/b.db"),
        ("a/plain:path@x", "a/plain:path@x"),
        ("postgresql://host/name", "postgresql://host/name"),
        ("postgresql://ada@host/name", "postgresql://ada@host/name"),
        ("postgresql://ada:p@host/name", "postgresql://ada:***@host/name"),
        ("postgresql://ada:p@ss@host/name", "postgresql://ada:***@host/name"),
        ("postgresql://:p@host", "postgresql://:***@host"),
        ("postgresql://host/name?password=p", "postgresql://host/name?password=***"),
        ("see 'postgresql://ada:x' and (https://a.example/b)", "see 'postgresql://ada:***' and (https://a.example/b)"),
        ("spark://h1:7077,h2:7077", "spark://h1:7077,h2:7077"),
        ("http://[::1]:80/x", "http://[::1]:80/x"),
        ("s3://bucket/a:b/c@d?e=f", "s3://bucket/a:b/c@d?e=f"),
        ("http://host:9000/x@y", "http://host:9000/x@y"),
        ("lakefs://flights/dev:joe/x@y", "lakefs://flights/dev:joe/x@y"),
        ("https://b/x?X-Amz-Signature=s&X-Amz-Date=1", "https://b/x?X-Amz-Signature=***&X-Amz-Date=1"),
    ],
)
def test_what_is_masked(text: str, shown: str) -> None:
    assert masked(text) == shown
    assert LakeopsError(text).message == shown


def test_an_error_shows_no_control_character() -> None:
    error = LakeopsError("a\n::group::\x1b[2Jb\u202ec\x00")
    assert error.message == str(error)
    assert error.message.isprintable()
