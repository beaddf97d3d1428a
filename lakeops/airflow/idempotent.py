"""The verbs of the core in a form that a task may call again, however often it runs.

A call finds what an earlier call of the same task did, even one that was killed:

* Work under one idempotency key is done once. A second call returns the first one's result.
* A task that is cleared after its input has changed has new work. That goes under the task's next key, so it is
  published too, and also once. To leave it staged on a branch that is about to be dropped would lose it silently.

Verbs without a key, such as deletions, end alike when they are done twice: it is no error that a thing is gone already,
or exists already as it was asked for.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import conf

from lakeops.model import errors
from lakeops.model.ids import RESERVED, Origin
from lakeops.model.records import ChangeType, MergeResult, Strategy, StrategyName, Summary

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lakeops.catalog.records import ExpectedState
    from lakeops.lake import Branch, Lake, Repository
    from lakeops.lake.mirror import Mirror
    from lakeops.model.records import Commit, RefRecord

MISTAKES = (errors.InvalidInput, errors.NotFound, errors.PreconditionFailed, errors.CatalogError)
"""Errors that come again when a task does the same again, and whose message says it all."""


@dataclass(frozen=True)
class TaskRun:
    """One task of one DAG run, at one of its tries.

    Attributes:
        logical_date: None in runs that have none.
        link: the web address of the task's log; None when Airflow's own address is not configured.
        approved_by: who approved of what the task does, as Airflow has it.
        start_date: when this try began.
        first_try: the number of the first try since the task was cleared, if it was.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int
    logical_date: str | None
    start_date: datetime
    link: str | None = None
    approved_by: str | None = None
    first_try: int = 1

    @classmethod
    def of(cls, context: Context) -> TaskRun:
        task = context["ti"]
        logical_date = context.get("logical_date")
        return cls(
            dag_id=task.dag_id,
            run_id=task.run_id,
            task_id=task.task_id,
            map_index=-1 if task.map_index is None else task.map_index,
            try_number=task.try_number,
            logical_date=None if logical_date is None else logical_date.isoformat(),
            start_date=getattr(task, "start_date", None) or datetime.now(UTC),
            # Without its own address Airflow makes up a host, and the link would lead nowhere.
            link=getattr(task, "log_url", None) if conf.get("api", "base_url", fallback=None) else None,
            # Clearing a task adds the tries that it has had to its maximum.
            first_try=getattr(task, "max_tries", 0) - (getattr(context.get("task"), "retries", 0) or 0) + 1,
        )

    def key(self, *request: str, number: int = 1) -> str:
        """An idempotency key of this task. The try is no part of it, so a later try finds what an earlier one did.

        Args:
            request: the verb and the refs that it is about. A task whose DAG was changed to ask for something else has
                new work.
            number: keys after the first are for a task that was cleared after what it publishes had changed.
        """
        parts = (self.dag_id, self.run_id, self.task_id, str(self.map_index), *request, str(number))
        return "airflow-" + hashlib.sha256("\x1f".join(parts).encode()).hexdigest()

    def metadata(self, given: Mapping[str, str] | None = None) -> dict[str, str]:
        """Commit metadata: what the user gave, and under reserved keys which task made it and who approved."""
        origin = {
            "airflow_dag_id": self.dag_id,
            "airflow_run_id": self.run_id,
            "airflow_task_id": self.task_id,
            "airflow_map_index": str(self.map_index),
            "airflow_try_number": str(self.try_number),
            "airflow_logical_date": self.logical_date,
            "airflow_link": self.link,
            "approved_by": self.approved_by,
        }
        own = {str(key): str(value) for key, value in (given or {}).items() if not str(key).startswith(RESERVED)}
        return Origin(own | {key: value for key, value in origin.items() if value is not None})

    def made(self, metadata: Mapping[str, str]) -> bool:
        """Tell whether a commit with this metadata was made by any task of this DAG run."""
        return metadata.get("airflow_dag_id") == self.dag_id and metadata.get("airflow_run_id") == self.run_id

    def tried_before(self, commit: Commit) -> bool:
        """Tell whether an earlier try of this task made one of its commits, and the task was not cleared since."""
        return self.first_try <= int(commit.metadata.get("airflow_try_number", 0)) < self.try_number


def made_by_airflow(metadata: Mapping[str, str]) -> bool:
    """Tell whether a commit with this metadata was made by an operator, of any DAG."""
    return "airflow_dag_id" in metadata


Metadata = Mapping[str, str] | None


def commit(
    repository: Repository,
    branch: Branch,
    run: TaskRun,
    message: str,
    *,
    metadata: Metadata = None,
    allow_empty: bool = False,
    checks: Sequence[str] = (),
) -> Commit:
    """The commit of the branch's uncommitted changes, or the one that an earlier call of this task has published.

    Raises ``NoChanges`` when there is neither, and ``allow_empty`` is not set.
    """
    # Another task stages the rows, so they are new work at every try. Under the request of an earlier try a commit
    # drops rows that the commit of that try held, though others have published over them since. So each try has its
    # own request.
    described = Origin({**run.metadata(metadata), "airflow_start_date": run.start_date.isoformat()})

    def make(number: int, *, again: bool) -> Commit:
        return branch.commit(
            message,
            described,
            idempotency_key=run.key("commit", branch.id, number=number),
            allow_empty=allow_empty and not again,
            checks=checks,
        )

    return _with_new_work(repository, branch, run, make)


def import_objects(
    repository: Repository,
    branch: Branch,
    run: TaskRun,
    source: str,
    prefix: str,
    message: str,
    *,
    metadata: Metadata = None,
    **options: Any,
) -> Commit:
    """The commit that makes a prefix hold what the source holds, or the one that this task has published before.

    Every call lists the source, because a task may be cleared to import what has come since. ``options`` and errors are
    those of ``Branch.import_objects``. Raises ``NoChanges`` when the prefix holds these objects already, and this task
    has imported nothing before.
    """

    def make(number: int, **_: bool) -> Commit:
        key = run.key("import", branch.id, source, prefix, number=number)
        return branch.import_objects(source, prefix, message, run.metadata(metadata), idempotency_key=key, **options)

    return _with_new_work(repository, branch, run, make)


def merge(
    repository: Repository,
    source: str,
    destination: str,
    run: TaskRun,
    *,
    strategy: StrategyName | Strategy | None = None,
    metadata: Metadata = None,
    **options: Any,
) -> MergeResult:
    """The merge of what ``source`` is now, or the one on ``destination`` that this task has published before.

    A source that does not exist any more is no error when there is such a merge. ``options`` are those of
    ``Repository.merge``, which also says what is raised.
    """
    results = dict[str | None, MergeResult]()

    def make(number: int, **_: bool) -> Commit:
        key = run.key("merge", source, destination, strategy or "", number=number)
        result = repository.merge(
            source, destination, strategy=strategy, metadata=run.metadata(metadata), idempotency_key=key, **options
        )
        results[result.reference] = result
        if result.reference is None:
            raise errors.NoChanges(f"{destination!r} has all of {source!r}")
        return repository.ref(result.reference).commit

    try:
        commit = _with_new_work(repository, repository.branch(destination), run, make)
    except errors.NoChanges:
        return results[None]
    return results.get(commit.id) or MergeResult(commit.id, up_to_date=False, summary=_summary(commit, repository))


def newer(repository: Repository, head: str, source: str, run: TaskRun) -> Commit | None:
    """Find a commit of this task for a later logical date that changed a path that merging the source would change.

    These are the paths that merging ``source`` would change, so partitions of other days are none of them. A run of a
    later date publishes after that date. So the search ends at commits that are older than this run's date.
    """
    if run.logical_date is None:
        return None
    mine = datetime.fromisoformat(run.logical_date)
    paths: set[str] | None = None
    for commit in repository.log(head, first_parent=True):
        if commit.creation_date < mine.timestamp():
            return None
        made = commit.metadata
        theirs = made.get("airflow_logical_date")
        same = (made.get("airflow_dag_id"), made.get("airflow_task_id")) == (run.dag_id, run.task_id)
        if not same or theirs is None or datetime.fromisoformat(theirs) <= mine:
            continue
        if paths is None:
            paths = {change.path for change in repository.compare(head, source)}
        try:
            if any(change.path in paths for change in repository.diff(commit.parents[0], commit.id)):
                return commit
        except errors.CommitExpired:  # nobody can tell any more what it changed
            return commit
    return None


def replay(
    repository: Repository,
    branch: Branch,
    run: TaskRun,
    verb: str,
    do: Callable[..., Commit],
    ref: str,
    parent_number: int | None,
    *,
    metadata: Metadata = None,
    **options: Any,
) -> Commit:
    """The commit by which ``do`` undoes ``ref`` or does it again, or the one that this task has published before.

    Commits of an earlier branch of that name are skipped. ``do`` takes ``ref``, ``parent_number`` and ``options``. It
    raises ``NoChanges`` when the branch is so already.
    """

    def make(number: int) -> Commit:
        key = run.key(verb, branch.id, ref, str(parent_number or ""), number=number)
        return do(ref, parent_number, metadata=run.metadata(metadata), idempotency_key=key, **options)

    found = (_publish_under_key(repository, make, number) for number in count(1))
    return next(commit for commit in found if _head_has(repository, branch.commit_id, commit))


def _with_new_work(repository: Repository, branch: Branch, run: TaskRun, make: Callable[..., Commit]) -> Commit:
    """Call ``make`` until it finds no changes. Returns the last commit on the branch that a call has published.

    The commit of an earlier try ends the search too: that try was killed, and the task is done. Commits that somebody
    has taken off the branch, and those of an earlier branch of that name, are skipped. ``make`` takes the number of a
    key, and ``again``: the branch has a commit of this task already.
    """
    latest: Commit | None = None
    number = 0
    while True:
        number += 1
        before = branch.commit_id
        try:
            found = _publish_under_key(repository, partial(make, again=latest is not None), number)
        except (errors.NoChanges, errors.RefNotFound):
            if latest is None:
                raise
            return latest
        if _head_has(repository, branch.commit_id, found):
            latest = found
            # A commit of before the task was cleared does not end the search: there may be new work.
            if run.tried_before(found) or not _head_has(repository, before, found):
                return found


def _publish_under_key(repository: Repository, make: Callable[[int], Commit], number: int) -> Commit:
    """Publish by ``make`` under a key of this number, or find the commit that this task has under it already.

    That commit may have another message or metadata: a task that is cleared after its DAG was changed may ask for
    something else. Its first commit stands, and new work gets a commit of its own.
    """
    try:
        return make(number)
    except errors.KeyReused as used:
        return repository.ref(used.reference).commit


def _summary(commit: Commit, repository: Repository) -> Summary:
    """The summary of a merge of this task; empty once one of the two commits has expired."""
    try:
        counts = Counter(change.type for change in repository.diff(commit.parents[0], commit.id))
    except errors.CommitExpired:
        return Summary()
    return Summary(counts[ChangeType.ADDED], counts[ChangeType.REMOVED], counts[ChangeType.CHANGED])


def contains(repository: Repository, ref: str, commit_id: str) -> bool:
    """Tell whether a commit is in a ref's history."""
    return repository.merge_base(ref, commit_id).id == commit_id


def _head_has(repository: Repository, head: str, commit: Commit) -> bool:
    # Nothing is read where the commit is the head's child, or itself.
    return commit.id == head or (head not in commit.parents and contains(repository, head, commit.id))


def create_branch(repository: Repository, name: str, source: str, run: TaskRun, *, exist_ok: bool = False) -> Branch:
    """The branch, new at ``source`` or as this DAG run left it.

    A branch that exists is taken when it holds nothing but ``source``'s history and commits of this DAG run, or
    whatever it holds with ``exist_ok``.

    Raises:
        AlreadyExists: the branch holds somebody else's commits, or a tag has the name.
        RefNotFound: there is no ``source``.
        PreconditionFailed: ``no_merge_base``: the branch that exists shares no history with ``source``.
    """
    try:
        return repository.create_branch(name, source=source)
    except errors.AlreadyExists as taken:
        try:
            branch = repository.branch(name)
        except errors.RefNotFound:
            raise taken from None  # a tag has the name
        foreign = None if exist_ok else next(_foreign(repository, name, source, run), None)
        if foreign is None:
            return branch
        raise errors.AlreadyExists(
            f"branch {name!r} exists and holds commit {foreign.id[:16]} ({foreign.message!r}), which is neither in "
            f"{source!r} nor from this DAG run; use another name, delete the branch, or set exist_ok"
        ) from None


def begin_anew(repository: Repository, name: str, source: str, run: TaskRun) -> str | None:
    """Delete a branch that holds nothing but ``source``'s history and work of this DAG run.

    Returns the commit that it was at, or None where nothing was deleted.
    """
    try:
        branch = repository.branch(name)
    except errors.RefNotFound:
        return None
    pinned = branch.pin()  # what somebody else does from here on keeps the branch
    if next(_foreign(repository, name, source, run), None) is not None:
        return None
    deleted = delete_branch(repository, branch.id, pinned=pinned)
    return None if deleted is None else deleted.commit_id


def _foreign(repository: Repository, name: str, source: str, run: TaskRun) -> Iterator[Commit]:
    """Commits of a branch that are neither in ``source`` nor this DAG run's."""
    for found in repository.log(name, first_parent=True):
        if contains(repository, source, found.id):
            return
        if not run.made(found.metadata):
            yield found


def delete_branch(repository: Repository, name: str, *, pinned: ExpectedState | None = None) -> RefRecord | None:
    """Delete a branch; returns where it was, or None when there is no such branch.

    Raises ``NotAsSeen`` when it is not as it was ``pinned``.
    """
    try:
        return repository.delete_branch(name, pinned=pinned)
    except errors.RefNotFound:
        return None


def unpublished(repository: Repository, name: str, destination: str) -> str | None:
    """Describe a change of a branch that ``destination`` lacks; None when it lacks none.

    Uncommitted changes count. A branch that does not exist has nothing. Raises ``RefNotFound`` for ``destination``.
    """
    try:
        branch = repository.branch(name)
    except errors.RefNotFound:
        return None
    has = repository.ref(destination).commit_id
    change = next(iter(branch.uncommitted()), None)
    if change is not None:
        return f"it has uncommitted changes, such as {change.path!r}"
    head = branch.commit_id
    return None if contains(repository, has, head) else f"{destination!r} does not have its commit {head[:16]}"


def create_mirror(lake: Lake, name: str, storage_namespace: str | None, source: str, **options: Any) -> Mirror:
    """The mirror, new, or as it was made before with this source, place and patterns. ``options`` as for the lake.

    Raises ``AlreadyExists`` for another repository of that name.
    """
    try:
        return lake.create_mirror(name, storage_namespace, source=source, **options)
    except errors.AlreadyExists:
        from lakeops.model.mirrors import parse_source

        found = lake.mirror(name)
        known = found.configuration
        is_so = (found.storage_namespace, known.source.text, tuple(known.branches), tuple(known.tags))
        asked = (parse_source(source, name).text, tuple(options["branches"]), tuple(options["tags"]))
        if is_so == (_place(lake, name, storage_namespace), *asked):
            return found
        raise


def create_repository(lake: Lake, name: str, storage_namespace: str | None, default_branch: str) -> Repository:
    """The repository, new, or as it was made before with this namespace and default branch.

    Raises ``AlreadyExists`` when there is one of that name elsewhere, or with another default branch.
    """
    try:
        return lake.create_repository(name, storage_namespace, default_branch=default_branch)
    except errors.AlreadyExists:
        found, place = lake.repository(name), _place(lake, name, storage_namespace)
        if (found.storage_namespace, found.default_branch) == (place, default_branch):
            return found
        raise errors.AlreadyExists(
            f"repository {name!r} exists at {found.storage_namespace} with default branch {found.default_branch!r}; "
            f"asked for {place} and {default_branch!r}: use another name"
        ) from None


def _place(lake: Lake, name: str, storage_namespace: str | None) -> str:
    from lakeops.store.open import parse_location

    return parse_location(storage_namespace or lake.settings.default_namespace(name)).url
