"""The looks before an upload, and the one in the transaction that links what was uploaded, refuse the same."""

from __future__ import annotations

import pytest
from support.catalogs import FIRST, REPO, an_entry

from lakeops.model.errors import (
    LakeopsError,
    RefNotFound,
    RepositoryNotFound,
)
from lakeops.model.records import CHECK_PROTECTION, TAG_PROTECTION


def refusals(catalog, branch="main", repository=REPO):
    """What the look and the transaction raise."""
    found = []
    for refused in (
        lambda: catalog.staging.stageable(repository, branch),
        lambda: catalog.staging.staging_time(repository, branch),
        lambda: catalog.staging.put_staged(repository, branch, [an_entry("a")], started=catalog.now()),
    ):
        with pytest.raises(LakeopsError) as caught:
            refused()
        found.append(caught.value)
    assert len({(type(one), one.message) for one in found}) == 1
    return found[0]


def test_a_branch_that_may_be_staged_to_comes_with_its_head(catalog):
    catalog.refs.protect(REPO, "release-*")
    catalog.refs.protect(REPO, "prod", kind=CHECK_PROTECTION, check="tests")
    catalog.refs.protect(REPO, "*", kind=TAG_PROTECTION)
    found = catalog.staging.stageable(REPO, "main")
    assert found.state == catalog.refs.branch(REPO, "main")
    assert found.head == FIRST
    assert found.now <= catalog.staging.staging_time(REPO, "main") <= catalog.now()
    assert catalog.staging.put_staged(REPO, "main", [an_entry("a")], started=found.now) == found.state


@pytest.mark.parametrize("kind", ["branch", "check"])
def test_one_pattern_of_several_protects(catalog, kind):
    for pattern in ("release-*", "ma*", "x"):
        catalog.refs.protect(REPO, pattern, kind=kind, check="tests" if kind == CHECK_PROTECTION else "")
    error = refusals(catalog)
    assert error.kind == "protected_branch"
    assert "'main' is protected by 'ma*'" in error.message


def test_a_read_only_repository_is_named(catalog):
    catalog.repositories.set_read_only(REPO, True)
    error = refusals(catalog)
    assert error.kind == "read_only_repository"
    assert f"repository {REPO!r}" in error.message


def test_what_is_missing_is_named(catalog):
    assert isinstance(error := refusals(catalog, branch="none"), RefNotFound)
    assert "'none'" in error.message
    assert isinstance(error := refusals(catalog, repository="none"), RepositoryNotFound)
    assert "'none'" in error.message
