"""Lineage: what a task read and wrote, in OpenLineage's words.

A branch's data has the namespace ``lakefs://REPO`` and the name ``BRANCH`` or ``BRANCH/PATH``; its version is the
commit id, so that a reader of the lineage can go back to the very data. Without OpenLineage's provider none of this
does anything, and nothing of it is imported before a lineage is asked for.
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
    """A data set: OpenLineage's namespace and name, and the commit id where there is one."""

    namespace: str
    name: str
    version: str | None = None

    @classmethod
    def of(cls, repository: Repository, ref: str, path: str = "", *, version: str | None = None) -> Place:
        """What a ref holds under a path. Without a version: as the ref is now, if it still is."""
        if version is None:
            try:
                version = repository.ref(ref).commit_id
            except LakeopsError:
                version = None
        return cls(f"lakefs://{repository.id}", f"{ref}/{path}".rstrip("/"), version)

    @classmethod
    def outside(cls, url: str) -> Place:
        """What is at a URL of a bucket or a directory, by OpenLineage's naming."""
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
        """The same for OpenLineage's provider; None without that provider, and when there is nothing to tell."""
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
