"""Summaries of changes, previews of verbs, and forms: what fits into a log, an XCom or a page.

A preview says in words what a verb would do, and changes nothing; the forms of ``lakeops.airflow.dags.admin`` show it
first. It refuses what the verb itself would refuse, and pins what it has shown: where others change that before the
verb is done, the verb does nothing. The form on a page asks Airflow's own API to trigger one of these DAGs in the
browser of the user, so Airflow decides who may, and every change is a run with a log and an author.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from lakeops.airflow import idempotent
from lakeops.airflow.hook import LakeopsHook
from lakeops.airflow.task import address, failing_at_once, point_to
from lakeops.model import errors
from lakeops.model.formatting import counted, human_size
from lakeops.model.marks import SWEEPABLE
from lakeops.model.names import as_folder, check_branch, check_tag, parse_ref
from lakeops.model.records import Change, ChangeType, Counts, RefKind, Strategy, StrategyName
from lakeops.model.sanitising import safe

if TYPE_CHECKING:
    from lakeops.lake import Branch, Lake, Repository
    from lakeops.ops.iceberg.diff import TableDiff

SIGNS = {ChangeType.ADDED: "+", ChangeType.REMOVED: "-", ChangeType.CHANGED: "~", ChangeType.CONFLICT: "!"}
LISTED = 100
"""Changes that a form or a log lists. It counts all of them."""
FOLDERS = 20
"""Folders that are summed up, each on its own."""
OTHERS = "others"
"""The name of the sum of all other folders. Names of folders end with a slash."""


@dataclass(frozen=True)
class DiffSummary:
    """The numbers of changes of each kind, and the first changes in path order. As text: a line each.

    ``digest`` is a fingerprint of all changes. ``folders`` sums up the changes in each of the first top-level folders;
    objects outside of folders are under the empty name, and those of more folders under ``OTHERS``. ``tables`` are the
    first paths that may be the metadata of Iceberg tables, ``conflicts`` all paths that conflict.
    """

    all: Counts
    first: list[Change]
    digest: str
    folders: dict[str, Counts]
    tables: list[str]
    conflicts: list[str]

    @classmethod
    def of(cls, changes: Iterable[Change], listed: int = LISTED) -> DiffSummary:
        """Sum up a diff, which is read to its end. The first ``listed`` changes are kept."""
        counts = Counts()
        first: list[Change] = []
        folders: dict[str, Counts] = {}
        tables: list[str] = []
        conflicts: list[str] = []
        digest = hashlib.sha256()
        for change in changes:
            counts.count(change)
            if change.path.endswith("/metadata.json") and len(tables) < listed:
                tables.append(change.path)
            if change.type is ChangeType.CONFLICT:
                conflicts.append(change.path)
            digest.update(f"{change.type.value} {change.size_bytes} {change.path}\0".encode())
            if len(first) < listed:
                first.append(change)
            name = change.path[: change.path.find("/") + 1]
            name = name if name in folders or len(folders) < FOLDERS else OTHERS
            folders.setdefault(name, Counts()).count(change)
        return cls(counts, first, digest.hexdigest(), folders, tables, conflicts)

    @property
    def unlisted(self) -> int:
        return self.all.total - len(self.first)

    @property
    def summary(self) -> str:
        """The counts in words: ``3 added, 1 removed``; empty when nothing changed."""
        return ", ".join(f"{count:,} {kind}" for kind, count in self.all.by_kind.items() if count)

    def to_json(self) -> dict[str, Any]:
        """Counts, and the first changes as the public contract's records."""
        return {
            "total": self.all.total,
            **self.all.by_kind,
            "changes": [change.to_json() for change in self.first],
            "truncated": self.unlisted > 0,
        }

    def __str__(self) -> str:
        lines = [f"{self.all.total:,} changes: {self.summary}" if self.all.total else "No changes"]
        lines += [f"{SIGNS[change.type]} {safe(change.path)} ({change.size_bytes:,} B)" for change in self.first]
        if self.unlisted:
            lines.append(f"... and {self.unlisted:,} more")
        return "\n".join(lines)


NOTHING = "nothing"
"""The fingerprint of a merge that merges nothing: the destination has the commit."""


@dataclass(frozen=True)
class MergeOutcome:
    """The changes of merging one commit into one head, and the paths of conflicts that the strategy leaves.

    ``settled`` is the number of conflicts that it settles, ``shown`` a fingerprint of all this, or ``NOTHING`` where
    the head has the commit. ``tables`` says what changed in Iceberg tables.
    """

    tally: DiffSummary
    settled: int
    conflicts: list[str]
    shown: str
    tables: Sequence[TableDiff] = ()

    @classmethod
    def of(
        cls, repository: Repository, head: str, source: str, strategy: StrategyName | Strategy | None = None
    ) -> MergeOutcome:
        """Compare ``source`` with ``head``, as a merge would. Publishes nothing."""
        if idempotent.contains(repository, head, source):
            return cls(DiffSummary.of(()), 0, [], NOTHING)
        tally = DiffSummary.of(repository.compare(head, source), LISTED)
        base = repository.merge_base(head, source).id if tally.tables else source
        tables = repository.table_diffs(base, source, tally.tables)
        if tally.conflicts and strategy:
            settled = DiffSummary.of(repository.compare(head, source, strategy=strategy), LISTED)
            return cls(settled, len(tally.conflicts), [], f"{tally.digest}-{settled.digest}", tables)
        return cls(tally, 0, tally.conflicts, tally.digest, tables)


def state_of(branch: Branch) -> str:
    """A fingerprint of the branch's head and its uncommitted changes."""
    return f"{branch.commit_id}-{staged_state(branch)}"


def staged_state(branch: Branch, prefix: str = "") -> str | None:
    """A fingerprint of the uncommitted changes under a prefix, which each later write alters. None without any."""
    changes = branch.pin(prefix).changes  # before the look
    tally = DiffSummary.of(branch.uncommitted(prefix))
    return f"{tally.digest}-{changes}" if tally.all.total else None


class ImportOutcome(NamedTuple):
    """The objects and bytes that an import brings to a folder, and the number of objects that it replaces."""

    objects: int
    size: int
    replaced: int

    @classmethod
    def of(cls, lake: Lake, repository: Repository, head: str, source: str, folder: str) -> ImportOutcome:
        """Count the objects at ``s3://bucket/prefix`` or in ``file:///directory``, and those in the head's folder."""
        objects = size = 0
        for listing in lake.stores().at(source).scan(skip_special=True):
            objects += len(listing.keys)
            size += sum(listing.sizes)
        replaced = sum(batch.num_rows for batch in repository.ref(head).entries(folder))
        return cls(objects, size, replaced)

    @property
    def shown(self) -> str:
        return f"{self.objects} objects, {self.size} B, in place of {self.replaced}"


def require_shown(now: str, shown: str | None, what: str) -> None:
    """Refuse another effect than the one that was shown, if any was. Raises ``PreconditionFailed``."""
    if shown and now != shown:
        raise errors.PreconditionFailed(f"{what} is no longer what was shown, so nothing was done; look at it again")


def describe_mark(repository_id: str, report: dict[str, Any]) -> str:
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


# --- previews ---

Given = Mapping[str, Any]


class FormPreview(NamedTuple):
    """The effect that a verb would have, in words, of one to about a hundred lines.

    ``pinned`` are arguments for the verb's operator that make it do this alone: refs as commit ids, and as ``shown``
    the state that the operator must find unchanged.
    """

    text: str
    pinned: dict[str, str]


def preview(verb: str, given: Given, *, lakeops_conn_id: str) -> FormPreview:
    """Preview a verb of ``VERBS`` with the values of a form. Raises ``LakeopsFailure`` where it would be refused."""
    from lakeops.catalog.guards import check_protection  # late: reading a DAG does not need it

    with failing_at_once():
        hook = LakeopsHook(lakeops_conn_id)
        with hook.get_conn() as lake, hook.naming(lake):
            repository = lake.repository(hook.repository_name(given["repository"]))
            if repository.record.read_only:
                raise errors.PreconditionFailed(
                    f"repository {repository.id!r} is read-only", kind="read_only_repository"
                )
            look, page, parts, query = VERBS[verb]
            filled = {name: given[name] or repository.default_branch for name in (*parts, *query.values())}
            if "prefix" in filled:
                filled["prefix"] = given["prefix"] or ""
            query = {name: filled[field] for name, field in query.items()}
            # Before the verb is tried: whoever is refused, over a conflict for instance, wants to look most.
            point_to("page", address(lakeops_conn_id, repository.id, page, *map(filled.__getitem__, parts), **query))
            if verb in {"delete branch", "move branch", "import"}:
                repository.branch(given["branch"]).require_stageable()
            elif verb in {"delete tag", "move tag"}:
                check_protection(given["tag"], repository.tag_protections(), RefKind.TAG)
            return look(lake, repository, given)


def _create(kind: RefKind, at: str, _: Lake, repository: Repository, given: Given) -> FormPreview:
    """Preview a new branch or tag. ``at`` is the field of the ref that it begins at."""
    name = (check_branch if kind is RefKind.BRANCH else check_tag)(given[kind])
    with suppress(errors.RefNotFound):
        (repository.branch if kind is RefKind.BRANCH else repository.tag)(name)
        raise errors.AlreadyExists(f"{kind} {name!r} exists" + ("; tags do not move" if kind is RefKind.TAG else ""))
    source, words = _commit(repository, given[at])
    return FormPreview(f"creates {kind} {_uri(repository, name)} at {words}", {at: source})


def _delete_branch(_: Lake, repository: Repository, given: Given) -> FormPreview:
    branch = repository.branch(given["branch"])
    if branch.id == repository.default_branch:
        raise errors.PreconditionFailed(
            f"{branch.id!r} is the default branch of {repository.id!r}: it cannot be deleted", kind="default_branch"
        )
    shown = state_of(branch)
    lost = idempotent.unpublished(repository, branch.id, repository.default_branch)
    rest = f"{lost}: that would be lost" if lost else f"{repository.default_branch!r} has all of it"
    at = _commit(repository, f"{branch.id}@")[1]
    return FormPreview(f"deletes branch {_uri(repository, branch.id)}, at {at}; {rest}", {"shown": shown})


def _merge(_: Lake, repository: Repository, given: Given) -> FormPreview:
    branch = repository.branch(given["destination"] or repository.default_branch)
    _require_clean(branch)
    # Both sides are resolved once, so that everything below is about one merge.
    head, (source, words) = branch.commit_id, _commit(repository, given["source"])
    strategy = None if given["strategy"] == "fail" else given["strategy"]
    found = MergeOutcome.of(repository, head, source, strategy)
    pinned = {"source": source, "destination": branch.id, "shown": found.shown}
    if found.shown == NOTHING:
        return FormPreview(f"merges nothing: {_uri(repository, branch.id)} has all of {words}", pinned)
    if found.conflicts:
        raise errors.MergeConflict(given["source"], branch.id, found.conflicts)
    around = [one.strip() for one in (given.get("despite_checks") or "").split(",") if one.strip()]
    repository.preview_merge(source, branch.id, strategy=strategy, despite_checks=around)  # refuses what lacks a check
    settled = f", conflicts settled by {strategy}" if strategy else ""
    checks = "".join(f"\nCheck {one}" for one in repository.ref(source).verdicts())
    tables = "".join(f"\n{table}" for table in found.tables)
    return FormPreview(
        f"merges {words} into {_uri(repository, branch.id)}{settled}\n{found.tally}{tables}{checks}", pinned
    )


def _revert(_: Lake, repository: Repository, given: Given) -> FormPreview:
    branch = repository.branch(given["branch"])
    ref, words = _commit(repository, given["ref"])
    try:
        tally = DiffSummary.of(branch.revert_changes(ref, given["parent_number"]))
    except errors.InvalidInput:  # its message should name the ref as it was given
        tally = DiffSummary.of(branch.revert_changes(given["ref"], given["parent_number"]))
    if tally.conflicts:
        raise errors.MergeConflict(given["ref"], branch.id, tally.conflicts, replayed=True)
    if not tally.all.total:
        raise errors.NoChanges(f"revert of {given['ref']!r} changes nothing on branch {branch.id!r}")
    return FormPreview(f"undoes {words} on {_uri(repository, branch.id)}\n{tally}", {"ref": ref, "shown": tally.digest})


def _delete_tag(_: Lake, repository: Repository, given: Given) -> FormPreview:
    tag = repository.tag(given["tag"])
    shown, words = _commit(repository, tag.commit_id)
    return FormPreview(f"deletes tag {_uri(repository, tag.id)}, at {words}", {"shown": shown})


def _move_branch(_: Lake, repository: Repository, given: Given) -> FormPreview:
    branch = repository.branch(given["branch"])
    _require_clean(branch)
    head, (ref, words) = branch.commit_id, _commit(repository, given["source"])
    apart = repository.divergence(head, [ref])[0]
    if apart is None:
        rest = "They are far apart."
    else:
        new, lost = (counted(number, "commit") for number in apart)
        rest = f"Its history gains {new} and loses {lost}; the reflog keeps where it was."
    text = f"moves branch {_uri(repository, branch.id)} from commit {head[:16]} to {words}\n{rest}"
    return FormPreview(text, {"source": ref, "shown": head})


def _move_tag(_: Lake, repository: Repository, given: Given) -> FormPreview:
    tag = repository.tag(given["tag"])
    ref, words = _commit(repository, given["ref"])
    text = f"moves tag {_uri(repository, tag.id)} from commit {tag.commit_id[:16]} to {words}"
    return FormPreview(text, {"ref": ref, "shown": tag.commit_id})


def _sweep(_: Lake, repository: Repository, given: Given) -> FormPreview:
    from lakeops.ops.gc.sweep import check_share  # late: reading a DAG does not need it

    mark_id = given["mark"]
    report = repository.gc.report(mark_id)
    mark = next(mark for mark in repository.gc.marks() if mark.id == mark_id)
    if mark.state not in SWEEPABLE:
        raise errors.MarkRefused(f"mark {mark_id} is {mark.state.value}, so there is nothing to sweep; mark anew")
    check_share(mark, force=given.get("force", False))
    return FormPreview(
        f"deletes what mark {mark_id} holds\n{describe_mark(repository.id, report)}", {"mark_id": mark_id}
    )


def _reset(_: Lake, repository: Repository, given: Given) -> FormPreview:
    branch = repository.branch(given["branch"])
    prefix = given["prefix"] or ""
    shown = staged_state(branch, prefix) or NOTHING  # before the look
    tally = DiffSummary.of(branch.uncommitted(prefix))
    where = f" under {prefix!r}" if prefix else ""
    text = f"drops uncommitted changes of {_uri(repository, branch.id)}{where}\n{tally}"
    return FormPreview(text, {"shown": shown})


def _import(lake: Lake, repository: Repository, given: Given) -> FormPreview:
    from lakeops.store.open import parse_location

    branch = repository.branch(given["branch"])
    _require_clean(branch)
    source, folder = parse_location(given["source"]).url, as_folder(given["prefix"] or "")
    found = ImportOutcome.of(lake, repository, branch.commit_id, source, folder)
    if not found.objects:
        raise errors.ObjectNotFound(f"there is nothing at {source} to import")
    place = f"{_uri(repository, branch.id)}/{folder}"
    text = f"imports {found.objects:,} objects ({found.size:,} B) from {source}, uncopied, to {place}\n"
    text += f"They take the place of the {found.replaced:,} objects that are there now."
    return FormPreview(text, {"shown": found.shown})


Look = Callable[["Lake", "Repository", Given], FormPreview]
VERBS: dict[str, tuple[Look, str, tuple[str, ...], dict[str, str]]] = {
    "create branch": (partial(_create, RefKind.BRANCH, "source"), "ref", ("source",), {}),
    "delete branch": (_delete_branch, "ref", ("branch",), {}),
    "merge": (_merge, "diff", (), {"left": "destination", "right": "source"}),
    "revert": (_revert, "commit", ("ref",), {}),
    "create tag": (partial(_create, RefKind.TAG, "ref"), "ref", ("ref",), {}),
    "delete tag": (_delete_tag, "ref", ("tag",), {}),
    "move branch": (_move_branch, "diff", (), {"left": "branch", "right": "source"}),
    "move tag": (_move_tag, "ref", ("tag",), {}),
    "sweep": (_sweep, "gc", (), {}),
    "reset": (_reset, "uncommitted", ("branch",), {"prefix": "prefix"}),
    "import": (_import, "tree", ("branch",), {"prefix": "prefix"}),
}
"""The preview of each verb, and its page: fields of the form that are parts of the address, and of its query.

An empty field means the default branch, but an empty prefix everything.
"""


def _uri(repository: Repository, ref: str) -> str:
    return f"lakefs://{repository.id}/{ref}"


def _commit(repository: Repository, ref: str | None) -> tuple[str, str]:
    """The commit that a ref means: its id, and in words."""
    if ref is not None and not ref:
        raise errors.InvalidInput("a ref is empty")
    commit = repository.ref(ref or repository.default_branch).commit_id
    message = repository.ref(commit).commit.message.splitlines()[0]
    name = "" if ref is None or parse_ref(ref).base == commit else f" ({ref})"
    return commit, f"commit {commit[:16]}{name} {message!r}"


def _require_clean(branch: Branch) -> None:
    for change in branch.uncommitted():
        raise errors.PreconditionFailed(
            f"branch {branch.id!r} has uncommitted changes, such as {change.path!r}; commit or reset them",
            kind="dirty_branch",
        )


# --- forms on pages ---

PREFIX, TAG = "lakeops_", "lakeops"
MOST = 50
"""DAGs of one kind that are looked at."""


def form(kind: str, connection: str, given: Mapping[str, str], user: Any) -> dict[str, Any]:
    """The form of one kind (``merge``, say) that the user may trigger, filled in with values by name of the field.

    It has ``dag_id``, ``text``, ``paused`` (nothing runs until somebody unpauses the DAG) and ``fields``, for the
    template. ``dry_run`` is not filled in: no link decides that something is done. Among several DAGs of that kind the
    one for the connection comes first. Raises ``NotFound`` when there is no such DAG, or the user may trigger none.
    """
    # Late: only Airflow's web server reads its database, and operators import this module.
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
    from airflow.models.dag import DagModel
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    if not kind.isidentifier():
        raise errors.NotFound("there is no such form")
    named, tagged = DagModel.dag_id.endswith(f"_{kind}", autoescape=True), DagModel.tags.any(name=TAG)
    if kind == "mirror":  # that form creates one
        named &= ~DagModel.dag_id.endswith("_create_mirror", autoescape=True)
    query = select(DagModel.dag_id).where(named, tagged, DagModel.is_stale.is_(False)).order_by(DagModel.dag_id)
    with create_session() as session:
        names = [str(name) for name in session.scalars(query.limit(MOST))]
        found = [dag for name in names if (dag := SerializedDagModel.get(name, session=session))]

        def order(row: SerializedDagModel) -> tuple[bool, bool]:
            params = row.dag.params
            theirs = params.get_param("connection").value if "connection" in params else None
            return theirs != connection, row.dag_id != PREFIX + kind

        for row in sorted(found, key=order):
            details = DagDetails(id=row.dag_id, team_name=DagModel.get_team_name(row.dag_id, session=session))
            if get_auth_manager().is_authorized_dag(
                method="POST", access_entity=DagAccessEntity.RUN, details=details, user=user
            ):
                paused = bool(session.scalar(select(DagModel.is_paused).where(DagModel.dag_id == row.dag_id)))
                own = {**given, "connection": connection, "dry_run": None}
                fields = [_field(name, row.dag.params.get_param(name), own.get(name)) for name in row.dag.params]
                said = (row.dag.description or row.dag_id).rstrip(".")
                return {"dag_id": row.dag_id, "text": said, "paused": paused, "fields": fields}
    if found:
        raise errors.NotFound(f"you may not trigger the DAG {found[0].dag_id}")
    raise errors.NotFound(
        f"no DAG folder has the form {PREFIX}{kind}; a file there has to import it from lakeops.airflow.dags"
    )


def _field(name: str, param: Any, given: str | None) -> dict[str, Any]:
    schema = param.schema
    types = {schema["type"]} if isinstance(schema.get("type"), str) else set(schema.get("type", ()))
    kind = "checkbox" if "boolean" in types else "number" if types & {"integer", "number"} else "text"
    shown = schema.get("values_display", {})
    choices = {str(choice): str(shown.get(choice, choice)) for choice in schema.get("enum", ())}
    value = param.value if isinstance(param.value, str | int | float | bool) else None
    if given is not None:
        value = given.lower() in {"1", "true"} if kind == "checkbox" else given
    return {
        "name": name,
        "kind": "choice" if choices else kind,
        "title": str(schema.get("title") or name),
        "description": str(param.description or ""),
        "value": value,
        "choices": choices,
        "required": "null" not in types and kind != "checkbox",
    }
