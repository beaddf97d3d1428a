"""Operators for upkeep: expire refs, mark and sweep garbage, check, and follow a mirror's source.

A mark deletes nothing, and a newer mark replaces an older one. Until its sweep begins a mark can be restored. A sweep
goes on where it was killed, and sweeping a mark again does nothing. Operators of mirrors may run at any time, at the
same time and again: see ``lakeops.ops.mirror.sync``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, get_args

from lakeops.airflow import idempotent
from lakeops.airflow.compat import LakeopsFailure
from lakeops.airflow.metrics import emit
from lakeops.airflow.previews import describe_mark
from lakeops.airflow.task import LakeopsOperator, LakeopsPageLink, address, number, point_to, truth
from lakeops.model.clock import unix_seconds
from lakeops.model.errors import CommitExpired, InvalidInput, LakeopsError, NotAsSeen, PreconditionFailed, RefNotFound
from lakeops.model.formatting import counted, human_size
from lakeops.model.mirrors import RefName
from lakeops.model.names import check_branch, check_tag
from lakeops.model.records import RefKind
from lakeops.model.sanitising import safe

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lakeops.airflow.idempotent import TaskRun
    from lakeops.lake import Lake, Repository
    from lakeops.model.mirrors import MirrorStatus, RefStatus
    from lakeops.model.records import RefRecord
    from lakeops.ops.fsck.findings import Finding


DAY = 24 * 3600


class LakeopsExpireRefsOperator(LakeopsOperator):
    """Deletes idle branches and tags, and branches left by runs that are deleted or have failed.

    Returns ``deleted`` and ``kept``, lists of records (``type``, ``id``, ``commit_id``, ``idle_days``, ``kept``: the
    reason why it stays). Default and protected branches stay. The rule ``expire_after_days`` tells what is idle. A ref
    with uncommitted changes stays. Branches of runs are those that ``WriteAuditPublish`` gives its own names. One stays
    if somebody else committed to it, or if Airflow does not know the DAG: the run may be another Airflow's.

    Args:
        only_show: delete nothing; ``deleted`` then lists what would be deleted.
        abandoned_after_days: days without a change after which a branch of such a run goes, with its uncommitted
            changes. Without a number none of them is deleted.
    """

    template_fields: Any = (*LakeopsOperator.template_fields, "only_show", "abandoned_after_days")
    operator_extra_links: Any = (LakeopsPageLink(),)

    def __init__(
        self, *, only_show: bool | str = False, abandoned_after_days: int | str | None = 7, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.only_show = only_show
        self.abandoned_after_days = abandoned_after_days

    def work(self, lake: Lake, name: str, context: Context) -> dict[str, Any]:
        only_show = truth("only_show", self.only_show)
        days = number("abandoned_after_days", self.abandoned_after_days)
        if days is not None and days < 0:
            raise InvalidInput(f"abandoned_after_days must be 0 or more, not {days}")
        point_to("page", address(self.lakeops_conn_id, name, "gc"), self)
        repository = lake.repository(name)
        refs = repository.gc.idle_refs() if only_show else repository.gc.expire_refs()
        idle = ((ref.to_json(), "") for ref in refs)
        now = unix_seconds(lake.catalog.now())
        left = () if days is None else _abandoned(repository, now, days * DAY, context["ti"], delete=not only_show)
        found = {(ref["type"], ref["id"]): (ref, run) for ref, run in chain(idle, left)}
        for ref, run in found.values():
            end = f"stays: {ref['kept']}" if ref["kept"] else "would be deleted" if only_show else "is deleted"
            what = f"{ref['type']} lakefs://{name}/{ref['id']}{run}, at {ref['commit_id'][:16]}"
            self.log.info("%s, idle for %d days, %s", what, ref["idle_days"], end)
        records = [ref for ref, _ in found.values()]
        return {
            "deleted": [ref for ref in records if ref["kept"] is None],
            "kept": [ref for ref in records if ref["kept"] is not None],
        }


_OF_A_RUN = re.compile(r"([^:]+):[^:]+:(.+)")
"""The name that ``WriteAuditPublish`` gives a branch: DAG, group, run, and the index in a mapped group."""
_RUN_ID = re.compile(r"([a-z_]+__\d{4}-\d\d-\d\dT[\d:.]+\+00:00(?:_\w+)?)(?::\d+)?")
"""A run id of Airflow's making, and that index. Another id may have been changed to become part of a name."""


def _abandoned(
    repository: Repository, now: int, seconds: int, instance: Any, *, delete: bool
) -> Iterator[tuple[dict[str, Any], str]]:
    """Delete branches that have not changed for so long and whose run is deleted or has failed; each with its run."""

    @cache
    def known(dag_id: str) -> bool:
        try:
            return bool(instance.get_dag(dag_id))
        except Exception:  # noqa: BLE001 - Airflow says so by an error; in doubt the branch stays
            return False

    def is_gone(dag_id: str, run_id: str) -> str | None:
        if not instance.get_dr_count(dag_id=dag_id, run_ids=[run_id]):
            return "is deleted"
        return "has failed" if instance.get_dr_count(dag_id=dag_id, run_ids=[run_id], states=["failed"]) else None

    branches = list(repository.branches())
    named = {ref: match for ref in branches if (match := _OF_A_RUN.fullmatch(ref.id))}
    others = [ref.id for ref in branches if ref not in named]
    protections = [*repository.protections(), *(one.pattern for one in repository.required_checks())]
    for ref, (dag_id, rest) in ((ref, match.groups()) for ref, match in named.items()):
        pinned = repository.branch(ref.id).pin()  # before the looks
        last = _last_change(repository, ref)
        run_id = _run_of(repository, ref, dag_id, rest, others) if now - last >= seconds else None
        how = run_id and is_gone(dag_id, run_id)
        if not how:
            continue
        protected = next((pattern for pattern in protections if fnmatchcase(ref.id, pattern)), None)
        kept = None if protected is None else f"it is protected by {protected!r}"
        if how == "is deleted" and not known(dag_id):
            kept = f"Airflow knows no DAG {dag_id!r}"
        if kept is None and delete:
            try:
                if idempotent.delete_branch(repository, ref.id, pinned=pinned) is None:
                    continue
            except (NotAsSeen, PreconditionFailed) as error:
                kept = error.message
        record = {"type": "branch", "id": ref.id, "commit_id": ref.commit_id, "idle_days": (now - last) // DAY}
        yield {**record, "kept": kept}, f" of run {run_id!r} of DAG {dag_id!r}, which {how}"


def _last_change(repository: Repository, ref: RefRecord) -> int:
    """When a branch was moved, or something was staged on it, the last time, in Unix seconds."""
    branch = repository.branch(ref.id)
    staged = (branch.find(change.path) for change in branch.uncommitted())
    moved = (move.at for move in repository.reflog(ref.id, limit=1))
    return max(chain(moved, (entry.mtime for entry in staged if entry is not None)), default=0)


def _run_of(repository: Repository, ref: RefRecord, dag_id: str, rest: str, others: Sequence[str]) -> str | None:
    """Find the run of a block's branch. None when others have committed to it, and when the run is not known.

    ``rest`` is the branch's name without DAG and group, and ``others`` are branches that a block may begin at.
    """
    run_id = None
    try:
        for commit in repository.log(ref.commit_id, first_parent=True):
            theirs = commit.metadata.get("airflow_run_id", "")
            name = re.escape(theirs.replace("~", "-"))
            if commit.metadata.get("airflow_dag_id") == dag_id and re.fullmatch(rf"{name}(:\d+)?", rest):
                run_id = theirs
                continue
            if any(idempotent.contains(repository, other, commit.id) for other in others):
                made_up = _RUN_ID.fullmatch(rest)
                return run_id or (made_up and made_up[1])
            return None
    except CommitExpired:
        return None
    return None


class LakeopsGcMarkOperator(LakeopsOperator):
    """Expires commits and finds what no live one needs; returns the mark's ``id``, ``objects``, ``bytes``, ``report``.

    It deletes nothing. A mark cannot be swept any more once there is a later one.

    Args:
        only_show: change nothing; the report says what a mark would do, and ``id`` is None.
    """

    template_fields: Any = (*LakeopsOperator.template_fields, "only_show")
    operator_extra_links: Any = (LakeopsPageLink(),)

    def __init__(self, *, only_show: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.only_show = only_show

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        self.link(repository, "page", "gc")
        if truth("only_show", self.only_show):
            report = repository.gc.mark(dry_run=True).report
            self.log.info("What a mark would hold now; nothing was changed.\n%s", describe_mark(repository.id, report))
            return {"id": None, **{name: report[name] for name in ("objects", "bytes", "files")}, "report": report}
        mark = repository.gc.mark()
        report = repository.gc.report(mark.id)
        self.log.info("%s", describe_mark(repository.id, report))
        return {"id": mark.id, "objects": mark.objects, "bytes": mark.bytes, "files": mark.rows, "report": report}


class LakeopsGcSweepOperator(LakeopsOperator):
    """Deletes exactly what a mark holds; returns ``mark``, ``deleted``, ``bytes`` and ``versioned``.

    Objects that the store refused to delete are in the log, in ``mark["failures"]`` and in the next mark. When all are
    refused, the task's ``retries`` try again.

    Args:
        mark_id: the mark, ``mark.output["id"]`` of a mark task.
        force: sweep it even if it is a large share of the repository.
    """

    template_fields: Any = (*LakeopsOperator.template_fields, "mark_id", "force")
    operator_extra_links: Any = (LakeopsPageLink(),)

    def __init__(self, *, mark_id: str, force: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mark_id = mark_id
        self.force = force

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        self.link(repository, "page", "gc")
        swept = repository.gc.sweep(self.mark_id, force=truth("force", self.force))
        for key, reason in swept.mark.failures:
            self.log.warning("The store refused to delete %s: %s", safe(key), safe(str(reason)))
        emit("lakeops.gc.bytes_freed", swept.bytes, repository=repository.id)
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
            anything else is wrong, ``never`` leaves the decision to the tasks that follow.
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
            raise InvalidInput(f"fail_on must be one of {', '.join(get_args(FailOn))}, not {self.fail_on!r}")

    def work(self, lake: Lake, name: str, context: Context) -> dict[str, Any]:
        """The findings, counted. Raises ``LakeopsFailure`` when they are bad enough."""
        from lakeops.ops.fsck.findings import Severity

        first: list[Finding] = []
        data = truth("data", self.data)
        check = lake.repository(name).fsck(data=data)
        for finding in check:
            levels = {Severity.ERROR: self.log.error, Severity.WARNING: self.log.warning}
            level = levels.get(finding.severity, self.log.info)
            level("%s %s: %s; %s", finding.kind, safe(finding.where), safe(finding.message), finding.advice)
            if len(first) < self.max_findings:
                first.append(finding)
        check.note()
        looked_at = f"{check.looked_at() or 'nothing'}, {'with' if data else 'without'} the contents of objects"
        self.log.info("Checked lakefs://%s: %s", name, looked_at)
        record = {"ok": not check.errors, **check.counts(), "findings": [finding.to_json() for finding in first]}
        failing = {"error": (Severity.ERROR,), "warning": (Severity.ERROR, Severity.WARNING), "never": ()}[self.fail_on]
        bad = [severity for severity in failing if check.severities[severity]]
        if bad:
            context["ti"].xcom_push(key="findings", value=record["findings"])
            worst = next((finding for finding in first if finding.severity in bad), None)
            counts = ", ".join(counted(check.severities[severity], severity.value) for severity in bad)
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
        options = {"branches": self.branches, "tags": self.tags, "reports": self.reports}
        mirror = idempotent.create_mirror(lake, name, self.storage_namespace or None, self.source, **options)
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
        _emit_lag(name, status)
        return {**status.to_json(), "waiting": waiting}


class LakeopsMirrorPromoteOperator(LakeopsOperator):
    """Promotes one ref of a mirror to what has arrived, or all refs; returns the mirror's status.

    The task fails for a ref that arrived damaged, or of which nothing arrives any more (see ``lakeops mirror
    stall-timeout``). The other refs are promoted before it fails. The event of a branch that moved has the ref's status
    as ``mirror``.

    Args:
        tag: a tag in place of a branch. Without either all refs are promoted.
        commit_id: what the sensor found. A try that comes after the promotion announces it again.
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
            again = branch == self.branch and bool(self.commit_id)
            if ref.promoted is not None and (ref.promoted != shown or again):
                self.log.info("%s", _described(ref))
                since = shown if shown != ref.promoted else None
                head = mirror.ref(ref.promoted).commit.to_json()
                self.announce(context, mirror, branch, head, since=since, more={"mirror": ref.to_json()})
        _emit_lag(name, status)
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


def _emit_lag(mirror: str, status: MirrorStatus) -> None:
    for branch, ref in status.branches.items():
        emit("lakeops.mirror.lag_seconds", ref.lag_seconds, repository=mirror, branch=branch)
        if ref.lag_commits is not None:
            emit("lakeops.mirror.lag_commits", ref.lag_commits, repository=mirror, branch=branch)


def _described(ref: RefStatus) -> str:
    shown = "nothing" if ref.promoted is None else ref.promoted[:16]
    if ref.candidate is None:
        return f"{ref.kind} {ref.id} shows {shown}"
    return (
        f"{ref.kind} {ref.id} shows {shown} and waits for {ref.candidate[:16]}: {ref.missing_objects:,} objects were "
        f"missing at the last pass, {ref.lag_seconds:,} s behind"
    )
