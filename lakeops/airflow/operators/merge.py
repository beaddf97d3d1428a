"""Merging a ref into a branch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lakeops.airflow import once
from lakeops.airflow.assets import COMMITS
from lakeops.airflow.changes import Tally
from lakeops.airflow.lineage import Place, Trace
from lakeops.airflow.links import LakeopsBranchLink, LakeopsCommitLink, LakeopsDiffLink
from lakeops.airflow.operators.base import LakeopsOperator

if TYPE_CHECKING:
    from lakeops.airflow.run import TaskRun
    from lakeops.lake import Repository


class LakeopsMergeOperator(LakeopsOperator):
    """Merges a ref into a branch; returns the merge record (``reference``, ``up_to_date``, ``summary``).

    ``reference`` is the merge commit's id, or None when the destination had everything already, which is a success.
    A conflict publishes nothing and fails the task without retry. The log lists every conflicting path and shows what
    either side has there; the XCom ``conflicts`` has the same for tasks that run after a failure.

    Args:
        source: the ref to merge.
        destination: the branch to merge into; the repository's default branch when left out.
        strategy: ``source-wins`` or ``dest-wins`` settles every conflict for that side.
        message: the merge commit's message.
        metadata: key/value pairs kept with the merge commit.
        kwargs: see ``LakeopsOperator``.
    """

    operator_extra_links = (LakeopsCommitLink(), LakeopsBranchLink(), LakeopsDiffLink())
    template_fields: Sequence[str] = (
        *LakeopsOperator.template_fields,
        "source",
        "destination",
        "strategy",
        "message",
        "metadata",
    )

    def __init__(
        self,
        *,
        source: str,
        destination: str | None = None,
        strategy: str | None = None,
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        kwargs.setdefault("outlets", [COMMITS])
        super().__init__(**kwargs)
        self.source = source
        self.destination = destination
        self.strategy = strategy
        self.message = message
        self.metadata = metadata

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        """The merge's record."""
        destination = self.destination or repository.default_branch
        result = once.merge(
            repository,
            self.source,
            destination,
            run,
            strategy=self.strategy or None,
            message=self.message,
            metadata=self.metadata,
        )
        if result.reference is None:
            self.log.info("lakefs://%s/%s has all of %s already", repository.id, destination, self.source)
        else:
            self.log.info("Merge %s is on lakefs://%s/%s", result.reference, repository.id, destination)
        return result.to_json()

    def moved(self, repository: Repository, record: dict[str, Any], run: TaskRun) -> tuple[str, str] | None:  # noqa: ARG002
        """The destination and the merge commit, if there was anything to merge."""
        return record["reference"] and (self.destination or repository.default_branch, record["reference"])

    def trace(self, repository: Repository, record: dict[str, Any]) -> Trace:
        """From the source as it was merged, to the destination."""
        destination = self.destination or repository.default_branch
        if record["reference"] is None:
            return Trace()
        merged = repository.ref(record["reference"]).commit
        return Trace(
            inputs=(Place.of(repository, self.source, version=merged.parents[1]),),
            outputs=(Place.of(repository, destination, version=merged.id),),
        )

    def pages(self, repository: Repository, record: dict[str, Any] | None) -> dict[str, str]:
        """The destination, the merge commit and what it changed; what the source would bring, where there is none."""
        destination = self.destination or repository.default_branch
        branch = {"branch": self.page(repository, "ref", destination)}
        if record is None or record["reference"] is None:
            return {**branch, "diff": self.page(repository, "diff", left=destination, right=self.source)}
        made = record["reference"]
        changed = self.page(repository, "diff", left=f"{made}^1", right=made, two_way="true")
        return {**branch, "commit": self.page(repository, "commit", made), "diff": changed}

    def sides(self, repository: Repository) -> tuple[str, str] | None:
        """Source and destination."""
        return self.source, self.destination or repository.default_branch


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
