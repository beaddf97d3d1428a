"""Operators on tags: create, delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lakeops.airflow import once
from lakeops.airflow.operators.base import LakeopsOperator

if TYPE_CHECKING:
    from lakeops.airflow.run import TaskRun
    from lakeops.lake import Repository


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
