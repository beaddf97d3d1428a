"""``lakeops mirror promote-writable``: open a mirror for writing when its source is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lakeops.cli.options import Json, NoProgress, RepositoryUri, Yes
from lakeops.cli.output import SHORT_ID, Output, counted, moment
from lakeops.cli.session import SHOWN, agree, open_lake

if TYPE_CHECKING:
    from lakeops.ops.mirror.promote_writable import Loss, LostRef

app = typer.Typer(add_completion=False)


@app.command("promote-writable")
def promote_writable(
    uri: RepositoryUri,
    yes: Yes = False,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Look afterwards whether all that is shown is there.")
    ] = True,
    json: Json = False,
) -> None:
    """Fail over: turn a mirror into a writable repository at what it shows now.

    It follows its source no longer, and cannot go back. What would be lost is shown first. Retention rules and
    protected branches of the source hold here from then on. At the end everything that is shown is looked for.
    """
    out = Output(json)
    name = uri.only_repository()
    with open_lake(out) as lake:
        mirror = lake.mirror(name)
        mirror.configuration.check_following()
        loss = mirror.loss()
        agree(out, yes, f"Open {name!r} for writing and leave its source?", lambda: _show(out, name, loss))
        done = mirror.promote_writable()
        flaws = mirror.check() if check else None
        record = lake.repository(name).record
    lost = "The source was not asked: what it has had since the last pass is lost."
    if loss.asked:
        lost = f"{counted(len(loss.refs), 'ref')} of the source were further." if loss.refs else "Nothing is lost."
    if flaws is not None:
        lost += " Everything that is shown is there." if not flaws else ""
    out.answer(
        {**record.to_json(), "mirror": done.to_json(), "lost": loss.to_json(), "flaws": flaws},
        ["Repository ", (f"lakefs://{name}", "green"), " is writable now and follows no source."],
        [lost],
        [f"Older commits cannot be read yet: lakeops mirror prove lakefs://{name}"],
    )
    for flaw in flaws or ():
        out.note(("Lost:", "red"), " ", flaw)
    if flaws:
        raise typer.Exit(1)


@app.command("prove")
def prove(uri: RepositoryUri, no_progress: NoProgress = False, json: Json = False) -> None:
    """After a fail-over, let older commits live again that are whole. Their metaranges are read, and no objects."""
    out = Output(json)
    with open_lake(out, "prove", hide_progress=no_progress) as lake:
        proved = lake.mirror(uri.only_repository()).prove()
    out.answer(
        proved,
        [f"{counted(proved.commits, 'commit')} live again; {proved.unproved:,} are not whole, or were never shown"],
    )


def _show(out: Output, name: str, loss: Loss) -> None:
    out.say("This opens ", (f"lakefs://{name}", "red"), " for writing; it follows its source no longer.")
    if loss.asked:
        out.say("The source was asked just now.")
    else:
        seen = "never" if loss.last_sync is None else moment(loss.last_sync)
        out.say(
            ("The source cannot be reached;", "yellow"), f" it was last seen {seen}, more may be lost than is shown."
        )
    out.say(f"{counted(len(loss.refs), 'ref')} would lose commits{':' if loss.refs else '.'}")
    for ref in loss.refs[:SHOWN]:
        out.say("  ", (f"{ref.kind} {ref.id}", "cyan"), ": ", _lost(ref))
    if len(loss.refs) > SHOWN:
        out.say(f"  ... and {len(loss.refs) - SHOWN:,} more")


def _lost(ref: LostRef) -> str:
    head = ref.source_head[:SHORT_ID]
    if ref.promoted is None:
        return f"nothing of it has arrived; the source has {head}"
    commits = "an unknown number of commits" if ref.commits is None else counted(ref.commits, "commit")
    return f"{commits}, from {ref.promoted[:SHORT_ID]} to {head}"
