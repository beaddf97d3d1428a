"""Lineage: what a task read and wrote, for OpenLineage.

A branch's data has the namespace ``lakefs://REPO`` and the name ``BRANCH`` or ``BRANCH/PATH``. Its version is the
commit id, so a reader of the lineage can go back to exactly that data. OpenLineage is imported when it asks for the
lineage of a task. Without OpenLineage's provider this module does nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakeops.model.errors import LakeopsError

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from lakeops.lake import Repository


@dataclass(frozen=True)
class Place:
    """A data set: OpenLineage's namespace and name, and the commit id if there is one."""

    namespace: str
    name: str
    version: str | None = None

    @classmethod
    def of(cls, repository: Repository, ref: str, path: str = "", *, version: str | None = None) -> Place:
        """What a ref holds under a path. The version is the ref's commit, unless one is given or the ref is gone."""
        if version is None:
            try:
                version = repository.ref(ref).commit_id
            except LakeopsError:
                version = None
        return cls(f"lakefs://{repository.id}", f"{ref}/{path}".rstrip("/"), version)

    @classmethod
    def outside(cls, url: str) -> Place:
        """A URL of a bucket or a directory, in OpenLineage's naming."""
        scheme, _, rest = url.partition("://")
        if scheme == "file":
            return cls("file", rest)
        bucket, _, key = rest.partition("/")
        return cls(f"{scheme}://{bucket}", key.rstrip("/") or "/")


@dataclass(frozen=True)
class Trace:
    """What a task read and wrote."""

    inputs: tuple[Place, ...] = ()
    outputs: tuple[Place, ...] = ()

    def to_openlineage(self) -> OperatorLineage | None:
        """The same for OpenLineage's provider. None without that provider, and when nothing was read or written."""
        if not self.inputs and not self.outputs:
            return None
        try:
            from airflow.providers.openlineage.extractors import OperatorLineage
        except ImportError:
            return None
        return OperatorLineage(
            inputs=[_dataset(place) for place in self.inputs], outputs=[_dataset(place) for place in self.outputs]
        )


def _dataset(place: Place) -> Any:  # noqa: ANN401 - OpenLineage need not be installed
    from openlineage.client.event_v2 import Dataset
    from openlineage.client.facet_v2 import dataset_version_dataset

    if place.version is None:
        return Dataset(namespace=place.namespace, name=place.name)
    facet = dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=place.version)
    return Dataset(namespace=place.namespace, name=place.name, facets={"version": facet})
