"""Operators on repositories: create, delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lakeops.airflow import once
from lakeops.airflow.operators.base import LakeopsOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lakeops.lake import Lake


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
