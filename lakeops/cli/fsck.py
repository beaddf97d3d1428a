"""``lakeops fsck``: checks that everything is there and holds what was written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lakeops.cli.options import RepositoryUri, flag
from lakeops.cli.output import SHORT_ID, Styled
from lakeops.cli.session import Session, command
from lakeops.model.findings import Finding, Severity
from lakeops.model.words import counted

if TYPE_CHECKING:
    from lakeops.ops.fsck.check import Fsck

app: typer.Typer = typer.Typer(add_completion=False)

STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}
_NOUNS = {"commits": "commit", "ranges": "range", "entries": "entry", "staged": "staged row", "objects": "object"}


@command(app, "fsck", example="fsck lakefs://flights --data", progress=True)
def fsck(
    session: Session,
    uri: RepositoryUri,
    data: Annotated[bool, flag("--data", "Also check that each object is there, with its size and contents.")] = False,
) -> None:
    """Check a repository: refs, commits, metaranges, ranges, staging; with --data also its objects.

    Changes nothing. Leaves with exit code 1 when there are errors. Warnings and information leave it at 0. The result
    stays on record, for the page of checks.
    """
    repository = session.repository(uri)
    severities: Counter[Severity] = Counter()
    with session.progress(f"Checking {repository.id}"):
        check = repository.fsck(data=data)
        findings = _counted(check, severities)
        if session.as_json:
            failed = session.stream_document("findings", findings, lambda: _summary(check, severities))
            if failed is not None:
                raise typer.Exit(failed.exit_code)
        else:
            for finding in findings:
                for pieces in finding_lines(finding):
                    session.line(*pieces)
            session.line(*_result(check, severities))
        check.note()
    if severities[Severity.ERROR]:
        raise typer.Exit(1)


def finding_lines(finding: Finding) -> Iterator[Sequence[Styled]]:
    """A finding as people read it: what is wrong where, which commits need it, what to do."""
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


def _result(check: Fsck, severities: Counter[Severity]) -> Iterator[Styled]:
    checked = ", ".join(counted(check.checked[key], noun) for key, noun in _NOUNS.items() if check.checked[key])
    yield f"Checked {checked or 'nothing'}: "
    if not severities[Severity.ERROR] and not severities[Severity.WARNING]:
        yield ("everything is in order.", "green")
        return
    errors = counted(severities[Severity.ERROR], "error")
    yield (f"{errors}, {counted(severities[Severity.WARNING], 'warning')}.", "red")
