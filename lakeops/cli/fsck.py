"""``lakeops fsck``: is everything there, and is it what was written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lakeops.cli.options import Json, NoProgress, RepositoryUri
from lakeops.cli.output import SHORT_ID, Output, Part, counted
from lakeops.cli.session import open_lake
from lakeops.model.findings import Finding, Severity

if TYPE_CHECKING:
    from lakeops.ops.fsck.check import Fsck

app = typer.Typer(add_completion=False)

STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}
_TOLD = {"commits": "commit", "ranges": "range", "entries": "entry", "staged": "staged row", "objects": "object"}


@app.command("fsck", epilog="Example: lakeops fsck lakefs://flights --data")
def fsck(
    uri: RepositoryUri,
    data: Annotated[
        bool, typer.Option("--data", metavar="", help="Look at the objects too: there, as large, the same contents.")
    ] = False,
    no_progress: NoProgress = False,
    json: Json = False,
) -> None:
    """Check a repository: refs, commits, metaranges, ranges, staging; with --data also its objects.

    Changes nothing. Leaves with exit code 1 when there are errors; warnings and information leave it at 0.
    """
    out = Output(json)
    name = uri.only_repository()
    severities: Counter[Severity] = Counter()
    with open_lake(out, f"Checking {name}", hide_progress=no_progress) as lake:
        check = lake.repository(name).fsck(data=data)
        findings = _counted(check, severities)
        if json:
            failed = out.growing("findings", findings, lambda: _summary(check, severities))
            if failed is not None:
                raise typer.Exit(failed.exit_code)
        else:
            for finding in findings:
                for parts in finding_lines(finding):
                    out.line(*parts)
            out.line(*_words(check, severities))
    if severities[Severity.ERROR]:
        raise typer.Exit(1)


def finding_lines(finding: Finding) -> Iterator[Sequence[Part]]:
    """A finding as people read it: what is wrong where, who needs it, what to do."""
    severity = (finding.severity.value.ljust(8), STYLES[finding.severity])
    yield (severity, (finding.kind, "bold"), " ", finding.where, ": ", finding.message)
    if finding.commits:
        more = finding.commit_count - len(finding.commits)
        others = f" and {more:,} more" if more else ""
        yield ("        needed by ", ", ".join(commit[:SHORT_ID] for commit in finding.commits), others)
    yield ("        ", finding.advice)


def _counted(findings: Iterable[Finding], severities: Counter[Severity]) -> Iterator[Finding]:
    for finding in findings:
        severities[finding.severity] += 1
        yield finding


def _summary(check: Fsck, severities: Counter[Severity]) -> dict[str, object]:
    return {
        "ok": not severities[Severity.ERROR],
        "severities": {severity.value: severities[severity] for severity in Severity},
        "checked": dict(check.checked),
    }


def _words(check: Fsck, severities: Counter[Severity]) -> Iterator[Part]:
    looked = ", ".join(counted(check.checked[key], noun) for key, noun in _TOLD.items() if check.checked[key])
    yield f"Checked {looked or 'nothing'}: "
    if not severities[Severity.ERROR] and not severities[Severity.WARNING]:
        yield ("everything is in order.", "green")
        return
    errors = counted(severities[Severity.ERROR], "error")
    yield (f"{errors}, {counted(severities[Severity.WARNING], 'warning')}.", "red")
