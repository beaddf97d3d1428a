"""Operators that keep a repository in order: expire refs, mark and sweep garbage, check.

A mark deletes nothing, and a newer mark takes the place of an older one, so marking again is always fine. Until its
sweep begins a mark can be restored. A sweep goes on where it was killed. Sweeping a mark again does nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Literal, get_args

from lakeops.airflow.failures import LakeopsFailure
from lakeops.airflow.links import LakeopsPageLink
from lakeops.airflow.operators.base import LakeopsOperator
from lakeops.airflow.task import fixed, truth
from lakeops.model.errors import InvalidInput
from lakeops.model.findings import Finding, Severity
from lakeops.model.text import safe
from lakeops.model.words import counted, human_size

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lakeops.airflow.task import TaskRun
    from lakeops.lake import Lake, Repository


class _CollectionOperator(LakeopsOperator):
    """Does a step of garbage collection; links to the page with the rules and the marks."""

    operator_extra_links: Any = (LakeopsPageLink(),)

    def pages(self, repository: Repository, record: dict[str, Any] | None) -> dict[str, str]:
        """The page of the repository's garbage collection."""
        return {"page": self.page(repository, "gc")}


class LakeopsExpireRefsOperator(_CollectionOperator):
    """Deletes branches and tags that have been idle for longer than the retention rules allow; returns them.

    The rule is ``expire_after_days``. The result has ``deleted`` and ``kept``, lists of records (``type``, ``id``,
    ``commit_id``, ``idle_days``, ``kept``: why it stays). Default and protected branches stay, and those with
    uncommitted changes.

    Args:
        only_show: delete nothing; ``deleted`` then lists what would be deleted.
        kwargs: see ``LakeopsOperator``.
    """

    only_show: bool | str = False

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        """The deleted refs, and those that stay."""
        only_show = truth("only_show", self.only_show)
        found = repository.gc.idle_refs() if only_show else repository.gc.expire_refs()
        for ref in found:
            end = f"stays: {ref.kept}" if ref.kept else "would be deleted" if only_show else "is deleted"
            self.log.info(
                "%s lakefs://%s/%s, idle for %d days, %s", ref.type, repository.id, ref.id, ref.idle_days, end
            )
        return {
            "deleted": [ref.to_json() for ref in found if ref.kept is None],
            "kept": [ref.to_json() for ref in found if ref.kept is not None],
        }


class LakeopsGcMarkOperator(_CollectionOperator):
    """Expires commits and finds what no live one needs; returns the mark's ``id``, ``objects``, ``bytes``, ``report``.

    It deletes nothing. The log has the report. A mark cannot be swept any more once there is a later one.

    Args:
        only_show: change nothing; the report says what a mark would do, and ``id`` is None.
        kwargs: see ``LakeopsOperator``.
    """

    only_show: bool | str = False

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        """The mark and its report."""
        if truth("only_show", self.only_show):
            report = repository.gc.mark(dry_run=True).report
            self.log.info("What a mark would hold now; nothing was changed.\n%s", summary(repository.id, report))
            return {"id": None, **{name: report[name] for name in ("objects", "bytes", "files")}, "report": report}
        mark = repository.gc.mark()
        report = repository.gc.report(mark.id)
        self.log.info("%s", summary(repository.id, report))
        return {"id": mark.id, "objects": mark.objects, "bytes": mark.bytes, "files": mark.rows, "report": report}


class LakeopsGcSweepOperator(_CollectionOperator):
    """Deletes exactly what a mark holds; returns ``mark``, ``deleted``, ``bytes`` and ``versioned``.

    What the store refused to delete is named in the log and in ``mark["failures"]``, and is in the next mark. When the
    store refuses everything, the task's ``retries`` try again.

    Args:
        mark_id: the mark, ``mark.output["id"]`` of a mark task.
        force: sweep it even if it is a large share of the repository.
        kwargs: see ``LakeopsOperator``.
    """

    mark_id: str
    force: bool | str = False

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        """What was deleted."""
        swept = repository.gc.sweep(self.mark_id, force=truth("force", self.force))
        for key, reason in swept.mark.failures:
            self.log.warning("The store refused to delete %s: %s", safe(key), safe(str(reason)))
        self.log.info("Deleted %d files, %s, of lakefs://%s", swept.deleted, human_size(swept.bytes), repository.id)
        return swept.to_json()


def summary(repository_id: str, report: dict[str, Any]) -> str:
    """A mark's report as lines for a log or a form."""
    size, share = human_size(report["bytes"]), report["share"]
    lines = [f"lakefs://{repository_id}: {report['objects']:,} of {report['listed']['count']:,} objects are garbage"]
    lines[0] += f" ({size}, {share:.1%}), and {report['files'] - report['objects']:,} metadata files"
    lines += [f"  {row['age']}: {row['objects']:,} objects, {human_size(row['bytes'])}" for row in report["by_age"]]
    lines += [f"  {name}" for name in report["sample"].get("object", ())[:10]]
    live = ", ".join(f"{count:,} {why.replace('_', ' ')}" for why, count in report["commits"]["live"].items() if count)
    commits = report["commits"]
    lines.append(f"Commits: {commits['expired_now']:,} expired now; alive: {live or 'none'}")
    return "\n".join([*lines, *report["notes"]])


FailOn = Literal["error", "warning", "never"]
"""The least severity of a finding that fails the task."""


class LakeopsFsckOperator(LakeopsOperator):
    """Checks a repository from its refs down; returns ``ok``, ``severities``, ``checked`` and ``findings``.

    It changes nothing. Every finding is in the log, and the result has the first ones. A task that fails because of
    its findings leaves them as the XCom ``findings``.

    Args:
        data: check the objects too: that they exist, their size and their contents. All of them are read.
        fail_on: ``error`` fails the task when something that a live commit needs is damaged, ``warning`` also when
            anything else is wrong, ``never`` leaves the verdict to the tasks that follow.
        max_findings: how many findings the result has.
        kwargs: see ``LakeopsOperator``.
    """

    data: bool | str = False
    fail_on: FailOn = fixed(default="error")
    max_findings: int = fixed(default=100)

    def check_arguments(self) -> None:
        """Refuse a ``fail_on`` that does not exist."""
        if self.fail_on not in get_args(FailOn):
            raise InvalidInput(f"fail_on is one of {', '.join(get_args(FailOn))}, not {self.fail_on!r}")

    def work(self, lake: Lake, name: str, context: Context) -> dict[str, Any]:
        """The findings, counted. Raises ``LakeopsFailure`` when they are bad enough."""
        severities: Counter[Severity] = Counter()
        first: list[Finding] = []
        check = lake.repository(name).fsck(data=truth("data", self.data))
        for finding in check:
            severities[finding.severity] += 1
            level = {Severity.ERROR: self.log.error, Severity.WARNING: self.log.warning}.get(
                finding.severity, self.log.info
            )
            level("%s %s: %s; %s", finding.kind, safe(finding.where), safe(finding.message), finding.advice)
            if len(first) < self.max_findings:
                first.append(finding)
        check.note()
        record = {
            "ok": not severities[Severity.ERROR],
            "severities": {severity.value: severities[severity] for severity in Severity},
            "checked": dict(check.checked),
            "findings": [finding.to_json() for finding in first],
        }
        bad = [severity for severity in self._bad() if severities[severity]]
        if bad:
            context["ti"].xcom_push(key="findings", value=record["findings"])
            worst = next((finding for finding in first if finding.severity in bad), None)
            counts = ", ".join(counted(severities[severity], severity.value) for severity in bad)
            example = (
                "" if worst is None else f"; {worst.kind} {safe(worst.where)}: {safe(worst.message)}; {worst.advice}"
            )
            raise LakeopsFailure(f"fsck of lakefs://{name} found {counts}{example}")
        return record

    def _bad(self) -> tuple[Severity, ...]:
        bad = {"error": (Severity.ERROR,), "warning": (Severity.ERROR, Severity.WARNING), "never": ()}
        return bad[self.fail_on]
