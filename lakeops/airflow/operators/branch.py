"""Operators on branches: create, delete, reset, protect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lakeops.airflow import once
from lakeops.airflow.links import LakeopsBranchLink
from lakeops.airflow.operators.base import LakeopsOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lakeops.airflow.run import TaskRun
    from lakeops.lake import Lake, Repository


class LakeopsCreateBranchOperator(LakeopsOperator):
    """Creates a branch; returns its ref record (``id``, ``commit_id``).

    A branch that exists already is taken when it holds nothing but the source's history and commits of the same DAG
    run, so retrying and clearing are safe and nobody works on somebody else's branch by accident.

    Args:
        branch: the new branch.
        source: the ref expression to start at; the repository's default branch when left out.
        exist_ok: take a branch of that name whatever it holds.
        kwargs: see ``LakeopsOperator``.
    """

    operator_extra_links = (LakeopsBranchLink(),)
    template_fields: Sequence[str] = (*LakeopsOperator.template_fields, "branch", "source")

    def __init__(
        self,
        *,
        branch: str,
        source: str | None = None,
        exist_ok: bool = False,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(**kwargs)
        self.branch = branch
        self.source = source
        self.exist_ok = exist_ok

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        """The branch's ref record."""
        source = self.source or repository.default_branch
        branch = once.create_branch(repository, self.branch, source, run, exist_ok=self.exist_ok)
        head = branch.commit_id
        self.log.info("Branch lakefs://%s/%s is at %s", repository.id, branch.id, head)
        return {"id": branch.id, "commit_id": head}

    def pages(self, repository: Repository, record: dict[str, Any] | None) -> dict[str, str]:  # noqa: ARG002
        """The branch."""
        return {"branch": self.page(repository, "ref", self.branch)}


class LakeopsDeleteBranchOperator(LakeopsOperator):
    """Deletes a branch; returns ``id``, ``commit_id`` (None when it was gone) and ``deleted``.

    Args:
        branch: the branch. One that does not exist is fine.
        merged_into: delete only when this ref has everything that the branch has, uncommitted changes included;
            otherwise the branch stays for inspection, and the task succeeds with ``deleted`` false. This makes it fit
            to be a teardown, which runs after failures too.
        kwargs: see ``LakeopsOperator``.
    """

    operator_extra_links = (LakeopsBranchLink(),)
    template_fields: Sequence[str] = (*LakeopsOperator.template_fields, "branch", "merged_into")

    def __init__(
        self,
        *,
        branch: str,
        merged_into: str | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(**kwargs)
        self.branch = branch
        self.merged_into = merged_into

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:  # noqa: ARG002 - deleting needs no key
        """Where the branch was, and whether it was deleted."""
        kept = self.merged_into and once.unpublished(repository, self.branch, self.merged_into)
        if kept:
            self.log.warning("Branch lakefs://%s/%s stays: %s", repository.id, self.branch, kept)
            return {"id": self.branch, "commit_id": repository.branch(self.branch).commit_id, "deleted": False}
        ref = once.delete_branch(repository, self.branch)
        if ref is None:
            self.log.info("There is no branch lakefs://%s/%s", repository.id, self.branch)
            return {"id": self.branch, "commit_id": None, "deleted": False}
        self.log.info("Branch lakefs://%s/%s is deleted; it was at %s", repository.id, ref.id, ref.commit_id)
        return {**ref.to_json(), "deleted": True}

    def pages(self, repository: Repository, record: dict[str, Any] | None) -> dict[str, str]:  # noqa: ARG002
        """The branch, of which the page says where it was when it is gone."""
        return {"branch": self.page(repository, "ref", self.branch)}


class LakeopsResetBranchOperator(LakeopsOperator):
    """Drops a branch's uncommitted changes; returns ``id``, ``commit_id`` and how many staged paths went (``reset``).

    Whatever is staged when the task runs goes, so a task that is cleared later drops what came since.

    Args:
        branch: the branch.
        prefix: drop changes under this prefix only.
        path: drop the change of this one path only.
        kwargs: see ``LakeopsOperator``.
    """

    operator_extra_links = (LakeopsBranchLink(),)
    template_fields: Sequence[str] = (*LakeopsOperator.template_fields, "branch", "prefix", "path")

    def __init__(
        self,
        *,
        branch: str,
        prefix: str | None = None,
        path: str | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(**kwargs)
        self.branch = branch
        self.prefix = prefix
        self.path = path

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:  # noqa: ARG002 - resetting needs no key
        """The branch's ref record, and how many staged paths went."""
        branch = repository.branch(self.branch)
        count = branch.reset(prefix=self.prefix or None, path=self.path or None)
        self.log.info("Dropped %d staged paths of lakefs://%s/%s", count, repository.id, branch.id)
        return {"id": branch.id, "commit_id": branch.commit_id, "reset": count}

    def pages(self, repository: Repository, record: dict[str, Any] | None) -> dict[str, str]:  # noqa: ARG002
        """The branch."""
        return {"branch": self.page(repository, "ref", self.branch)}


class LakeopsProtectBranchOperator(LakeopsOperator):
    """Protects branches from direct changes; returns ``pattern`` and all ``protections`` of the repository.

    Args:
        pattern: a branch's name, or a glob such as ``release-*``.
        protected: False drops the protection; one that is not there is fine.
        kwargs: see ``LakeopsOperator``.
    """

    template_fields: Sequence[str] = (*LakeopsOperator.template_fields, "pattern")

    def __init__(
        self,
        *,
        pattern: str,
        protected: bool = True,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(**kwargs)
        self.pattern = pattern
        self.protected = protected

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:  # noqa: ARG002 - protecting needs no key
        """The pattern and what is protected now."""
        if self.protected:
            repository.protect(self.pattern)
        else:
            once.unprotect(repository, self.pattern)
        return {"pattern": self.pattern, "protections": repository.protections()}


class LakeopsCreateTagOperator(LakeopsOperator):
    """Creates a tag; returns its ref record (``id``, ``commit_id``).

    The tag goes to what the ref meant when the task first asked, also when the task is retried or cleared after the
    ref has moved. A tag of that name at another commit fails the task: tags do not move.

    Args:
        tag: the new tag.
        ref: the ref expression to tag; the repository's default branch when left out.
        kwargs: see ``LakeopsOperator``.
    """

    template_fields: Sequence[str] = (*LakeopsOperator.template_fields, "tag", "ref")

    def __init__(
        self,
        *,
        tag: str,
        ref: str | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(**kwargs)
        self.tag = tag
        self.ref = ref

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        """The tag's ref record."""
        tag = once.create_tag(repository, self.tag, self.ref or repository.default_branch, run)
        self.log.info("Tag lakefs://%s/%s is at %s", repository.id, tag.id, tag.commit_id)
        return tag.to_json()


class LakeopsDeleteTagOperator(LakeopsOperator):
    """Deletes a tag; returns ``id``, ``commit_id`` (None when it was gone) and ``deleted``.

    Args:
        tag: the tag. One that does not exist is fine.
        kwargs: see ``LakeopsOperator``.
    """

    template_fields: Sequence[str] = (*LakeopsOperator.template_fields, "tag")

    def __init__(self, *, tag: str, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(**kwargs)
        self.tag = tag

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:  # noqa: ARG002 - deleting needs no key
        """Where the tag was, and whether it was deleted."""
        ref = once.delete_tag(repository, self.tag)
        if ref is None:
            self.log.info("There is no tag lakefs://%s/%s", repository.id, self.tag)
            return {"id": self.tag, "commit_id": None, "deleted": False}
        self.log.info("Tag lakefs://%s/%s is deleted; it was at %s", repository.id, ref.id, ref.commit_id)
        return {**ref.to_json(), "deleted": True}


class LakeopsCreateRepositoryOperator(LakeopsOperator):
    """Creates a repository; returns its record (``id``, ``storage_namespace``, ``default_branch``, ...).

    One that exists already at the same place with the same default branch is fine.

    Args:
        repo: the new repository's name.
        storage_namespace: ``s3://bucket/prefix`` or ``file:///directory``; below the lake's home when left out.
        default_branch: its first branch.
        kwargs: see ``LakeopsOperator``.
    """

    template_fields: Sequence[str] = (*LakeopsOperator.template_fields, "storage_namespace", "default_branch")

    def __init__(
        self,
        *,
        repo: str,
        storage_namespace: str | None = None,
        default_branch: str = "main",
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(repo=repo, **kwargs)
        self.storage_namespace = storage_namespace
        self.default_branch = default_branch

    def work(self, lake: Lake, name: str, context: Context) -> dict[str, Any]:  # noqa: ARG002 - creating needs no key
        """The repository's record."""
        found = once.create_repository(lake, name, self.storage_namespace or None, self.default_branch)
        self.log.info("Repository lakefs://%s is at %s", found.id, found.storage_namespace)
        return found.record.to_json()


class LakeopsDeleteRepositoryOperator(LakeopsOperator):
    """Forgets a repository; returns ``id``, ``storage_namespace`` (None when it was gone) and ``deleted``.

    The storage namespace is left as it is, so the objects stay where they are.

    Args:
        repo: the repository, which must be named. One that does not exist is fine.
        kwargs: see ``LakeopsOperator``.
    """

    def __init__(self, *, repo: str, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(repo=repo, **kwargs)

    def work(self, lake: Lake, name: str, context: Context) -> dict[str, Any]:  # noqa: ARG002 - deleting needs no key
        """What the repository was, and whether it was deleted."""
        record = once.delete_repository(lake, name)
        if record is None:
            self.log.info("There is no repository lakefs://%s", name)
            return {"id": name, "storage_namespace": None, "deleted": False}
        self.log.info("Repository lakefs://%s is forgotten; its objects stay at %s", name, record.storage_namespace)
        return {"id": name, "storage_namespace": record.storage_namespace, "deleted": True}
