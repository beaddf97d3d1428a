"""``lakeops import``: a bucket's prefix or a directory becomes a folder of a branch, in one commit, uncopied."""

from __future__ import annotations

from typing import Annotated

import typer

from lakeops.cli.log import commit_lines
from lakeops.cli.options import IdempotencyKey, Json, Metadata, NoProgress, parse_metadata
from lakeops.cli.output import Output, counted, human_size
from lakeops.cli.places import url_of
from lakeops.cli.session import open_lake
from lakeops.model.uris import LakeUri

app = typer.Typer(add_completion=False)


@app.command(
    "import", epilog='Example: lakeops import --from s3://raw/events/ --to lakefs://flights/main/events/ -m "take over"'
)
def import_(
    source: Annotated[
        str,
        typer.Option("--from", metavar="URL", help="s3://BUCKET/PREFIX, or a directory.", show_default=False),
    ],
    to: Annotated[
        LakeUri,
        typer.Option(
            "--to",
            parser=LakeUri.parse,
            metavar="lakefs://REPO/BRANCH/PREFIX",
            help="The folder to replace.",
            show_default=False,
        ),
    ],
    message: Annotated[
        str, typer.Option("--message", "-m", metavar="TEXT", help="What was done and why.", show_default=False)
    ],
    meta: Metadata = None,
    allow_empty_source: Annotated[
        bool, typer.Option("--allow-empty-source", metavar="", help="Let an empty source empty the folder.")
    ] = False,
    skip_special: Annotated[
        bool,
        typer.Option("--skip-special", metavar="", help="Leave out links, devices and names that are not UTF-8."),
    ] = False,
    idempotency_key: IdempotencyKey = None,
    no_progress: NoProgress = False,
    json: Json = False,
) -> None:
    """Import objects where they are: nothing is copied.

    The folder then holds what the source holds, and nothing else. The other paths of the branch stay as they are.
    """
    out = Output(json)
    repository_id, name, prefix = to.with_prefix()
    with open_lake(out, f"Importing {source}", hide_progress=no_progress) as lake:
        branch = lake.repository(repository_id).branch(name)
        done = branch.import_objects(
            url_of(source),
            prefix,
            message,
            parse_metadata(meta),
            idempotency_key=idempotency_key,
            allow_empty_source=allow_empty_source,
            skip_special=skip_special,
        )
    objects = counted(int(done.metadata["lakeops.import.objects"]), "object")
    size = human_size(int(done.metadata["lakeops.import.bytes"]))
    out.answer(
        done, ["Imported ", objects, f" ({size}) to ", (f"{name}/{prefix}", "green"), ":"], [""], *commit_lines(done)
    )
