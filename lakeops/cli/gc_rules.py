"""``lakeops gc rules``: which commits a repository keeps, and for how long."""

from __future__ import annotations

import json as json_text
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lakeops.cli.options import Json, RepositoryUri
from lakeops.cli.output import Output, Part, counted
from lakeops.cli.session import open_lake
from lakeops.model.errors import InvalidInput, NotFound

app = typer.Typer(help="Show, set and remove retention rules.", add_completion=False)


@app.command("get")
def get(uri: RepositoryUri, json: Json = False) -> None:
    """Show the retention rules."""
    out = Output(json)
    with open_lake(out) as lake:
        repository = lake.repository(uri.only_repository())
        rules = repository.gc.rules()
    if rules is None:
        raise NotFound(
            f"repository {repository.id!r} has no retention rules: every commit lives; set some with "
            f"`lakeops gc rules set lakefs://{repository.id} FILE`"
        )
    out.answer(rules, *_lines(rules))


@app.command("set", epilog="Example: lakeops gc rules set lakefs://flights rules.json")
def set_rules(
    uri: RepositoryUri,
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="A JSON file; stdin when it is - or left out.", show_default=False)
    ] = "-",
    json: Json = False,
) -> None:
    """Replace the retention rules with those of a JSON file.

    {"default_retention_days": 21, "branches": [{"branch_id": "main", "retention_days": 28}]}
    """
    out = Output(json)
    text = _read(file)
    with open_lake(out) as lake:
        rules = lake.repository(uri.only_repository()).gc.set_rules(text) or {}
    out.answer(rules, ["Retention rules of ", (str(uri), "green"), ":"], *_lines(rules))


@app.command("delete")
def delete(uri: RepositoryUri, json: Json = False) -> None:
    """Remove the retention rules: from then on no commit expires."""
    out = Output(json)
    with open_lake(out) as lake:
        collection = lake.repository(uri.only_repository()).gc
        before = collection.rules()
        collection.set_rules(None)
    shown = json_text.dumps(before) if before else "none"
    out.answer({"removed": before}, ["No commit expires any more; the rules were ", shown])


def _read(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise InvalidInput(f"cannot read {file!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{file!r} is not text in UTF-8") from None


def _lines(rules: Mapping[str, Any]) -> Iterator[Sequence[Part]]:
    yield ("Default: ", counted(rules["default_retention_days"], "day"))
    for key, name in (("branches", "branch_id"), ("tags", "tag_id")):
        for entry in rules.get(key, ()):
            yield (name.removesuffix("_id").capitalize(), " ", (entry[name], "cyan"), ": ", _says(entry))
    if "mirror_lag_days" in rules:
        yield ("Mirrors may lag: ", counted(rules["mirror_lag_days"], "day"))
    if "log_days" in rules:
        yield ("Log: ", counted(rules["log_days"], "day"))
    if "key_days" in rules:
        yield ("Idempotency keys: ", counted(rules["key_days"], "day"))


def _says(entry: Mapping[str, Any]) -> str:
    words = []
    if "retention_days" in entry:
        words.append(f"kept {counted(entry['retention_days'], 'day')}")
    if "expire_after_days" in entry:
        words.append(f"deleted after {counted(entry['expire_after_days'], 'day')}")
    return ", ".join(words)
