"""Operators on objects of a branch: upload, delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lakeops.airflow.lineage import Place, Trace
from lakeops.airflow.links import LakeopsBranchLink
from lakeops.airflow.operators.base import LakeopsOperator
from lakeops.model.errors import InvalidInput, ObjectNotFound

if TYPE_CHECKING:
    from lakeops.airflow.run import TaskRun
    from lakeops.lake import Repository


SHOWN_PATHS = 100
"""How many paths an XCom lists."""


class LakeopsUploadOperator(LakeopsOperator):
    """Uploads a file or directory of the worker, or a text, to a branch; returns what was staged.

    The result has ``branch``, ``objects`` (how many), ``bytes`` and ``paths`` (the first hundred). The objects are
    uncommitted changes until the branch is committed; contents that are there already are no change.

    Args:
        branch: the branch.
        path: the object's path, or the folder that files go below.
        source: a file or directory that the worker sees.
        data: a text, in place of a source; it is stored in UTF-8.
        content_type: of every object.
        metadata: user metadata of every object.
        skip_special: leave out links, pipes and devices below a directory, instead of failing the task.
        kwargs: see ``LakeopsOperator``.
    """

    operator_extra_links = (LakeopsBranchLink(),)
    template_fields: Sequence[str] = (
        *LakeopsOperator.template_fields,
        "branch",
        "path",
        "source",
        "data",
        "content_type",
        "metadata",
    )

    def __init__(
        self,
        *,
        branch: str,
        path: str,
        source: str | None = None,
        data: str | None = None,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        skip_special: bool = False,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(**kwargs)
        self.branch = branch
        self.path = path
        self.source = source
        self.data = data
        self.content_type = content_type
        self.metadata = metadata
        self.skip_special = skip_special

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:  # noqa: ARG002 - staging needs no key
        """What was staged."""
        branch = repository.branch(self.branch)
        if (self.source is None) == (self.data is None):
            raise InvalidInput(f"upload to lakefs://{repository.id}/{branch.id}: give either source or data")
        if self.data is not None:
            entries = [
                branch.put(self.path, self.data.encode(), metadata=self.metadata, content_type=self.content_type)
            ]
        else:
            entries = branch.upload(
                self.source or "",
                self.path,
                metadata=self.metadata,
                content_type=self.content_type,
                skip_special=self.skip_special,
            )
        size = sum(entry.size_bytes for entry in entries)
        self.log.info("Staged %d objects, %d bytes, on lakefs://%s/%s", len(entries), size, repository.id, branch.id)
        return {
            "branch": branch.id,
            "objects": len(entries),
            "bytes": size,
            "paths": [entry.path for entry in entries[:SHOWN_PATHS]],
        }

    def trace(self, repository: Repository, record: dict[str, Any]) -> Trace:
        """From the worker's files, to the path on the branch; nothing is committed, so there is no version."""
        inputs = () if self.source is None else (Place("file", self.source),)
        return Trace(inputs, (Place(f"lakefs://{repository.id}", f"{record['branch']}/{self.path}".rstrip("/")),))

    def pages(self, repository: Repository, record: dict[str, Any] | None) -> dict[str, str]:  # noqa: ARG002
        """The branch."""
        return {"branch": self.page(repository, "ref", self.branch)}


class LakeopsDeleteObjectsOperator(LakeopsOperator):
    """Deletes objects of a branch; returns ``branch`` and how many deletions were staged (``objects``).

    They are uncommitted changes until the branch is committed, and earlier commits keep the objects. What is not there
    is no error.

    Args:
        branch: the branch.
        paths: paths to delete.
        prefix: delete everything under this prefix.
        kwargs: see ``LakeopsOperator``.
    """

    operator_extra_links = (LakeopsBranchLink(),)
    template_fields: Sequence[str] = (*LakeopsOperator.template_fields, "branch", "paths", "prefix")

    def __init__(
        self,
        *,
        branch: str,
        paths: Sequence[str] | str | None = None,
        prefix: str | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(**kwargs)
        self.branch = branch
        self.paths = paths
        self.prefix = prefix

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:  # noqa: ARG002 - staging needs no key
        """How many deletions were staged."""
        branch = repository.branch(self.branch)
        paths = [self.paths] if isinstance(self.paths, str) else list(self.paths or ())
        if not paths and not self.prefix:
            raise InvalidInput(f"nothing to delete on lakefs://{repository.id}/{branch.id}: give paths or a prefix")
        count = branch.delete_prefix(self.prefix) if self.prefix else 0
        for path in paths:
            try:
                branch.delete(path)
            except ObjectNotFound:
                self.log.info("There is no object lakefs://%s/%s/%s", repository.id, branch.id, path)
            else:
                count += 1
        self.log.info("Staged %d deletions on lakefs://%s/%s", count, repository.id, branch.id)
        return {"branch": branch.id, "objects": count}

    def pages(self, repository: Repository, record: dict[str, Any] | None) -> dict[str, str]:  # noqa: ARG002
        """The branch."""
        return {"branch": self.page(repository, "ref", self.branch)}
