"""The findings of ``fsck``, for tests of everything else: nothing worse than information."""

from lakeops import Repository
from lakeops.ops.fsck.findings import Finding, Severity


def worse_than_information(repo: Repository, *, data: bool = False) -> list[Finding]:
    return [finding for finding in repo.fsck(data=data) if finding.severity != Severity.INFO]


def assert_sound(repo: Repository, *, data: bool = False) -> None:
    found = worse_than_information(repo, data=data)
    assert found == [], found
