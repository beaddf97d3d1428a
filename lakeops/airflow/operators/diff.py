"""What differs between two refs, for a branch's task, a person's decision or a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lakeops.airflow.changes import Tally
from lakeops.airflow.lineage import Place, Trace
from lakeops.airflow.links import LakeopsDiffLink
from lakeops.airflow.operators.base import LakeopsOperator

if TYPE_CHECKING:
    from lakeops.airflow.run import TaskRun
    from lakeops.lake import Repository


class LakeopsDiffOperator(LakeopsOperator):
    """Lists what changed; returns ``changes`` and how many there are.

    The counts are ``total``, ``added``, ``removed``, ``changed`` and ``conflict``.

    ``changes`` are the first ones, as records with ``type``, ``path`` and ``size_bytes``; ``truncated`` says whether
    there are more. The log shows them too.

    Args:
        right: the ref whose changes are listed.
        left: the ref to compare with. Left out: the uncommitted changes of the branch ``right``.
        two_way: list everything that differs from ``left`` to ``right``, instead of what ``right`` changed since their
            merge base (what a merge into ``left`` would bring, and its conflicts).
        prefix: under this prefix only.
        max_changes: how many changes are listed; the counts are always of all.
        kwargs: see ``LakeopsOperator``.
    """

    operator_extra_links = (LakeopsDiffLink(),)
    template_fields: Sequence[str] = (*LakeopsOperator.template_fields, "right", "left", "prefix")

    def __init__(
        self,
        *,
        right: str,
        left: str | None = None,
        two_way: bool = False,
        prefix: str = "",
        max_changes: int = 100,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(**kwargs)
        self.right = right
        self.left = left
        self.two_way = two_way
        self.prefix = prefix
        self.max_changes = max_changes

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:  # noqa: ARG002 - reading needs no key
        """The counts and the first changes."""
        if not self.left:
            changes = repository.branch(self.right).uncommitted(self.prefix)
        elif self.two_way:
            changes = repository.diff(self.left, self.right, prefix=self.prefix)
        else:
            changes = repository.compare(self.left, self.right, prefix=self.prefix)
        tally = Tally.of(changes, self.max_changes)
        self.log.info("%s", tally)
        return tally.to_json()

    def pages(self, repository: Repository, record: dict[str, Any] | None) -> dict[str, str]:  # noqa: ARG002
        """The difference; the branch where it is about what is not committed."""
        if not self.left:
            return {"diff": self.page(repository, "ref", self.right)}
        more = {"two_way": "true"} if self.two_way else {}
        return {"diff": self.page(repository, "diff", left=self.left, right=self.right, **more)}

    def trace(self, repository: Repository, record: dict[str, Any]) -> Trace:  # noqa: ARG002 - only reads
        """From both sides."""
        return Trace(tuple(Place.of(repository, ref, self.prefix) for ref in (self.left, self.right) if ref))
