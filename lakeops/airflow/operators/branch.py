"""Operators on repositories, branches and tags: create, move and delete them, reset and protect branches."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lakeops.airflow import idempotent
from lakeops.airflow.idempotent import TaskRun
from lakeops.airflow.previews import require_shown, staged_state, state_of
from lakeops.airflow.task import LakeopsBranchOperator, LakeopsOperator
from lakeops.model.clock import Ids, retrying
from lakeops.model.errors import NotAsSeen, NotFound, RefNotFound, RepositoryNotFound

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lakeops.lake import Lake, Repository
    from lakeops.model.records import RefRecord


class LakeopsCreateBranchOperator(LakeopsBranchOperator):
    """Creates a branch; returns its ref record (``id``, ``commit_id``).

    A branch that exists already is taken when it holds nothing but the source's history and commits of the same DAG
    run. So retrying and clearing are safe, and nobody works on somebody else's branch by accident.

    Args:
        source: the ref expression to start at; the repository's default branch when left out.
        exist_ok: take a branch of that name whatever it holds.
        anew: make the branch again at ``source`` when this task runs again together with everything that depends on it
            in its task group. Only a branch without commits of anybody else is made again. Its uncommitted changes go.
    """

    template_fields: Any = (*LakeopsBranchOperator.template_fields, "source")
    branch: str

    def __init__(
        self, *, branch: str, source: str | None = None, exist_ok: bool = False, anew: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(branch=branch, **kwargs)
        self.source = source
        self.exist_ok = exist_ok
        self.anew = anew

    def work(self, lake: Lake, name: str, context: Context) -> dict[str, Any]:
        if self.anew and self._starts_group(context):
            repository = lake.repository(name)
            source = self.source or repository.default_branch
            was = idempotent.begin_anew(repository, self.branch, source, TaskRun.of(context))
            if was is not None:
                self.log.info("Branch lakefs://%s/%s begins anew; it was at %s", name, self.branch, was)
        return super().work(lake, name, context)

    def _starts_group(self, context: Context) -> bool:
        """Tell whether no downstream task of this task's group has run since the run began or was cleared.

        A writer that was not cleared would not write again what it has written to the branch.
        """
        group = self.task_group
        inside = [] if group is None else list(group.iter_tasks())
        below = self.get_flat_relative_ids(upstream=False)
        after = sorted(one.task_id for one in inside if one.task_id in below and not one.is_teardown)
        instance = context["ti"]
        mapped = next(iter(self.iter_mapped_task_groups()), None) is not None  # other instances have their own branch
        which: dict[str, Any] = {"dag_id": instance.dag_id, "task_ids": after, "run_ids": [instance.run_id]}
        found = instance.get_task_states(**which, map_index=instance.map_index if mapped else None)
        return not any(found.get(instance.run_id, {}).values())

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        source = self.source or repository.default_branch
        branch = idempotent.create_branch(repository, self.target(repository), source, run, exist_ok=self.exist_ok)
        record = {"id": branch.id, "commit_id": branch.commit_id}
        self.log.info("Branch lakefs://%s/%s is at %s", repository.id, branch.id, record["commit_id"])
        return record


class LakeopsDeleteBranchOperator(LakeopsBranchOperator):
    """Deletes a branch; returns ``id``, ``commit_id`` (None when there was no branch) and ``deleted``.

    Args:
        branch: the branch. One that does not exist is fine.
        merged_into: delete only when this ref has everything that the branch has, uncommitted changes included.
            Otherwise the branch stays, and the task succeeds with ``deleted`` false: it can be a teardown.
        shown: the state that a preview has shown. A branch that has changed since stays.
    """

    template_fields: Any = (*LakeopsBranchOperator.template_fields, "merged_into", "shown")
    branch: str

    def __init__(self, *, branch: str, merged_into: str | None = None, shown: str | None = None, **kwargs: Any) -> None:
        super().__init__(branch=branch, **kwargs)
        self.merged_into = merged_into
        self.shown = shown

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        def look_and_delete() -> dict[str, Any]:
            pinned = None
            with suppress(RefNotFound):
                branch = repository.branch(self.target(repository))
                pinned = branch.pin() if self.shown or self.merged_into else None  # before the looks
                require_shown(state_of(branch) if self.shown else "", self.shown, f"branch {self.branch!r}")
            kept = self.merged_into and idempotent.unpublished(repository, self.branch, self.merged_into)
            if kept:
                self.log.warning("Branch lakefs://%s/%s stays: %s", repository.id, self.branch, kept)
                return {"id": self.branch, "commit_id": repository.branch(self.branch).commit_id, "deleted": False}
            deleted = idempotent.delete_branch(repository, self.branch, pinned=pinned)
            return _deleted(self, repository, self.branch, deleted)

        return retrying(lambda error: isinstance(error, NotAsSeen), Ids())(look_and_delete)


class LakeopsResetBranchOperator(LakeopsBranchOperator):
    """Drops a branch's uncommitted changes; returns ``id``, ``commit_id`` and how many staged paths went (``reset``).

    A task that is cleared later drops what was staged since.

    Args:
        prefix: drop changes under this prefix only.
        path: drop the change of this one path only.
        shown: the changes that a preview has shown. When there are others by now, nothing is dropped.
    """

    template_fields: Any = (*LakeopsBranchOperator.template_fields, "prefix", "path", "shown")
    branch: str

    def __init__(
        self,
        *,
        branch: str,
        prefix: str | None = None,
        path: str | None = None,
        shown: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(branch=branch, **kwargs)
        self.prefix = prefix
        self.path = path
        self.shown = shown

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        branch, where = repository.branch(self.target(repository)), (self.prefix or None, self.path or None)
        pinned = branch.pin(*where) if self.shown else None  # before the look
        if self.shown:
            now = staged_state(branch, self.prefix or "")
            # A try that comes after it was done finds nothing.
            require_shown(now or "", self.shown if now else None, f"what is uncommitted on {branch.id!r}")
        count = branch.reset(*where, pinned=pinned)
        self.log.info("Dropped %d staged paths of lakefs://%s/%s", count, repository.id, branch.id)
        return {"id": branch.id, "commit_id": branch.commit_id, "reset": count}


class LakeopsMoveBranchOperator(LakeopsBranchOperator):
    """Points a branch at another commit, also one that does not descend from its head; returns its ref record.

    The reflog has where it was. A task that runs again moves nothing more.

    Args:
        branch: the branch. One with uncommitted changes stays.
        ref: the ref expression to point it at.
        shown: the head that a preview has shown. A branch that is elsewhere by now stays.
    """

    template_fields: Any = (*LakeopsBranchOperator.template_fields, "ref", "shown")
    branch: str

    def __init__(self, *, branch: str, ref: str, shown: str | None = None, **kwargs: Any) -> None:
        super().__init__(branch=branch, **kwargs)
        self.ref = ref
        self.shown = shown

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        def check(head: str) -> None:
            require_shown(head, self.shown, f"branch {self.branch!r}")

        key = run.key("move-branch", self.branch, self.ref)
        moved = repository.branch(self.target(repository)).move(
            self.ref, force=True, idempotency_key=key, on_head=check
        )
        self.log.info("Branch lakefs://%s/%s is at %s", repository.id, self.branch, moved.commit_id)
        return {"id": self.branch, "commit_id": moved.commit_id}


class LakeopsProtectBranchOperator(LakeopsOperator):
    """Protects branches from direct changes; returns ``pattern`` and all ``protections`` of the repository.

    Args:
        pattern: a branch's name, or a glob such as ``release-*``.
        protected: False drops the protection. One that does not exist is fine.
    """

    template_fields: Any = (*LakeopsOperator.template_fields, "pattern")

    def __init__(self, *, pattern: str, protected: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pattern = pattern
        self.protected = protected

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        if self.protected:
            repository.protect(self.pattern)
        else:
            with suppress(NotFound):
                repository.unprotect(self.pattern)
        return {"pattern": self.pattern, "protections": repository.protections()}


class LakeopsCreateTagOperator(LakeopsOperator):
    """Creates a tag; returns its ref record (``id``, ``commit_id``).

    The tag points to what the ref meant when the task first asked, also when the task is retried or cleared after the
    ref has moved. A tag of that name at another commit fails the task, because tags do not move.

    Args:
        ref: the ref expression to tag; the repository's default branch when left out.
    """

    template_fields: Any = (*LakeopsOperator.template_fields, "tag", "ref")

    def __init__(self, *, tag: str, ref: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tag = tag
        self.ref = ref

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        ref = self.ref or repository.default_branch
        tag = repository.create_tag(self.tag, ref, idempotency_key=run.key("tag", self.tag, ref))
        self.log.info("Tag lakefs://%s/%s is at %s", repository.id, tag.id, tag.commit_id)
        return tag.to_json()


class LakeopsMoveTagOperator(LakeopsOperator):
    """Points a tag at another commit; returns its ref record (``id``, ``commit_id``).

    A task that runs again moves nothing more.

    Args:
        ref: the ref expression to point it at.
        shown: the commit that a preview has shown it at. A tag that is elsewhere by now stays.
    """

    template_fields: Any = (*LakeopsOperator.template_fields, "tag", "ref", "shown")

    def __init__(self, *, tag: str, ref: str, shown: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tag = tag
        self.ref = ref
        self.shown = shown

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        key = run.key("move-tag", self.tag, self.ref)
        moved = repository.move_tag(self.tag, self.ref, old=self.shown or None, idempotency_key=key)
        self.log.info("Tag lakefs://%s/%s is at %s", repository.id, moved.id, moved.commit_id)
        return moved.to_json()


class LakeopsDeleteTagOperator(LakeopsOperator):
    """Deletes a tag; returns ``id``, ``commit_id`` (None when there was no tag) and ``deleted``.

    Args:
        tag: the tag. One that does not exist is fine.
        shown: the commit that a preview has shown it at. A tag that is elsewhere by now stays.
    """

    template_fields: Any = (*LakeopsOperator.template_fields, "tag", "shown")

    def __init__(self, *, tag: str, shown: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tag = tag
        self.shown = shown

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        gone = None
        with suppress(RefNotFound):
            gone = repository.delete_tag(self.tag, old=self.shown or None)
        return _deleted(self, repository, self.tag, gone)


class LakeopsCreateRepositoryOperator(LakeopsOperator):
    """Creates a repository; returns its record (``id``, ``storage_namespace``, ``default_branch``, ...).

    One that exists already at the same place with the same default branch is fine.

    Args:
        storage_namespace: ``s3://bucket/prefix`` or ``file:///directory``; below the lake's home when left out.
        default_branch: its first branch.
    """

    template_fields: Any = (*LakeopsOperator.template_fields, "storage_namespace", "default_branch")

    def __init__(
        self, *, repo: str, storage_namespace: str | None = None, default_branch: str = "main", **kwargs: Any
    ) -> None:
        super().__init__(repo=repo, **kwargs)
        self.storage_namespace = storage_namespace
        self.default_branch = default_branch

    def work(self, lake: Lake, name: str, context: Context) -> dict[str, Any]:
        found = idempotent.create_repository(lake, name, self.storage_namespace or None, self.default_branch)
        self.log.info("Repository lakefs://%s is at %s", found.id, found.storage_namespace)
        return found.record.to_json()


class LakeopsDeleteRepositoryOperator(LakeopsOperator):
    """Deletes a repository's catalog entry; returns ``id``, ``storage_namespace`` (None: no such one) and ``deleted``.

    The objects stay where they are. A repository that does not exist is fine.
    """

    def __init__(self, *, repo: str, **kwargs: Any) -> None:
        super().__init__(repo=repo, **kwargs)

    def work(self, lake: Lake, name: str, context: Context) -> dict[str, Any]:
        try:
            record = lake.repository(name).record
            lake.delete_repository(name)
        except RepositoryNotFound:
            self.log.info("There is no repository lakefs://%s", name)
            return {"id": name, "storage_namespace": None, "deleted": False}
        self.log.info("Repository lakefs://%s is deleted; its objects stay at %s", name, record.storage_namespace)
        return {"id": name, "storage_namespace": record.storage_namespace, "deleted": True}


def _deleted(task: LakeopsOperator, repository: Repository, name: str, ref: RefRecord | None) -> dict[str, Any]:
    """The result of deleting a ref; ``ref`` is None where it did not exist."""
    if ref is None:
        task.log.info("There is no lakefs://%s/%s", repository.id, name)
        return {"id": name, "commit_id": None, "deleted": False}
    task.log.info("Deleted lakefs://%s/%s, which was at %s", repository.id, ref.id, ref.commit_id)
    return {**ref.to_json(), "deleted": True}
