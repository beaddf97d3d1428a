"""Repositories: there as asked for, or gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakeops.model.errors import AlreadyExists, RepositoryNotFound

if TYPE_CHECKING:
    from lakeops.lake import Lake, Repository
    from lakeops.model.records import Repository as RepositoryRecord


def create_repository(lake: Lake, name: str, storage_namespace: str | None, default_branch: str) -> Repository:
    """The repository, new, or as it was made before with this namespace and default branch.

    Raises:
        AlreadyExists: there is one of that name elsewhere, or with another default branch.
        InvalidName, InvalidUri, NamespaceTaken, StoreError.
    """
    try:
        return lake.create_repository(name, storage_namespace, default_branch=default_branch)
    except AlreadyExists:
        from lakeops.store.open import normalise_namespace

        found = lake.repository(name)
        wanted = normalise_namespace(storage_namespace or lake.settings.default_namespace(name))
        if (found.storage_namespace, found.default_branch) == (wanted, default_branch):
            return found
        raise AlreadyExists(
            f"repository {name!r} exists at {found.storage_namespace} with default branch {found.default_branch!r}; "
            f"asked for {wanted} and {default_branch!r}: use another name"
        ) from None


def delete_repository(lake: Lake, name: str) -> RepositoryRecord | None:
    """The record of the repository that was deleted, or None when there is no such repository."""
    try:
        record = lake.repository(name).record
        lake.delete_repository(name)
    except RepositoryNotFound:
        return None
    return record
