"""Validation of a mirror's records: each one that its source gives is checked before anything is done with it.

Whoever can write to the source's catalog could give a commit another history than its id says, a branch a name that
means something else in an expression, or a log texts that redraw a terminal. So types, bounds and names are checked,
commit ids are computed again, and generations have to follow from parents. What is refused concerns one ref, or the
whole source where there is no smaller part. It is never mended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from lakeops.model import ids
from lakeops.model.errors import InvalidInput, RecordRefused
from lakeops.model.mirrors import RefName
from lakeops.model.names import broken_rule, check_branch
from lakeops.model.records import Commit, RepositoryRecord
from lakeops.model.retention import read_rules
from lakeops.model.sanitising import excerpt, one_line
from lakeops.ops.overlap import CLAIM_ID
from lakeops.ranges.chunker import check_split

MAX_SEQUENCE = 1 << 53
_MAX_CLAIM_BYTES = 256
_MAX_PATTERN_BYTES = 4096
_MAX_NAME_BYTES = 255
_MOST_PARENTS = 2
_ID = re.compile(r"[0-9a-f]{64}")
_ATTEMPT = r"[0-9A-Za-z._-]{1,128}"


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    try:
        yield
    except (InvalidInput, TypeError) as error:
        raise RecordRefused(f"the source's {what}: {one_line(error)}") from None


def check_repository(repository: RepositoryRecord) -> RepositoryRecord:
    """The source's repository, as far as a mirror takes it over. Raises ``RecordRefused``."""
    with _refusing(f"repository {excerpt(repository.id)}"):
        check_branch(repository.default_branch)
        check_split(repository.split)
        if (claim := repository.capabilities.get(CLAIM_ID)) is not None:
            ids.check_text("claim", claim, at_most=_MAX_CLAIM_BYTES)
    return repository


def check_repository_metadata(repository: RepositoryRecord) -> dict[str, str]:
    """The source repository's metadata. Raises ``RecordRefused``."""
    with _refusing(f"repository {excerpt(repository.id)}"):
        return ids.check_metadata(repository.metadata, at_most=ids.COMMIT_METADATA_BYTES)


def ref_flaw(ref: RefName, head: object) -> str | None:
    """Why a ref of the source is not followed, in words. None when it may be."""
    broken = broken_rule(ref.name)
    if broken is not None:
        return f"{excerpt(ref.name)} is no {ref.kind} name: it {broken}"
    if not isinstance(head, str) or not _ID.fullmatch(head):
        return f"{ref.kind} {excerpt(ref.name)} points to {excerpt(head)}, which is no commit id"
    return None


def check_rules(rules: str | None, protections: Iterable[str]) -> tuple[str | None, tuple[str, ...]]:
    """The source's retention rules and patterns of protected branches. Raises ``RecordRefused``."""
    patterns = tuple(protections)
    with _refusing("rules"):
        if rules is not None:
            read_rules(rules)
        for pattern in patterns:
            ids.check_text("pattern of protected branches", pattern, at_least=1, at_most=_MAX_PATTERN_BYTES)
    return rules, patterns


def check_sequence(sequence: object) -> int:
    """The number of a report. Raises ``RecordRefused``."""
    if type(sequence) is not int or not 0 <= sequence <= MAX_SEQUENCE:
        raise RecordRefused("the source has a report of this mirror under an impossible number")
    return sequence


def check_line(commits: list[Commit], start: str) -> list[Commit]:
    """Commits that the source gave for a commit and its first parents. Raises ``RecordRefused``."""
    expected: str | None = start
    for commit in commits:
        if commit.id != expected:
            raise RecordRefused(f"the source gave commit {excerpt(commit.id)} where {expected or 'none'} was asked for")
        check_commit(commit)
        expected = commit.parents[0] if commit.parents else None
    return commits


def check_commit(commit: Commit, origin: str = "the source") -> Commit:
    """A commit of the source, or of another origin, looked at by itself. Raises ``RecordRefused``."""
    if commit.is_pruned:  # it only stands for one that was pruned, and nothing else of it is taken over
        return commit
    try:
        reason = _flaw(commit)
    except InvalidInput as error:
        reason = error.message
    if reason is not None:
        raise RecordRefused(f"commit {excerpt(commit.id)} of {origin} is refused: {reason}")
    return commit


def check_generations(commits: Iterable[Commit], known: Mapping[str, Commit], origin: str = "the source") -> None:
    """Refuse commits whose generation does not follow from their parents. Raises ``RecordRefused``.

    ``known`` has parents by id: of those given too, of those that were here, and those that stand for pruned ones.
    """
    for commit in commits:
        parents = [known.get(parent) for parent in commit.parents]
        least = 1 + max((parent.generation for parent in parents if parent is not None), default=0)
        # Below a pruned parent nobody knows how long history was.
        exact = all(parent is not None and not parent.is_pruned for parent in parents)
        if commit.generation < least or (exact and commit.generation != least):
            raise RecordRefused(
                f"commit {commit.id[:16]} of {origin} is refused: its generation is {commit.generation}, and follows "
                f"from its parents as {least}"
            )


def _flaw(commit: Commit) -> str | None:
    """Validate a commit. Returns what is wrong with it, in words. Raises ``InvalidInput`` as well."""
    for text in (commit.id, commit.meta_range_id, commit.meta_range_file, commit.meta_range_digest):
        ids.check_text("name", text, at_most=_MAX_NAME_BYTES)
    if not _ID.fullmatch(commit.id):
        return "its id is not a commit id"
    if len(commit.parents) > _MOST_PARENTS or not all(_ID.fullmatch(parent) for parent in commit.parents):
        return "its parents are not commit ids"
    ids.check_text("committer", commit.committer, at_most=ids.MAX_COMMITTER_BYTES)
    ids.check_text("commit message", commit.message, at_most=ids.MAX_MESSAGE_BYTES)
    # Imports add what they did to the caller's metadata.
    ids.check_metadata(commit.metadata, at_most=2 * (ids.COMMIT_METADATA_BYTES + ids.ALONG_BYTES))
    if not ids.EARLIEST <= commit.creation_date <= ids.LATEST:
        return f"its time, {commit.creation_date}, is no date"
    if not 1 <= commit.generation <= MAX_SEQUENCE:
        return f"its generation is {commit.generation}"
    flaw = _metarange_flaw(commit)
    if flaw is None and (computed := ids.id_of(commit)) != commit.id:
        flaw = f"its record gives the id {computed[:16]}"
    return flaw


def _metarange_flaw(commit: Commit) -> str | None:
    if not _ID.fullmatch(commit.meta_range_id):
        return "its metarange id is not an id"
    if not commit.meta_range_file:
        return "it has a digest, and names no metarange file" if commit.meta_range_digest else None
    if not re.fullmatch(rf"{commit.meta_range_id}-{_ATTEMPT}\.parquet", commit.meta_range_file):
        return f"{excerpt(commit.meta_range_file)} is not a file of its metarange"
    return None if _ID.fullmatch(commit.meta_range_digest) else "the digest of its metarange file is not a SHA-256"
