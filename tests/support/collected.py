"""A repository whose contents are names, for histories that interleave verbs with garbage collection.

The catalog is real, and so is every transition. The store is a set of names, a commit is one range of paths for each
folder, and each verb is a generator that stops between its effects, in the order of the real verb: so any interleaving
of verbs and of garbage collection's steps can be played, at a thousandth of what files would cost.
"""

import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import cast

from support.catalogs import table_of

from lakeops.catalog.open import Catalog
from lakeops.catalog.records import BranchState, ExpectedState, Publish, Staged
from lakeops.model.clock import Ids, unix_seconds
from lakeops.model.errors import LakeopsError, MarkRefused
from lakeops.model.ids import make_commit
from lakeops.model.marks import SWEEPABLE, Mark, MarkState
from lakeops.model.records import Commit, Entry, RepositoryRecord, quiet
from lakeops.ops.context import Context
from lakeops.ops.gc.plan import make_plan, steps
from lakeops.store import layout
from lakeops.testing import ManualClock

Tree = dict[str, str]
"""Path to physical address."""

Steps = Iterator[None]

PATHS = ("a/x", "a/y", "b/x")
BRANCHES = ("main", "dev", "old")


class Lost(AssertionError):
    """Something that is needed is not in the store."""


@dataclass(frozen=True)
class Content:
    """The contents of a metarange file: each folder's range file, and the tree."""

    ranges: Mapping[str, str]
    tree: Tree

    @property
    def names(self) -> set[str]:
        """Files and objects of the namespace that it needs."""
        return {*self.ranges.values(), *filter(_managed, self.tree.values())}


EMPTY = Content({}, {})


@dataclass
class World:
    """One repository, its store, and what is under way."""

    catalog: Catalog
    clock: ManualClock
    repository_id: str
    ids: Ids = field(default_factory=lambda: Ids(random.Random(7)))
    store: set[str] = field(default_factory=set)
    contents: dict[str, Content] = field(default_factory=lambda: {"": EMPTY})
    marks: dict[str, list[str]] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        first = make_commit(
            parents=(), committer="ada", message="first", creation_date=self.seconds, meta_range_id="0" * 64
        )
        namespace = f"file:///{self.repository_id}"
        repository = RepositoryRecord(self.repository_id, namespace, "main", self.seconds)
        self.catalog.repositories.create_repository(repository, first, token=self.ids.new(), actor="ada")
        self.commits.append(first.id)

    @property
    def context(self) -> Context:
        """The parts of a context that planning needs."""
        needed = SimpleNamespace(catalog=self.catalog, repository_id=self.repository_id, progress=quiet)
        return cast("Context", needed)

    @property
    def seconds(self) -> int:
        return unix_seconds(self.clock.now())

    # --- what must be there ---

    def referenced(self) -> set[str]:
        """Every name that a live commit or a staged row needs."""
        roots = self.catalog.retention.roots(self.repository_id)
        found = {name for name in roots.staged["physical_address"].to_pylist() if _managed(name)}
        for commit in roots.commits:
            found |= self.contents[commit.meta_range_file].names
            if commit.meta_range_file:
                found.add(layout.metarange_key(commit.meta_range_file))
        return found

    def check(self, names: set[str] | None = None) -> None:
        """Raise ``Lost`` when some names, or anything that is needed, is gone."""
        missing = (self.referenced() if names is None else names) - self.store
        if missing:
            raise Lost(f"gone, and needed: {sorted(missing)}")

    # --- verbs ---

    def put(self, branch: str, path: str) -> Steps:
        started = self.catalog.now()
        key = layout.object_key(started, self.ids)
        yield
        self.store.add(key)
        yield
        self._stage(branch, {path: key}, started)

    def output(self, branch: str, folder: str, *, fail: bool) -> Steps:
        named = self.catalog.now()
        address = layout.object_key(named, self.ids) + "/"
        upload = self.ids.new()
        started = min(named, self.catalog.staging.begin_upload(self.repository_id, branch, address, upload=upload))
        written = {f"{folder}/{name}": address + name for name in "xy"}
        for name in written.values():
            yield
            self.store.add(name)
        yield
        if fail:
            self.catalog.staging.end_upload(self.repository_id, upload)
        else:
            self._stage(branch, written, started, upload=upload)

    def delete(self, branch: str, path: str) -> Steps:
        started = self.catalog.now()
        yield
        self._stage(branch, {path: None}, started)

    def import_object(self, branch: str, path: str) -> Steps:
        started = self.catalog.now()
        yield
        self._stage(branch, {path: f"s3://elsewhere/{self.ids.new()}"}, started)

    def link(self, branch: str, path: str, number: int, *, absolute: bool) -> Steps:
        """Stage an object that is there, needed by somebody or not."""
        objects = sorted(name for name in self.store if name.startswith(layout.DATA))
        if not objects:
            return
        address = objects[number % len(objects)]
        started = self.catalog.now()
        cleared = None
        if address[5:15] <= f"{started - self.catalog.retention.grace(self.repository_id).at(started) / 2:%Y%m%d%H}":
            cleared = set()
            for mark in self.catalog.marks.on_record(self.repository_id):
                if mark.state is MarkState.MARKING:
                    continue
                if mark.state in SWEEPABLE and address in self.marks[mark.id]:
                    return
                cleared.add(mark.id)
            cleared = frozenset(cleared)
        yield
        del absolute  # one stored form: the spelling is the business of ``ops.stage``
        self._stage(branch, {path: address}, started, cleared=cleared)

    def commit(self, branch: str) -> Steps:
        started = self.catalog.now()
        state = self.catalog.staging.seal(self.repository_id, branch, token=self.ids.new()).state
        if not state.sealed_tokens:
            return
        head = self.catalog.commits.get(self.repository_id, state.commit_id)
        yield
        rows = self.catalog.staging.staged_table(self.repository_id, branch, tokens=state.sealed_tokens).staged
        tree = dict(self.contents[head.meta_range_file].tree)
        for row in rows.to_pylist():
            if row["tombstone"]:
                tree.pop(row["path"], None)
            else:
                tree[row["path"]] = row["physical_address"]
        yield from self._publish(state, head, tree, (head,), started, state.sealed_tokens)

    def merge(self, source: int, branch: str, *, picks: bool) -> Steps:
        """Merge a commit into a branch; with ``picks`` take its tree instead, as a revert to it would."""
        started = self.catalog.now()
        state = self.catalog.refs.branch(self.repository_id, branch)
        head = self.catalog.commits.get(self.repository_id, state.commit_id)
        other = self.catalog.commits.get(self.repository_id, self.commits[source % len(self.commits)])
        if other.expired or other.id == head.id:
            return
        yield
        theirs = self.contents[other.meta_range_file].tree
        tree = dict(theirs) if picks else {**self.contents[head.meta_range_file].tree, **theirs}
        parents = (head,) if picks else (head, other)
        yield from self._publish(state, head, tree, parents, started, (), rests_on=other)

    def create_branch(self, name: str, number: int) -> Steps:
        commit = self.commits[number % len(self.commits)]
        yield
        self.catalog.refs.create_branch(self.repository_id, name, commit, token=self.ids.new(), actor="ada")

    def delete_branch(self, name: str) -> Steps:
        yield
        self.catalog.refs.delete_branch(self.repository_id, name, actor="ada")
        self.catalog.staging.purge_retired(self.repository_id)

    def tag(self, number: int) -> Steps:
        commit = self.commits[number % len(self.commits)]
        yield
        with suppress(LakeopsError):
            self.catalog.refs.delete_tag(self.repository_id, "v1", actor="ada")
        self.catalog.refs.create_tag(self.repository_id, "v1", commit, actor="ada")

    def untag(self) -> Steps:
        yield
        self.catalog.refs.delete_tag(self.repository_id, "v1", actor="ada")

    def reset(self, branch: str, path: str | None) -> Steps:
        yield
        self.catalog.staging.reset(self.repository_id, branch, path=path, actor="ada")

    def report(self, number: int) -> Steps:
        commit = self.commits[number % len(self.commits)]
        yield
        self.catalog.mirrors.report_mirror(self.repository_id, "there", frozenset({commit}))

    def rules(self, days: int) -> Steps:
        yield
        self.catalog.retention.set_rules(self.repository_id, f'{{"default_retention_days": {days}}}')

    # --- garbage collection ---

    def mark(self) -> Steps:
        now = self.catalog.now()
        mark_id = layout.attempt(now, self.ids)
        cutoff = now - self.catalog.retention.grace(self.repository_id).at(now)
        found: list[str] = []
        for half in (layout.DATA, layout.METADATA):
            found += [name for name in self.store if name.startswith(half) and begun(name) <= cutoff]
            yield
        mark, since = self.catalog.marks.begin_mark(self.repository_id, mark_id, cutoff=cutoff)
        yield
        plan = make_plan(self.context, unix_seconds(now))
        yield
        revived = plan.decided.revived
        for step in steps(self.context, mark, since, plan):
            if step.rules_changed:
                return
            yield
        self.catalog.retention.revive_commits(self.repository_id, mark_id, revived)
        yield
        referenced = self.referenced()
        yield
        self.marks[mark_id] = sorted(set(found) - referenced)
        count = len(self.marks[mark_id])
        self.catalog.marks.finish_mark(
            self.repository_id, mark_id, digest=mark_id, rows=count, objects=count, size_bytes=0, listed=len(found)
        )

    def sweep(self, number: int = 0) -> Steps:
        marks = [
            mark for mark in self.catalog.marks.on_record(self.repository_id) if mark.state is not MarkState.MARKING
        ]
        if not marks:
            return
        mark: Mark = marks[number % len(marks)]
        yield
        with suppress(MarkRefused):
            mark = self.catalog.marks.begin_sweep(self.repository_id, mark.id)
            if mark.state not in SWEEPABLE:
                return
            doomed = self.marks[mark.id]
            half = (mark.swept + len(doomed) + 1) // 2
            for start, stop in ((mark.swept, half), (half, len(doomed))):
                yield
                if start < stop:
                    self.store.difference_update(doomed[start:stop])
                    self.check()
                self.catalog.marks.advance_sweep(self.repository_id, mark.id, stop)
            self.catalog.marks.end_sweep(self.repository_id, mark.id, refused=len(self.store.intersection(doomed)))

    def restore(self, number: int = 0) -> Steps:
        """Take a mark back, the newest one mostly."""
        marks = self.catalog.marks.on_record(self.repository_id)
        if not marks:
            return
        mark = self.catalog.marks.restore_mark(self.repository_id, marks[number % len(marks)].id)
        while mark.state is MarkState.RESTORING:
            yield
            mark, _ = self.catalog.retention.restore_commits(self.repository_id, mark.id)
            self.check()

    def collect(self) -> None:
        """A quiet run."""
        for step in (self.mark(), self.sweep()):
            for _ in step:
                pass

    # --- what verbs share ---

    def _stage(
        self,
        branch: str,
        changes: Mapping[str, str | None],
        started: datetime,
        *,
        upload: str | None = None,
        cleared: frozenset[str] | None = None,
    ) -> None:
        rows = [
            Staged(path, None if address is None else Entry(path, address, "x", 1, 1))
            for path, address in sorted(changes.items())
        ]
        given = table_of(rows) if self.count % 4 == 0 else rows
        self.catalog.staging.put_staged(
            self.repository_id, branch, given, started=started, expect=ExpectedState(marks=cleared), upload=upload
        )
        self.check({address for address in changes.values() if address and _managed(address)})

    def _publish(
        self,
        state: BranchState,
        head: Commit,
        tree: Tree,
        parents: tuple[Commit, ...],
        started: datetime,
        consumed: tuple[str, ...],
        *,
        rests_on: Commit | None = None,
    ) -> Steps:
        attempt = layout.attempt(started, self.ids)
        ranges = {}
        known = [self.contents[commit.meta_range_file] for commit in (head, rests_on) if commit is not None]
        for folder in sorted({path[0] for path in tree}):
            same = [one.ranges[folder] for one in known if _folder(one.tree, folder) == _folder(tree, folder)]
            ranges[folder] = same[0] if same else f"{layout.RANGES}{'0' * 64}-{attempt}{folder}.parquet"
            yield
            self.store.add(ranges[folder]) if not same else None
        file = layout.attempt_file("1" * 64, attempt)
        self.store.add(layout.metarange_key(file))
        self.contents[file] = Content(ranges, tree)
        yield
        self.count += 1
        commit = make_commit(
            parents=parents,
            committer="ada",
            message=str(self.count),
            creation_date=self.seconds,
            meta_range_id="1" * 64,
            meta_range_file=file,
            meta_range_digest="d",
        )
        live = frozenset(one.id for one in (*parents, head, *([rests_on] if rests_on else [])))
        self.catalog.commits.publish(
            Publish(
                self.repository_id,
                state.id,
                state.commit_id,
                state.sealed_resets,
                commit,
                consumed,
                live,
                started,
                "merge" if rests_on else "commit",
                "ada",
            )
        )
        self.commits.append(commit.id)
        self.check(self.contents[file].names)
        self.catalog.staging.purge_retired(self.repository_id)


def begun(name: str) -> datetime:
    """The end of the second that a name says."""
    in_data = name.startswith(layout.DATA)
    text = name[5:15] + name[16:20] if in_data else name.rpartition("/")[2].split("-")[1][:14]
    return datetime.strptime(text + "+0000", "%Y%m%d%H%M%S%z") + timedelta(seconds=1)


def _managed(address: str) -> bool:
    return address.startswith(layout.DATA)


def _folder(tree: Tree, folder: str) -> Tree:
    return {path: address for path, address in tree.items() if path[0] == folder}
