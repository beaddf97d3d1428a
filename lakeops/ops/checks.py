"""Checks of commits: record their verdicts, and refuse to merge a commit whose checks have not passed.

A commit may declare checks. Declarations stand in its metadata, and verdicts in the catalog. What a merge brings is
judged commit by commit, so a commit on top of a declared one does not hide it. The verdicts that a merge, a
cherry-pick or a move of a branch rests on are looked at again in its transaction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeVar

from lakeops.model import graph
from lakeops.model.errors import InvalidInput, PreconditionFailed
from lakeops.model.ids import ALONG_BYTES, check_text
from lakeops.model.names import check_asked
from lakeops.model.protection import FAILED, MAX_FINDINGS, PASSED, WAITING, Verdict
from lakeops.model.records import DESPITE, VOUCHED, Commit
from lakeops.model.sanitising import excerpt, masked, safe
from lakeops.ops.context import Context, history_of, resolve_commit, resolve_id
from lakeops.ops.history import CommitGraph

if TYPE_CHECKING:
    from lakeops.ops.ancestor import MergeInputs

MAX_CHECK_NAME = 250
MOST_CHECKS = 1000
"""Checks that one call may name."""

T = TypeVar("T")
Pairs = tuple[tuple[str, str], ...]
"""Ids of commits, each with the name of a check."""


def pass_check(ctx: Context, ref: str, name: str, *, by: str | None = None, run: str = "") -> Verdict:
    """Record that the commit that ``ref`` means now has passed a check. Who passed it first stays.

    Args:
        by: who says so. The user of Airflow, or the database login, when left out.
        run: the run of a program that found it.

    Raises:
        InvalidInput: ``invalid_name``: the name breaks the rules.
        RefNotFound, CommitExpired: there is no such commit to read.
        PreconditionFailed: ``read_only_repository``: the repository takes no changes.
    """
    return _record(ctx, ref, name, PASSED, "", by, run)


def fail_check(ctx: Context, ref: str, name: str, findings: str, *, by: str | None = None, run: str = "") -> Verdict:
    """Record that the commit that ``ref`` means now has failed a check, also one that it had passed.

    Args:
        findings: what was wrong. The first 4,000 characters are kept.
        by: who says so. The user of Airflow, or the database login, when left out.
        run: the run of a program that found it.

    Raises:
        InvalidInput, RefNotFound, CommitExpired, PreconditionFailed: as for ``pass_check``.
    """
    if not isinstance(findings, str):
        raise InvalidInput(f"findings: {excerpt(findings)} is no text")
    return _record(ctx, ref, name, FAILED, safe(masked(findings))[:MAX_FINDINGS], by, run)


def _record(ctx: Context, ref: str, name: str, state: str, findings: str, by: str | None, run: str) -> Verdict:
    if by is not None:
        check_text("who records a verdict", check_asked(by, "who records a verdict"), at_most=1024)
    check_text("run", check_asked(run, "a run"), at_most=1024)
    made = Verdict(resolve_id(ctx, ref), check_of(name), state, by or "", 0, findings, run)
    return ctx.catalog.refs.record_verdict(ctx.repository_id, made)


def withdraw_check(ctx: Context, ref: str, name: str) -> None:
    """Forget the verdict of a check of a commit. Raises ``NotFound``."""
    ctx.catalog.refs.withdraw_check(ctx.repository_id, resolve_id(ctx, ref), check_asked(name, "a check"))


def verdicts(ctx: Context, ref: str) -> list[Verdict]:
    """The verdicts on the commit that ``ref`` means now, by the check's name. Declared checks without one wait."""
    commit = resolve_commit(ctx, ref, live=False)
    return verdicts_of(ctx, [commit])[commit.id]


def verdicts_of(ctx: Context, commits: Sequence[Commit]) -> dict[str, list[Verdict]]:
    """The verdicts on some commits, as ``verdicts`` gives them, by the commit's id."""
    found: dict[str, dict[str, Verdict]] = {
        one.id: {name: Verdict(one.id, name, WAITING) for name in one.declared_checks} for one in commits
    }
    for one in ctx.catalog.refs.verdicts(ctx.repository_id, list(found)):
        found[one.commit_id][one.name] = one
    return {commit_id: [by_name[name] for name in sorted(by_name)] for commit_id, by_name in found.items()}


@dataclass(frozen=True)
class CheckResults:
    """Declared checks of the commits that a merge brings: those that passed, and those that are skipped."""

    passed: Pairs = ()
    despite: Pairs = ()

    @property
    def metadata(self) -> dict[str, str]:
        """The pairs of a merge's metadata that record it. Those of the oldest commits are left out of a long list."""
        told = ((VOUCHED, self.passed), (DESPITE, self.despite))
        lists = {key: "".join(f"{' '.join(pair)}\n" for pair in pairs).encode() for key, pairs in told if pairs}
        return {key: text[:ALONG_BYTES].rpartition(b"\n")[0].decode() for key, text in lists.items()}


def merged_commits(ctx: Context, sides: MergeInputs) -> list[Commit]:
    """The commits that a merge brings to its destination, children before parents."""
    bases = [base.id for base in sides.bases]
    if sides.source.id in bases:
        return []
    if set(sides.source.parents) <= set(bases):  # nothing is read
        return [sides.source]
    try:
        return list(graph.exclusive_commits(sides.get or history_of(ctx), sides.source.id, bases))
    except graph.WalkLimitReached:
        shape = CommitGraph(ctx, known=[sides.source.id, *bases])
        ids = [one.id for one in graph.exclusive_commits(shape, sides.source.id, bases)]
        commits = ctx.catalog.commits.get_many(ctx.repository_id, ids)
        return [commits[one] for one in ids if one in commits]


def evaluate_checks(
    ctx: Context, commits: Sequence[Commit], *, demanded: Collection[str] = (), despite: Collection[str] = ()
) -> CheckResults:
    """Refuse to bring commits (children first) whose declared checks are waiting or have failed.

    A check of a commit counts as passed, too, where a later one of the commits declares it and has passed it, or where
    a merge among them says that it had passed. ``demanded`` are asked for of the first commit, whether it declares them
    or not. ``despite`` are gone around. Raises ``PreconditionFailed`` (``missing_check``).
    """
    declared = {one.id: set(one.declared_checks) for one in commits}
    if commits:
        declared[commits[0].id].update(demanded)
    asked = [commit_id for commit_id, names in declared.items() if names]
    if not asked:
        return CheckResults()
    known = {(one.commit_id, one.name): one for one in ctx.catalog.refs.verdicts(ctx.repository_id, asked)}
    vouched = {line for one in commits for line in one.metadata.get(VOUCHED, "").split("\n")}
    above = defaultdict[str, set[str]](set)  # what later commits have passed
    passed: list[tuple[str, str]] = []
    lacking: list[Verdict] = []
    for commit in commits:
        good = set[str]()
        for name in sorted(declared[commit.id]):
            verdict = known.get((commit.id, name))
            if verdict is not None and verdict.state == PASSED:
                passed.append((commit.id, name))
            elif verdict is not None or f"{commit.id} {name}" not in vouched:
                if name not in above[commit.id]:
                    lacking.append(verdict or Verdict(commit.id, name, WAITING))
                continue
            good.add(name)
        for parent in commit.parents:
            above[parent] |= above[commit.id] | good
    refused = [one for one in lacking if one.name not in despite]
    if refused:
        shown = ", ".join(f"{one} of commit {one.commit_id[:16]}" for one in refused[:5])
        more = f" and {len(refused) - 5} more" if len(refused) > 5 else ""
        raise PreconditionFailed(
            f"checks that commits declare have not passed: {shown}{more}; run them again on that commit, or merge it "
            "all the same and name each of them (--despite-check NAME)",
            kind="missing_check",
        )
    return CheckResults(tuple(passed), tuple((one.commit_id, one.name) for one in lacking))


def retry_for_untouched(
    ctx: Context, branch: str, touches: Callable[[str], bool], do: Callable[[frozenset[str]], T]
) -> T:
    """Call ``do``. If a check is missing, call it again with the prefixes below which the merge changes nothing."""
    try:
        return do(frozenset())
    except PreconditionFailed as error:
        if error.kind != "missing_check":
            raise
        rules = ctx.catalog.refs.all_protections(ctx.repository_id)
        prefixes = {one.prefix for one in rules if one.prefix and fnmatchcase(branch, one.pattern)}
        untouched = frozenset(prefix for prefix in prefixes if not touches(prefix))
        if not untouched:
            raise
    return do(untouched)


def check_names(names: Sequence[str], what: str = "checks") -> list[str]:
    """The names of some checks, each once, in order. Raises ``InvalidInput``, which names the argument."""
    given: object = names
    if isinstance(given, str) or not isinstance(given, Sequence) or len(given) > MOST_CHECKS:
        raise InvalidInput(f"{what}: {excerpt(names)} is no list of at most {MOST_CHECKS:,} names of checks")
    try:
        return sorted(set(map(check_of, names)))
    except InvalidInput as error:
        raise InvalidInput(f"{what}: {error.message}", kind=error.kind) from None


def check_of(name: str) -> str:
    """The name of a check, when it can be one. Raises ``InvalidInput`` (``invalid_name``)."""
    check_asked(name, "a check")
    if not 1 <= len(name) <= MAX_CHECK_NAME or not name.isprintable() or name != name.strip():
        raise InvalidInput(
            f"{excerpt(name)} cannot be a check: use 1 to {MAX_CHECK_NAME} printable characters", kind="invalid_name"
        )
    return name
