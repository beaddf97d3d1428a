"""Handles of refs: reading anything, writing branches, and directories of this machine that follow a ref."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lakeops.lake.verbs import folder_verb, ops, ref_verb, verb
from lakeops.model.records import Commit
from lakeops.ops.context import Context
from lakeops.ops.resolve import is_dirty, resolve_commit


class Readable:
    """What a ref expression shows: a commit, or a branch with its uncommitted changes over its head.

    The expression is resolved at every call, so a branch's handle follows its head.
    """

    def __init__(self, context: Context, ref: str) -> None:
        self._ctx = context
        self.id = ref

    def __repr__(self) -> str:
        return f"<{type(self).__name__} lakefs://{self._ctx.repository_id}/{self.id}>"

    @property
    def head(self) -> Commit:
        """The commit that the ref means now. Raises ``RefNotFound``, ``InvalidRef``, ``AmbiguousRef``."""
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

    find: Final = ref_verb(lambda: ops.view.find)
    read: Final = ref_verb(lambda: ops.view.read)
    read_entry: Final = verb(lambda: ops.view.read_entry)
    open: Final = ref_verb(lambda: ops.view.open_object)
    open_entry: Final = verb(lambda: ops.view.open_entry)
    stat: Final = ref_verb(lambda: ops.view.stat)
    presign: Final = ref_verb(lambda: ops.view.presign)
    list: Final = ref_verb(lambda: ops.view.list_objects)
    entries: Final = ref_verb(lambda: ops.view.entries)
    snapshot: Final = ref_verb(lambda: ops.snapshot.snapshot)
    pass_check: Final = ref_verb(lambda: ops.branch.pass_check)
    withdraw_check: Final = ref_verb(lambda: ops.branch.withdraw_check)
    passed_checks: Final = ref_verb(lambda: ops.branch.passed_checks)
    blame: Final = ref_verb(lambda: ops.blame.blame)
    history: Final = ref_verb(lambda: ops.blame.history)
    clone: Final = ref_verb(lambda: ops.local.clone.clone)
    init_clone: Final = ref_verb(lambda: ops.local.clone.init)


class Ref(Readable):
    """Anything that a ref expression may name, for reading."""

    @property
    def commit(self) -> Commit:
        """The commit that the ref means now. Raises ``RefNotFound``, ``InvalidRef``, ``AmbiguousRef``."""
        return self.head


class Branch(Readable):
    """A branch: its head, and the staging area that uncommitted changes go to."""

    put: Final = ref_verb(lambda: ops.put.put)
    batch: Final = ref_verb(lambda: ops.put.batch)
    upload: Final = ref_verb(lambda: ops.put.upload)
    delete: Final = ref_verb(lambda: ops.put.delete)
    delete_prefix: Final = ref_verb(lambda: ops.stage.delete_prefix)
    copy: Final = ref_verb(lambda: ops.relink.copy)
    link: Final = ref_verb(lambda: ops.relink.link)
    rename: Final = ref_verb(lambda: ops.relink.move)
    update_metadata: Final = ref_verb(lambda: ops.relink.update_metadata)
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
    import_objects: Final = ref_verb(lambda: ops.ingest.import_objects)
    move: Final = ref_verb(lambda: ops.branch.move_branch)
    revert: Final = ref_verb(lambda: ops.merge.revert)
    revert_changes: Final = ref_verb(lambda: ops.merge.of_revert)


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
