"""Handles of a repository, its refs, and directories of this machine that follow a ref."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from lakeops.lake.connection import folder_verb, naming_what_ran_out, ops, ref_verb, verb
from lakeops.model.errors import NotFound
from lakeops.model.marks import Mark
from lakeops.model.names import check_amount, check_asked
from lakeops.model.protection import BRANCH_PROTECTION, CHECK_PROTECTION, TAG_PROTECTION, Protection
from lakeops.model.records import AuditRecord, Commit, ReflogRecord, RefRecord, Report, ReportKind, RepositoryRecord
from lakeops.ops.context import Context, is_dirty, naming_the_ref, pages, require_branch, resolve_commit

if TYPE_CHECKING:
    from lakeops.model.mirrors import Registration
    from lakeops.ops.gc.mark import DryRun
    from lakeops.ops.iceberg.diff import TableDiff
    from lakeops.ops.tables import TableFiles


class Readable:
    """Reads at a ref expression: a commit, or a branch with its uncommitted changes over its head.

    The expression is resolved at every call, so a branch's handle follows its head.
    """

    def __init__(self, context: Context, ref: str) -> None:
        self._ctx = context
        self.id = ref

    def __repr__(self) -> str:
        return f"<{type(self).__name__} lakefs://{self._ctx.repository_id}/{self.id}>"

    @property
    def head(self) -> Commit:
        """The commit that the ref means now. Raises ``RefNotFound``, ``InvalidInput`` (invalid or ambiguous ref)."""
        return resolve_commit(self._ctx, self.id, live=False)

    @property
    def commit_id(self) -> str:
        """The id of ``head``."""
        return self.head.id

    @property
    def is_dirty(self) -> bool:
        """Whether it is a branch with uncommitted changes. Diffs, merges, blame and clones leave these out."""
        return is_dirty(self._ctx, self.id)

    def exists(self, path: str) -> bool:
        """Whether there is an object at a path."""
        return self.find(path) is not None

    find: Final = ref_verb(lambda: ops.read.find)
    read: Final = ref_verb(lambda: ops.read.read)
    read_entry: Final = verb(lambda: ops.read.read_entry)
    open: Final = ref_verb(lambda: ops.read.open_object)
    open_entry: Final = verb(lambda: ops.read.open_entry)
    stat: Final = ref_verb(lambda: ops.read.stat)
    presign: Final = ref_verb(lambda: ops.read.presign)
    list: Final = ref_verb(lambda: ops.read.list_objects)
    entries: Final = ref_verb(lambda: ops.read.entries)
    snapshot: Final = ref_verb(lambda: ops.read.snapshot)
    pass_check: Final = ref_verb(lambda: ops.checks.pass_check)
    fail_check: Final = ref_verb(lambda: ops.checks.fail_check)
    withdraw_check: Final = ref_verb(lambda: ops.checks.withdraw_check)
    verdicts: Final = ref_verb(lambda: ops.checks.verdicts)
    blame: Final = ref_verb(lambda: ops.blame.blame)
    history: Final = ref_verb(lambda: ops.blame.history)
    clone: Final = ref_verb(lambda: ops.local.clone.clone)
    init_clone: Final = ref_verb(lambda: ops.local.clone.init)


class Ref(Readable):
    """Anything that a ref expression may name, for reading."""

    @property
    def commit(self) -> Commit:
        """The commit that the ref means now, as ``head``. Raises what ``head`` raises."""
        return self.head


class Branch(Readable):
    """A branch: its head, and the staging area that uncommitted changes go to."""

    put: Final = ref_verb(lambda: ops.put.put)
    require_stageable: Final = ref_verb(lambda: ops.context.require_stageable)
    batch: Final = ref_verb(lambda: ops.put.batch)
    upload: Final = ref_verb(lambda: ops.put.upload)
    delete: Final = ref_verb(lambda: ops.put.delete)
    delete_prefix: Final = ref_verb(lambda: ops.stage.delete_prefix)
    copy: Final = ref_verb(lambda: ops.copy_move.copy)
    link: Final = ref_verb(lambda: ops.copy_move.link)
    rename: Final = ref_verb(lambda: ops.copy_move.move)
    update_metadata: Final = ref_verb(lambda: ops.copy_move.update_metadata)
    stage: Final = ref_verb(lambda: ops.stage.stage)
    output: Final = ref_verb(lambda: ops.output.output)
    open_output: Final = ref_verb(lambda: ops.output.open_output)
    link_output: Final = verb(lambda: ops.output.link_output)
    abandon_output: Final = verb(lambda: ops.output.abandon_output)
    uncommitted: Final = ref_verb(lambda: ops.diff.uncommitted)
    uncommitted_page: Final = ref_verb(lambda: ops.diff.uncommitted_page)
    reset: Final = ref_verb(lambda: ops.stage.reset)
    pin: Final = ref_verb(lambda: ops.stage.pin)
    commit: Final = ref_verb(lambda: ops.commit.commit)
    import_objects: Final = ref_verb(lambda: ops.import_.import_objects)
    update_tables: Final = ref_verb(lambda: ops.tables.update_tables)
    move: Final = ref_verb(lambda: ops.branch.move_branch)
    revert: Final = ref_verb(lambda: ops.merge.revert)
    revert_changes: Final = ref_verb(lambda: ops.merge.revert_changes)


class Local:
    """A directory that follows a folder of a ref. Made by ``Ref.clone`` and opened by ``Lake.local``."""

    def __init__(self, context: Context, directory: Path) -> None:
        self._ctx = context
        self.directory = directory

    def __repr__(self) -> str:
        return f"<Local {self.directory}>"

    @property
    def repository_id(self) -> str:
        """The repository's name."""
        return self._ctx.repository.id

    status: Final = folder_verb(lambda: ops.local.clone.status)
    pull: Final = folder_verb(lambda: ops.local.clone.pull)
    checkout: Final = folder_verb(lambda: ops.local.clone.checkout)
    commit: Final = folder_verb(lambda: ops.local.commit.commit)


class GarbageCollection:
    """Retention rules, marks and sweeps of one repository."""

    def __init__(self, context: Context) -> None:
        self._ctx = context

    def rules(self) -> dict[str, Any] | None:
        """The retention rules in lakeFS's JSON. None: there are none, and every commit lives for ever."""
        rules = ops.gc.plan.get_rules(self._ctx)
        return None if rules is None else rules.to_json()

    set_rules: Final = verb(lambda: ops.gc.plan.set_rules)
    live_commits: Final = verb(lambda: ops.gc.plan.live_commits)
    idle_refs: Final = verb(lambda: ops.gc.plan.idle_refs)
    expire_refs: Final = verb(lambda: ops.gc.plan.expire_refs)
    grace: Final = verb(lambda: ops.gc.plan.get_grace)
    set_grace: Final = verb(lambda: ops.gc.plan.set_grace)

    def confirm_clock(self) -> datetime:
        """Confirm the catalog's clock after a ``clock_in_doubt``. Returns the time that is trusted from now on.

        This counts for all repositories of the catalog. Look at the clock before you call it: when the clock is ahead,
        everything looks older than it is. First end every writer that began while the clock was wrong.
        """
        return self._ctx.catalog.marks.confirm_clock()

    @overload
    def mark(self, *, dry_run: Literal[False] = False) -> Mark: ...

    @overload
    def mark(self, *, dry_run: Literal[True]) -> DryRun: ...

    @naming_what_ran_out
    def mark(self, *, dry_run: bool = False) -> Mark | DryRun:
        """Expire commits, and find the files that no live commit, staged row or upload needs.

        Nothing is deleted: ``sweep`` takes the ``id`` of the mark. Until a sweep of the mark begins, ``restore`` takes
        the mark back.

        Args:
            dry_run: change nothing, and return what a mark would do now, with its ``report``.

        Raises:
            PreconditionFailed: ``read_only_repository``: the repository is a mirror.
            PreconditionFailed: ``not_the_owner``: another catalog may delete in the storage namespace. ``adopt`` takes
                it over.
            MarkRefused: ``clock_in_doubt``: the clock was set back or may have jumped ahead. See ``confirm_clock``.
            MarkRefused: the run took longer than the deadline, or the mark was restored meanwhile.
            Corrupted, FileMissing: metadata of a live commit is damaged. Run ``lakeops fsck``.
        """
        return ops.gc.mark.dry_run(self._ctx) if dry_run else ops.gc.mark.mark(self._ctx)

    def marks(self) -> list[Mark]:
        """The marks on record, newest first."""
        return self._ctx.catalog.marks.on_record(self._ctx.repository_id)

    report: Final = verb(lambda: ops.gc.files.report)
    restore: Final = verb(lambda: ops.gc.sweep.restore)
    sweep: Final = verb(lambda: ops.gc.sweep.sweep)
    prune: Final = verb(lambda: ops.gc.sweep.prune)


class RefsDump:
    """The dump of one repository's records in its storage namespace."""

    def __init__(self, context: Context) -> None:
        self._ctx = context

    dump: Final = verb(lambda: ops.refs.dump.dump)
    automatic: Final = verb(lambda: ops.hooks.automatic)
    status: Final = verb(lambda: ops.refs.dump.status)
    accept: Final = verb(lambda: ops.refs.dump.accept)


class Repository:
    """A repository of a lake."""

    def __init__(self, context: Context) -> None:
        self._ctx = context

    def __repr__(self) -> str:
        return f"<Repository lakefs://{self.id}>"

    @property
    def id(self) -> str:
        """The repository's name."""
        return self.record.id

    @property
    def record(self) -> RepositoryRecord:
        """The repository's record, as it was when this handle was made."""
        return self._ctx.repository

    @property
    def storage_namespace(self) -> str:
        """The URL below which the objects are."""
        return self.record.storage_namespace

    @property
    def default_branch(self) -> str:
        """The branch that cannot be deleted."""
        return self.record.default_branch

    @property
    def creation_date(self) -> int:
        """The time at which the repository was made, in Unix seconds."""
        return self.record.creation_date

    @property
    def read_only(self) -> bool:
        """Whether the repository takes no changes now, as a mirror does not."""
        return self._ctx.catalog.repositories.get(self._ctx.repository_id).read_only

    @property
    def metadata(self) -> dict[str, str]:
        """The repository's own metadata, as it is now."""
        return dict(self._ctx.catalog.repositories.get(self._ctx.repository_id).metadata)

    update_metadata: Final = verb(lambda: ops.repository.update_metadata)

    # --- refs ---

    @property
    def table_files(self) -> TableFiles:
        """The files of tables that engines write."""
        return ops.tables.TableFiles(self._ctx)

    def ref(self, expression: str) -> Ref:
        """A handle for reading at a ref expression, which is resolved when the handle is used.

        ``BRANCH$`` is lakeFS's spelling of a branch with its uncommitted changes, which ``BRANCH`` means here.
        """
        staged = str(expression)[1:].endswith("$")
        found = (next(refs(prefix=expression), None) for refs in (self.branches, self.tags) if staged)
        if staged and not any(one is not None and one.id == expression for one in found):
            expression = expression[:-1]
        return Ref(self._ctx, expression)

    def branch(self, name: str) -> Branch:
        """A branch that exists. Raises ``RefNotFound``."""
        return Branch(self._ctx, require_branch(self._ctx, name))

    def create_branch(self, name: str, source: str | None = None) -> Branch:
        """A new branch at ``source``, or at the default branch. Copies nothing.

        Raises:
            InvalidInput: ``invalid_name``: the name breaks the rules.
            AlreadyExists: a branch or a tag has the name.
            RefNotFound, CommitExpired: there is no such commit to begin at.
            PreconditionFailed: ``read_only_repository``: the repository takes no changes.
        """
        ops.branch.create_branch(self._ctx, name, self.default_branch if source is None else source)
        return Branch(self._ctx, name)

    delete_branch: Final = verb(lambda: ops.branch.delete_branch)

    def branches(self, *, prefix: str = "", after: str = "") -> Iterator[RefRecord]:
        """Branches by name in byte order."""
        return pages(partial(self._ctx.catalog.refs.branches, self._ctx.repository_id), prefix=prefix, after=after)

    heads: Final = verb(lambda: ops.history.heads)

    create_tag: Final = verb(lambda: ops.branch.create_tag)
    move_tag: Final = verb(lambda: ops.branch.move_tag)
    delete_tag: Final = verb(lambda: ops.branch.delete_tag)

    def tag(self, name: str) -> RefRecord:
        """A tag. Raises ``RefNotFound``."""
        with naming_the_ref(self._ctx, check_asked(name, "a tag")):
            return self._ctx.catalog.refs.tag(self._ctx.repository_id, name)

    def tags(self, *, prefix: str = "", after: str = "") -> Iterator[RefRecord]:
        """Tags by name in byte order."""
        return pages(partial(self._ctx.catalog.refs.tags, self._ctx.repository_id), prefix=prefix, after=after)

    # --- history, diff and merge ---

    log: Final = verb(lambda: ops.history.log)
    divergence: Final = verb(lambda: ops.history.divergence)
    walk: Final = verb(lambda: ops.history.walk)
    containing: Final = verb(lambda: ops.history.containing)
    bisect: Final = verb(lambda: ops.bisection.bisect)
    start_bisect: Final = verb(lambda: ops.bisection.start_bisect)
    bisection: Final = verb(lambda: ops.bisection.bisection)
    mark_bisect: Final = verb(lambda: ops.bisection.mark_bisect)
    end_bisect: Final = verb(lambda: ops.bisection.end_bisect)
    merge_base: Final = verb(lambda: ops.history.merge_base)
    diff: Final = verb(lambda: ops.diff.two_way)
    changed: Final = verb(lambda: ops.diff.changed)
    compare: Final = verb(lambda: ops.diff.since_merge_base)

    def table_diffs(self, left: str, right: str, paths: Iterable[str]) -> list[TableDiff]:
        """The changes of the Iceberg tables whose ``metadata.json`` is among some paths that differ between two refs.

        None where pyiceberg is not installed.
        """
        chosen = [path for path in paths if path.endswith("/metadata.json")]
        try:
            return ops.iceberg.diff.table_diffs(self._ctx, left, right, chosen) if chosen else []
        except ModuleNotFoundError:
            return []

    sums: Final = verb(lambda: ops.diff.sums)
    size: Final = verb(lambda: ops.diff.size)
    merge: Final = verb(lambda: ops.merge.merge)
    preview_merge: Final = verb(lambda: ops.merge.preview_merge)
    cherry_pick: Final = verb(lambda: ops.merge.cherry_pick)
    cherry_pick_changes: Final = verb(lambda: ops.merge.cherry_pick_changes)

    def reflog(self, ref: str | None = None, *, limit: int = 1000) -> list[ReflogRecord]:
        """Moves of a branch or tag, or of all branches and tags, newest first."""
        name = None if ref is None else check_asked(ref, "a branch or tag")
        return self._ctx.catalog.refs.reflog(self._ctx.repository_id, name, limit=check_amount(limit, "the limit"))

    def audit(
        self,
        *,
        since: date | str | None = None,
        until: date | str | None = None,
        actor: str | None = None,
        amount: int | None = None,
    ) -> Iterator[AuditRecord]:
        """The audit records of this repository, newest first. See ``Lake.audit``."""
        return ops.history.audit(
            self._ctx.catalog, self._ctx.repository_id, since=since, until=until, actor=actor, amount=amount
        )

    # --- protection ---

    protect: Final = verb(lambda: ops.branch.protect)
    protect_tags: Final = verb(lambda: ops.branch.protect_tags)
    require_check: Final = verb(lambda: ops.branch.require_check)
    verdicts_of: Final = verb(lambda: ops.checks.verdicts_of)

    def protections(self) -> list[str]:
        """Glob patterns of branches that change through merges only."""
        return [one.pattern for one in self._rules(BRANCH_PROTECTION)]

    def tag_protections(self) -> list[str]:
        """Glob patterns of tags that cannot be moved or deleted."""
        return [one.pattern for one in self._rules(TAG_PROTECTION)]

    def required_checks(self) -> list[Protection]:
        """The checks that branches require: ``pattern`` of the branches, ``check``, ``prefix``."""
        return self._rules(CHECK_PROTECTION)

    def unprotect(self, pattern: str) -> None:
        """Remove a protection pattern. Raises ``NotFound``."""
        self._drop_rule(pattern)

    def unprotect_tags(self, pattern: str) -> None:
        """Remove a protection pattern of tags. Raises ``NotFound``."""
        self._drop_rule(pattern, kind=TAG_PROTECTION)

    def drop_check(self, pattern: str, name: str, *, prefix: str = "") -> None:
        """Require a check no longer. Raises ``NotFound``."""
        self._drop_rule(pattern, kind=CHECK_PROTECTION, check=name, prefix=prefix)

    def _rules(self, kind: str) -> list[Protection]:
        return [one for one in self._ctx.catalog.refs.all_protections(self._ctx.repository_id) if one.kind == kind]

    def _drop_rule(self, pattern: str, **rule: str) -> None:
        checked = {name: check_asked(text, f"a {name}") for name, text in {"pattern": pattern, **rule}.items()}
        self._ctx.catalog.refs.unprotect(self._ctx.repository_id, **checked)

    # --- hooks ---

    hooks: Final = verb(lambda: ops.hooks.hooks)
    set_hook: Final = verb(lambda: ops.hooks.set_hook)
    remove_hook: Final = verb(lambda: ops.hooks.remove_hook)

    def set_read_only(self, read_only: bool = True) -> None:
        """Refuse every change to this repository, or allow changes again."""
        self._ctx.catalog.repositories.set_read_only(self._ctx.repository_id, read_only)

    # --- upkeep ---

    def last_fsck(self) -> Report | None:
        """The recorded result of the last ``fsck``. None before the first."""
        return next(iter(self._ctx.catalog.audit.reports(self._ctx.repository_id, ReportKind.FSCK)[-1:]), None)

    def lags(self) -> list[Report]:
        """The lags of this mirror, as its passes saw them, oldest first. The newest 300 stay on record."""
        return self._ctx.catalog.audit.reports(self._ctx.repository_id, ReportKind.LAG)

    fsck: Final = verb(lambda: ops.fsck.check.fsck)
    owner: Final = verb(lambda: ops.owner.find_owner)
    adopt: Final = verb(lambda: ops.owner.adopt)
    verify_history: Final = verb(lambda: ops.mirror.failover.verify_history)

    @property
    def gc(self) -> GarbageCollection:
        """Retention rules and garbage collection."""
        return GarbageCollection(self._ctx)

    @property
    def refs(self) -> RefsDump:
        """The dump of the repository's records, of which ``Lake.restore_repository`` makes a repository."""
        return RefsDump(self._ctx)

    def registrations(self) -> list[Registration]:
        """The mirrors that report to this repository, and the commits that are kept for them."""
        return self._ctx.catalog.mirrors.registrations(self._ctx.repository_id)

    def drop_registration(self, name: str) -> None:
        """Stop keeping commits for a mirror that is gone. Raises ``NotFound``."""
        if name not in {one.id for one in self.registrations()}:
            raise NotFound(f"no mirror {name!r} has reported to repository {self.id!r}")
        self._ctx.catalog.mirrors.drop_mirror(self._ctx.repository_id, name)
