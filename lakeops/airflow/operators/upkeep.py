"""Operators for upkeep: expire refs, mark and sweep garbage, check, and follow a mirror's source.

A mark deletes nothing, and a newer mark replaces an older one. Until its sweep begins a mark can be restored. A sweep
goes on where it was killed, and sweeping a mark again does nothing. Operators of mirrors may run at any time, at the
same time and again: see ``lakeops.ops.mirror.sync``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from lakeops.airflow import idempotent
from lakeops.airflow.compat import LakeopsFailure
from lakeops.airflow.previews import describe_mark
from lakeops.airflow.task import LakeopsOperator, LakeopsPageLink, texts, truth
from lakeops.model.errors import InvalidInput, LakeopsError, RefNotFound
from lakeops.model.findings import Finding, Severity
from lakeops.model.formatting import counted, human_size
from lakeops.model.mirrors import RefKind, RefName
from lakeops.model.names import check_branch, check_tag
from lakeops.model.sanitising import safe

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lakeops.airflow.idempotent import TaskRun
    from lakeops.lake import Lake, Repository
    from lakeops.model.mirrors import MirrorStatus, RefStatus


class _CollectionOperator(LakeopsOperator):
    operator_extra_links: Any = (LakeopsPageLink(),)

    def pages(self, repository: Repository, record: dict[str, Any] | None) -> dict[str, str]:
        return {"page": self.page(repository, "gc")}


class LakeopsExpireRefsOperator(_CollectionOperator):
    """Deletes branches and tags that have been idle for longer than the rule ``expire_after_days`` allows.

    Returns ``deleted`` and ``kept``, lists of records (``type``, ``id``, ``commit_id``, ``idle_days``, ``kept``: the
    reason why it stays). Default and protected branches stay, and those with uncommitted changes.

    Args:
        only_show: delete nothing; ``deleted`` then lists what would be deleted.
    """

    template_fields: Any = (*_CollectionOperator.template_fields, "only_show")

    def __init__(self, *, only_show: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.only_show = only_show

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        only_show = truth("only_show", self.only_show)
        found = repository.gc.idle_refs() if only_show else repository.gc.expire_refs()
        for ref in found:
            end = f"stays: {ref.kept}" if ref.kept else "would be deleted" if only_show else "is deleted"
            name = f"{ref.type} lakefs://{repository.id}/{ref.id}"
            self.log.info("%s, idle for %d days, %s", name, ref.idle_days, end)
        return {
            "deleted": [ref.to_json() for ref in found if ref.kept is None],
            "kept": [ref.to_json() for ref in found if ref.kept is not None],
        }


class LakeopsGcMarkOperator(_CollectionOperator):
    """Expires commits and finds what no live one needs; returns the mark's ``id``, ``objects``, ``bytes``, ``report``.

    It deletes nothing. A mark cannot be swept any more once there is a later one.

    Args:
        only_show: change nothing; the report says what a mark would do, and ``id`` is None.
    """

    template_fields: Any = (*_CollectionOperator.template_fields, "only_show")

    def __init__(self, *, only_show: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.only_show = only_show

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        if truth("only_show", self.only_show):
            report = repository.gc.mark(dry_run=True).report
            self.log.info("What a mark would hold now; nothing was changed.\n%s", describe_mark(repository.id, report))
            return {"id": None, **{name: report[name] for name in ("objects", "bytes", "files")}, "report": report}
        mark = repository.gc.mark()
        report = repository.gc.report(mark.id)
        self.log.info("%s", describe_mark(repository.id, report))
        return {"id": mark.id, "objects": mark.objects, "bytes": mark.bytes, "files": mark.rows, "report": report}


class LakeopsGcSweepOperator(_CollectionOperator):
    """Deletes exactly what a mark holds; returns ``mark``, ``deleted``, ``bytes`` and ``versioned``.

    Objects that the store refused to delete are in the log, in ``mark["failures"]`` and in the next mark. When all are
    refused, the task's ``retries`` try again.

    Args:
        mark_id: the mark, ``mark.output["id"]`` of a mark task.
        force: sweep it even if it is a large share of the repository.
    """

    template_fields: Any = (*_CollectionOperator.template_fields, "mark_id", "force")

    def __init__(self, *, mark_id: str, force: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mark_id = mark_id
        self.force = force

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        swept = repository.gc.sweep(self.mark_id, force=truth("force", self.force))
        for key, reason in swept.mark.failures:
            self.log.warning("The store refused to delete %s: %s", safe(key), safe(str(reason)))
        self.log.info("Deleted %d files, %s, of lakefs://%s", swept.deleted, human_size(swept.bytes), repository.id)
        return swept.to_json()


FailOn = Literal["error", "warning", "never"]
"""The least severity of a finding that fails the task."""


class LakeopsFsckOperator(LakeopsOperator):
    """Checks a repository from its refs down; returns ``ok``, ``severities``, ``checked`` and ``findings``.

    Every finding is in the log, and the result has the first ones. A task that fails because of its findings leaves
    them as the XCom ``findings``.

    Args:
        data: read all objects too, and check their size and their contents.
        fail_on: ``error`` fails the task when something that a live commit needs is damaged, ``warning`` also when
            anything else is wrong, ``never`` leaves the verdict to the tasks that follow.
        max_findings: how many findings the result has.
    """

    template_fields: Any = (*LakeopsOperator.template_fields, "data")

    def __init__(
        self, *, data: bool | str = False, fail_on: FailOn = "error", max_findings: int = 100, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.data = data
        self.fail_on = fail_on
        self.max_findings = max_findings
        if self.fail_on not in get_args(FailOn):
            raise InvalidInput(f"fail_on is one of {', '.join(get_args(FailOn))}, not {self.fail_on!r}")

    def work(self, lake: Lake, name: str, context: Context) -> dict[str, Any]:
        """The findings, counted. Raises ``LakeopsFailure`` when they are bad enough."""
        severities: Counter[Severity] = Counter()
        first: list[Finding] = []
        data = truth("data", self.data)
        check = lake.repository(name).fsck(data=data)
        for finding in check:
            severities[finding.severity] += 1
            levels = {Severity.ERROR: self.log.error, Severity.WARNING: self.log.warning}
            level = levels.get(finding.severity, self.log.info)
            level("%s %s: %s; %s", finding.kind, safe(finding.where), safe(finding.message), finding.advice)
            if len(first) < self.max_findings:
                first.append(finding)
        check.note()
        looked_at = f"{check.looked_at() or 'nothing'}, {'with' if data else 'without'} the contents of objects"
        self.log.info("Checked lakefs://%s: %s", name, looked_at)
        record = {
            "ok": not severities[Severity.ERROR],
            "severities": {severity.value: severities[severity] for severity in Severity},
            "checked": dict(check.checked),
            "findings": [finding.to_json() for finding in first],
        }
        failing = {"error": (Severity.ERROR,), "warning": (Severity.ERROR, Severity.WARNING), "never": ()}[self.fail_on]
        bad = [severity for severity in failing if severities[severity]]
        if bad:
            context["ti"].xcom_push(key="findings", value=record["findings"])
            worst = next((finding for finding in first if finding.severity in bad), None)
            counts = ", ".join(counted(severities[severity], severity.value) for severity in bad)
            if worst is not None:
                counts += f"; {worst.kind} {safe(worst.where)}: {safe(worst.message)}; {worst.advice}"
            raise LakeopsFailure(f"fsck of lakefs://{name} (checked {looked_at}) found {counts}")
        return record


class LakeopsCreateMirrorOperator(LakeopsOperator):
    """Creates a mirror: a read-only repository that follows one of another lake; returns its record.

    One that exists already with the same source and place is fine. It shows nothing before its first promotion.

    Args:
        source: what leads to the source, such as ``airflow:CONNECTION#REPO``: see ``docs/mirroring.md``.
        storage_namespace: where the source's objects are replicated to; below the lake's home when left out.
        branches: patterns of the branches to follow.
        tags: patterns of the tags to follow.
        reports: tell the source what the mirror needs, so that garbage collection there keeps it.
    """

    template_fields: Any = (*LakeopsOperator.template_fields, "source", "storage_namespace", "branches", "tags")

    def __init__(
        self,
        *,
        repo: str,
        source: str,
        storage_namespace: str | None = None,
        branches: Sequence[str] | str = ("*",),
        tags: Sequence[str] | str = ("*",),
        reports: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(repo=repo, **kwargs)
        self.source = source
        self.storage_namespace = storage_namespace
        self.branches = branches
        self.tags = tags
        self.reports = reports

    def work(self, lake: Lake, name: str, context: Context) -> dict[str, Any]:
        follow = {"branches": texts("branches", self.branches), "tags": texts("tags", self.tags)}
        place = self.storage_namespace or None
        mirror = idempotent.create_mirror(lake, name, place, self.source, reports=self.reports, **follow)
        self.log.info("Mirror lakefs://%s follows %s", mirror.id, mirror.configuration.source.text)
        return mirror.record.to_json()


class LakeopsMirrorDiscoverOperator(LakeopsOperator):
    """Records the refs of a mirror's source and copies commit records; returns the mirror's status, and ``waiting``.

    ``waiting`` has an item for each ref that waits for replication: ``repo``, and ``branch`` or ``tag`` (the other is
    null), as ``LakeopsReplicationSensor`` and ``LakeopsMirrorPromoteOperator`` take them.
    """

    def work(self, lake: Lake, name: str, context: Context) -> dict[str, Any]:
        mirror = lake.mirror(name)
        status = mirror.discover()
        refs = (*status.branches.values(), *status.tags.values())
        waiting = [{"repo": name, "branch": None, "tag": None, str(ref.kind): ref.id} for ref in refs if ref.candidate]
        for ref in refs:
            self.log.info("%s", _described(ref))
        return {**status.to_json(), "waiting": waiting}


class LakeopsMirrorPromoteOperator(LakeopsOperator):
    """Promotes one ref of a mirror to what has arrived, or all refs; returns the mirror's status.

    The task fails for a ref that arrived damaged, or of which nothing arrives any more (see ``lakeops mirror
    stall-timeout``). The other refs are promoted before it fails. The event of a branch that moved has the ref's status
    as ``mirror``.

    Args:
        tag: a tag in place of a branch. Without either all refs are promoted.
        commit_id: what the sensor found. A try that comes after the commit was promoted announces it again.
    """

    template_fields: Any = (*LakeopsOperator.template_fields, "branch", "tag", "commit_id")
    announces = True

    def __init__(
        self, *, branch: str | None = None, tag: str | None = None, commit_id: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.branch = branch
        self.tag = tag
        self.commit_id = commit_id

    def work(self, lake: Lake, name: str, context: Context) -> dict[str, Any]:
        mirror = lake.mirror(name)
        before = mirror.status()
        if self.branch and self.tag:
            raise InvalidInput("branch and tag: promote a branch or a tag, not both")
        only = [RefName(RefKind.BRANCH, check_branch(self.branch))] if self.branch else None
        if self.tag:
            only = [RefName(RefKind.TAG, check_tag(self.tag))]
        status = mirror.sync(only=only)
        self._require_known(name, status)
        for branch, ref in status.branches.items():
            shown = before[branch].promoted if branch in before else None
            again = branch == self.branch and ref.promoted == self.commit_id
            if ref.promoted is not None and (ref.promoted != shown or again):
                self.log.info("%s", _described(ref))
                since = shown if shown != ref.promoted else None
                head = mirror.ref(ref.promoted).commit.to_json()
                self.announce(context, mirror, branch, head, since=since, more={"mirror": ref.to_json()})
        for ref in (*status.branches.values(), *status.tags.values()):
            if ref.stalled and (only is None or RefName(ref.kind, ref.id) in only):
                raise LakeopsError(
                    f"{ref.kind} {ref.id!r} of mirror {name!r} waits for {ref.awaited}", kind="replica_missing"
                )
        return status.to_json()

    def _require_known(self, name: str, status: MirrorStatus) -> None:
        """Refuse a ref that neither side has. One that the sensor found may be deleted since."""
        kind, ref = ("branch", self.branch) if self.branch else ("tag", self.tag)
        if not ref or ref in (status.branches if self.branch else status.tags):
            return
        said = f"neither mirror {name!r} nor its source has a {kind} {ref!r}"
        if not self.commit_id:
            raise RefNotFound(said)
        self.log.info("%s any more", said)


def _described(ref: RefStatus) -> str:
    shown = "nothing" if ref.promoted is None else ref.promoted[:16]
    if ref.candidate is None:
        return f"{ref.kind} {ref.id} shows {shown}"
    return (
        f"{ref.kind} {ref.id} shows {shown} and waits for {ref.candidate[:16]}: {ref.missing_objects:,} objects were "
        f"missing at the last check, {ref.lag_seconds:,} s behind"
    )
