import shutil
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.budget import examples
from support.catalogs import (
    FIRST,
    REPO,
    a_commit,
    an_entry,
    commit_all,
    create,
    draft,
    everything,
    gone,
    new_token,
    paths,
    put,
    seal,
    table_of,
)
from support.errors import raising

from lakeops.catalog.open import open_catalog
from lakeops.catalog.records import BranchState, ExpectedState, Staged
from lakeops.model.arrow import STAGED_SCHEMA
from lakeops.model.errors import AttemptExpired, BranchMoved, LakeopsError, RefNotFound, RepositoryNotFound
from lakeops.model.protection import CHECK_PROTECTION, TAG_PROTECTION
from lakeops.model.records import Entry
from lakeops.testing import ManualClock

PATHS = sorted(
    [" ", "%", "A", "_", "a", "a b", "a\nb", "a\r\n", "a\"'b", "a\\.", "a//b", "a_", "ab", "z", "é", "\uff5a", "😀"],
    key=str.encode,
)


def staged(catalog, **where):
    return [(row.path, row.entry and row.entry.physical_address[-1]) for row in page(catalog, **where)]


def page(catalog, **where):
    return catalog.staging.staged_page(REPO, "main", **where)[1]


def test_the_last_write_of_a_path_wins(catalog):
    state = put(catalog, an_entry("a", "1"), an_entry("b", "1"), an_entry("a", "2"))
    assert state == catalog.refs.branch(REPO, "main")
    put(catalog, an_entry("b", "2", k="v"), gone("c"))
    assert staged(catalog) == [("a", "2"), ("b", "2"), ("c", None)]
    assert catalog.staging.staged_one(REPO, "main", "b") == (FIRST, an_entry("b", "2", k="v"))
    put(catalog, gone("b"), an_entry("c", "3"))
    assert staged(catalog) == [("a", "2"), ("b", None), ("c", "3")]
    assert catalog.staging.staged_one(REPO, "main", "none") == (FIRST, None)
    put(catalog)
    assert len(page(catalog)) == 3


def test_a_branch_is_read_with_the_commit_it_points_to(catalog):
    head = commit_all(catalog, "one")
    put(catalog, an_entry("a"))
    found, rows = catalog.staging.staged_page(REPO, "main")
    assert (found, paths(rows)) == (head, ["a"])
    assert catalog.staging.staged_one(REPO, "main", "a")[0] == head


def test_the_newest_token_wins(catalog):
    put(catalog, an_entry("a", "1"), an_entry("b", "1"), an_entry("c", "1"), gone("d"))
    first = seal(catalog)
    put(catalog, an_entry("a", "2"), gone("b"))
    second = seal(catalog)
    put(catalog, an_entry("a", "3"), an_entry("d", "3"))
    assert second.sealed_tokens == (first.staging_token, *first.sealed_tokens)
    assert staged(catalog) == [("a", "3"), ("b", None), ("c", "1"), ("d", "3")]
    assert catalog.staging.staged_one(REPO, "main", "b")[1] == gone("b")
    assert catalog.staging.staged_one(REPO, "main", "c")[1] == an_entry("c", "1")
    found = catalog.staging.staged_table(REPO, "main")
    table = found.staged
    assert found.state == catalog.refs.branch(REPO, "main")
    assert table.select(["path", "tombstone"]).to_pylist() == [
        {"path": row.path, "tombstone": row.entry is None} for row in page(catalog)
    ]
    sealed = catalog.staging.staged_table(REPO, "main", tokens=second.sealed_tokens).staged
    assert [path[-1:] for path in sealed["physical_address"].to_pylist() if path] == ["2", "1"]
    oldest = catalog.staging.staged_table(REPO, "main", tokens=first.sealed_tokens).staged
    assert oldest["tombstone"].to_pylist() == [False, False, False, True]
    assert catalog.staging.staged_table(REPO, "main", tokens=("not a token",)).staged.num_rows == 0


def test_pages_walk_all_tokens_in_byte_order(catalog):
    for path in PATHS[::2]:
        put(catalog, an_entry(path, "1"))
    seal(catalog)
    for path in PATHS[1::2]:
        put(catalog, an_entry(path, "2"))
    put(catalog, gone("a"))
    assert paths(page(catalog)) == PATHS
    for limit in (1, 2, 5):
        walked = [""]
        while more := paths(page(catalog, after=walked[-1], limit=limit)):
            assert len(more) <= limit
            walked += more
        assert walked[1:] == PATHS
    for prefix in ("a", "a_", "%", "é", "😀", "a\n", "nothing"):
        expected = [path for path in PATHS if path.startswith(prefix)]
        assert paths(page(catalog, prefix=prefix)) == expected
        assert catalog.staging.staged_table(REPO, "main", prefix=prefix).staged["path"].to_pylist() == expected
        assert paths(page(catalog, prefix=prefix, after="a", limit=1)) == [p for p in expected if p > "a"][:1]


def test_sealing_moves_the_token_once_and_only_with_rows(catalog):
    before = catalog.refs.branch(REPO, "main")
    assert seal(catalog) == before
    put(catalog, an_entry("a"))
    token = new_token()
    sealed = catalog.staging.seal(REPO, "main", token=token).state
    assert sealed == BranchState(REPO, "main", FIRST.id, token, (before.staging_token,), 0)
    put(catalog, an_entry("b"))
    assert catalog.staging.seal(REPO, "main", token=token).state == sealed  # the same call again: its answer was lost
    assert sealed == catalog.refs.branch(REPO, "main")


def test_rows_are_there_or_not(catalog):
    catalog.refs.create_branch(REPO, "dev", FIRST.id, token=new_token(), actor="ada")
    assert not catalog.staging.has_staged(REPO, "main")
    put(catalog, gone("never there"))
    assert catalog.staging.has_staged(REPO, "main")
    seal(catalog)
    assert catalog.staging.has_staged(REPO, "main")
    assert not catalog.staging.has_staged(REPO, "dev")
    with pytest.raises(RefNotFound):
        catalog.staging.has_staged(REPO, "nope")


def test_staging_can_depend_on_the_branch_as_it_was_seen(catalog):
    seen = catalog.refs.branch(REPO, "main")
    put(catalog, an_entry("a"), expect=ExpectedState(seen))
    put(catalog, an_entry("b"), expect=ExpectedState(seen))  # others may stage meanwhile
    changes = (
        lambda: seal(catalog),
        lambda: catalog.staging.reset(REPO, "main", path="b", actor="ada"),
        lambda: catalog.commits.publish(draft(catalog, catalog.refs.branch(REPO, "main"), a_commit("one", FIRST))),
    )
    for change in changes:
        seen = catalog.refs.branch(REPO, "main")
        change()
        before = everything(catalog)
        with pytest.raises(BranchMoved):
            put(catalog, an_entry("c"), expect=ExpectedState(seen))
        assert everything(catalog) == before


def test_uploads_end_when_they_are_linked_or_given_up(catalog):
    started = catalog.staging.begin_upload(REPO, "main", "data/p/one/", upload="one")
    catalog.staging.begin_upload(REPO, "main", "data/p/two/", upload="two")
    again = catalog.staging.begin_upload(REPO, "main", "data/p/two/", upload="two")
    assert catalog.retention.roots(REPO).uploads == {"one": ("data/p/one/", started), "two": ("data/p/two/", again)}
    with pytest.raises(AttemptExpired):
        put(catalog, an_entry("a"), started=started - timedelta(days=1), upload="one")
    assert list(catalog.retention.roots(REPO).uploads) == ["one", "two"]
    put(catalog, an_entry("a"), started=started, upload="one")
    catalog.staging.end_upload(REPO, "one")
    assert list(catalog.retention.roots(REPO).uploads) == ["two"]
    catalog.staging.end_upload(REPO, "two")
    catalog.staging.end_upload(REPO, "two")
    assert catalog.retention.roots(REPO).uploads == {}
    with pytest.raises(RefNotFound):
        catalog.staging.begin_upload(REPO, "nope", "data/p/x/", upload="x")


def test_uploads_are_given_up_with_time(sqlite_url, opened, clock):
    catalog = opened(sqlite_url, grace_seconds=7200)
    create(catalog)
    started = catalog.staging.begin_upload(REPO, "main", "data/p/one/", upload="one")
    clock.advance(hours=1)
    put(catalog, an_entry("a"), started=started)
    assert list(catalog.retention.roots(REPO).uploads) == list(catalog.retention.roots(REPO).uploads) == ["one"]
    clock.advance(seconds=1)
    with pytest.raises(AttemptExpired):
        put(catalog, an_entry("a"), started=started)
    assert catalog.retention.roots(REPO).uploads == catalog.retention.roots(REPO).uploads == {}
    clock.advance(hours=1)
    catalog.staging.begin_upload(REPO, "main", "data/p/two/", upload="two")
    rows = dict(everything(catalog).rows)["lakeops_upload"]
    assert len(rows) == 1
    assert "data/p/two/" in rows[0]


def test_an_old_attempt_may_not_link(opened, database_url):
    catalog = opened(database_url, grace_seconds=7200)
    create(catalog)
    now = catalog.now()
    put(catalog, an_entry("young"), started=now - timedelta(minutes=59))
    with pytest.raises(AttemptExpired, match="3660 s ago and 3600 s are allowed"):
        put(catalog, an_entry("old"), started=now - timedelta(minutes=61))
    assert paths(page(catalog)) == ["young"]


def test_reset_drops_everything_a_prefix_or_a_path(catalog):
    put(catalog, an_entry("t/a"), an_entry("t/b"), an_entry("t0"))
    seal(catalog)
    put(catalog, an_entry("t/a"), an_entry("t/c"), an_entry("s"), gone("t"))
    assert catalog.staging.reset(REPO, "main", path="t/", actor="ada") == 0
    assert catalog.staging.reset(REPO, "main", path="t/a", actor="ada") == 1
    assert paths(page(catalog)) == ["s", "t", "t/b", "t/c", "t0"]
    assert catalog.staging.reset(REPO, "main", prefix="t/", actor="ada") == 2
    assert paths(page(catalog)) == ["s", "t", "t0"]
    assert catalog.staging.reset(REPO, "main", actor="bob") == 3
    assert not catalog.staging.has_staged(REPO, "main")
    assert (catalog.refs.branch(REPO, "main").resets, catalog.refs.branch(REPO, "main").sealed_resets) == (3, 3)
    before = everything(catalog)
    assert catalog.staging.reset(REPO, "main", actor="bob") == 0
    assert everything(catalog) == before
    move = catalog.refs.reflog(REPO, "main")[0]
    assert (move.action, move.old, move.new, move.actor) == ("reset", FIRST.id, FIRST.id, "bob")


def test_discarded_tokens_leave_without_a_commit(catalog):
    put(catalog, an_entry("a"))
    old = seal(catalog)
    put(catalog, an_entry("b"))
    state = seal(catalog)
    with pytest.raises(BranchMoved):
        catalog.staging.discard(state, (old.staging_token,))  # the newer of two: the older would cover it
    catalog.staging.discard(state, old.sealed_tokens)
    assert catalog.refs.branch(REPO, "main").sealed_tokens == (old.staging_token,)
    assert paths(page(catalog)) == ["b"]
    assert catalog.staging.consumed_by(REPO, old.sealed_tokens[0]) is None
    assert catalog.staging.purge_retired(REPO) == 1
    catalog.staging.discard(state, ())
    catalog.staging.reset(REPO, "main", actor="ada")
    with pytest.raises(BranchMoved):
        catalog.staging.discard(state, (old.staging_token,))


def test_the_commit_that_took_a_token_is_remembered(catalog):
    put(catalog, an_entry("a"))
    token = catalog.refs.branch(REPO, "main").staging_token
    assert catalog.staging.consumed_by(REPO, token) is None
    commit = commit_all(catalog, "one")
    assert catalog.staging.consumed_by(REPO, token) == commit.id
    assert catalog.staging.purge_retired(REPO) == 1
    assert catalog.staging.consumed_by(REPO, token) == commit.id
    assert catalog.staging.purge_retired(REPO) == 0


# --- the looks before an upload, and the one in the transaction that links what was uploaded, refuse the same ---
def refusals(catalog, branch="main", repository=REPO):
    """The errors of the look and of the transaction."""
    found = []
    for refused in (
        lambda: catalog.staging.staging_time(repository, branch),
        lambda: catalog.staging.put_staged(repository, branch, [an_entry("a")], started=catalog.now()),
    ):
        with pytest.raises(LakeopsError) as caught:
            refused()
        found.append(caught.value)
    assert len({(type(one), one.message) for one in found}) == 1
    return found[0]


def test_a_branch_that_no_pattern_protects_may_be_staged_to(catalog):
    catalog.refs.protect(REPO, "release-*")
    catalog.refs.protect(REPO, "prod", kind=CHECK_PROTECTION, check="tests")
    catalog.refs.protect(REPO, "*", kind=TAG_PROTECTION)
    now = catalog.staging.staging_time(REPO, "main")
    assert now <= catalog.now()
    assert catalog.staging.put_staged(REPO, "main", [an_entry("a")], started=now) == catalog.refs.branch(REPO, "main")


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


# --- the staging area against a model of plain dicts: tokens newest first, reset, seal, publish, discard, purge ---

PATH = st.sampled_from(["a", "a/", "a/b", "a/b/c", "aé", "b", "Z", "é", "😀", "\uff5a"])
PREFIX = st.sampled_from(["", "a", "a/", "a/b", "é", "zz"])
ROW = st.tuples(PATH, st.none() | st.sampled_from("123"))


class StagingMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="lakeops-machine-"))
        self.catalog = open_catalog(f"sqlite:///{self.home}/catalog.db", clock=ManualClock())
        create(self.catalog)
        self.tokens: list[dict[str, str | None]] = [{}]  # newest first; the first one is active
        self.retired: list[dict[str, str | None]] = []
        self.head = FIRST
        self.resets = 0
        self.sealed_resets = 0
        self.plan = None  # what a commit in flight saw: its draft, how many tokens it takes, sealed_resets

    def teardown(self):
        self.catalog.close()
        shutil.rmtree(self.home)

    @rule(rows=st.lists(ROW, max_size=4))
    def stage(self, rows):
        self.tokens[0].update(rows)
        staged = [gone(path) if text is None else an_entry(path, text) for path, text in rows]
        put(self.catalog, *staged)

    @rule()
    def seal_and_plan(self):
        if self.tokens[0]:
            self.tokens.insert(0, {})
        state = self.catalog.staging.seal(REPO, "main", token=new_token()).state
        commit = a_commit(new_token(), self.head)
        self.plan = (draft(self.catalog, state, commit), [id(token) for token in self.tokens[1:]], self.sealed_resets)

    @precondition(lambda self: self.plan)
    @rule()
    def publish(self):
        publish, taken, sealed_resets = self.plan
        stay = len(self.tokens) - len(taken)
        fits = (
            publish.expected_head == self.head.id
            and sealed_resets == self.sealed_resets
            and [id(token) for token in self.tokens[max(stay, 1) :]] == taken
        )
        if fits:
            self.catalog.commits.publish(publish)
            self.retired += self.tokens[stay:]
            self.tokens = self.tokens[:stay]
            self.head = publish.commit
        else:
            with pytest.raises(BranchMoved):
                self.catalog.commits.publish(publish)

    @precondition(lambda self: len(self.tokens) > 1)
    @rule(data=st.data())
    def discard(self, data):
        count = data.draw(st.integers(1, len(self.tokens) - 1))
        state = self.catalog.refs.branch(REPO, "main")
        self.catalog.staging.discard(state, state.sealed_tokens[-count:])
        self.retired += self.tokens[-count:]
        self.tokens = self.tokens[:-count]

    @rule(prefix=PREFIX)
    def reset_prefix(self, prefix):
        self.reset(lambda path: path.startswith(prefix), prefix=prefix)

    @rule(path=PATH)
    def reset_path(self, path):
        self.reset(lambda other: other == path, path=path)

    def reset(self, chosen, **where):
        dropped = {path for token in self.tokens for path in token if chosen(path)}
        assert self.catalog.staging.reset(REPO, "main", actor="ada", **where) == len(dropped)
        self.sealed_resets += any(path in token for token in self.tokens[1:] for path in dropped)
        self.resets += bool(dropped)
        for token in self.tokens:
            for path in dropped:
                token.pop(path, None)

    @rule()
    def purge(self):
        assert self.catalog.staging.purge_retired(REPO) == sum(map(len, self.retired))
        self.retired = []

    @rule(prefix=PREFIX, after=PATH | st.just(""), limit=st.integers(1, 4))
    def read_a_page(self, prefix, after, limit):
        expected = [row for row in self.shown() if row[0].startswith(prefix) and row[0] > after]
        found = self.catalog.staging.staged_page(REPO, "main", prefix=prefix, after=after, limit=limit)[1]
        assert [self.plain(row) for row in found] == expected[:limit]

    @rule(path=PATH)
    def read_one(self, path):
        row = self.catalog.staging.staged_one(REPO, "main", path)[1]
        assert (row and self.plain(row)) == {each[0]: each for each in self.shown()}.get(path)

    @invariant()
    def everything_agrees(self):
        state = self.catalog.refs.branch(REPO, "main")
        assert (state.commit_id, state.resets) == (self.head.id, self.resets)
        assert state.sealed_resets == self.sealed_resets
        assert len(state.tokens) == len(self.tokens)
        assert [self.plain(row) for row in self.catalog.staging.staged_page(REPO, "main")[1]] == self.shown()
        assert self.catalog.staging.has_staged(REPO, "main") == any(self.tokens)
        table = self.catalog.staging.staged_table(REPO, "main").staged.select(["path", "tombstone"])
        assert table.to_pylist() == [{"path": path, "tombstone": text is None} for path, text in self.shown()]

    def shown(self):
        laid: dict[str, str | None] = {}
        for token in reversed(self.tokens):
            laid.update(token)
        return sorted(laid.items(), key=lambda row: row[0].encode())

    @staticmethod
    def plain(row):
        return (row.path, row.entry and row.entry.physical_address.rpartition("/")[2])


TestStaging = StagingMachine.TestCase
TestStaging.settings = settings(max_examples=examples(10), stateful_step_count=30, deadline=None)


# --- bulk ---

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8) | st.sampled_from(
    ["NULL", "\\N", "\\.", '""', '"', "'", ",", "\n", "\r", "\r\n", "\t", "t", "f", "true", "é", "é", "😀", "{}"]
)
ENTRY = st.builds(
    Entry,
    path=TEXT.filter(bool),
    physical_address=TEXT,
    checksum=TEXT,
    size_bytes=st.integers(0, 2**63 - 1),
    mtime=st.integers(-(2**40), 2**40),
    content_type=TEXT,
    metadata=st.dictionaries(TEXT, TEXT, max_size=2),
)
ROWS = st.lists(
    st.one_of(ENTRY.map(lambda e: Staged(e.path, e)), TEXT.filter(bool).map(gone)),
    max_size=12,
    unique_by=lambda r: r.path,
)


def rows_of(table):
    assert table.schema.equals(STAGED_SCHEMA)
    table.validate(full=True)
    found = []
    for row in table.to_pylist():
        tombstone = row.pop("tombstone")
        if tombstone:
            assert {value for name, value in row.items() if name != "path"} == {None}
            found.append(gone(row["path"]))
        else:
            found.append(Staged(row["path"], Entry(**{**row, "metadata": dict(row["metadata"])})))
    return found


@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(older=ROWS, newer=ROWS, bulk=st.tuples(st.booleans(), st.booleans()))
def test_bulk_and_single_rows_are_the_same_rows(catalog, older, newer, bulk):
    catalog.staging.reset(REPO, "main", actor="ada")
    for rows, at_once in zip((older, newer), bulk, strict=True):
        catalog.staging.put_staged(REPO, "main", table_of(rows) if at_once else rows, started=catalog.now())
        seal(catalog)
    expected = sorted(({r.path: r for r in older} | {r.path: r for r in newer}).values(), key=lambda r: r.path.encode())
    assert catalog.staging.staged_page(REPO, "main")[1] == expected
    assert rows_of(catalog.staging.staged_table(REPO, "main").staged) == expected
    for row in expected:
        assert catalog.staging.staged_one(REPO, "main", row.path)[1] == row


def test_bulk_replaces_rows_of_the_active_token(catalog):
    put(catalog, an_entry("a", "1", k="v"), an_entry("b", "1"), gone("c"), an_entry("z", "1"))
    again = [an_entry("c", "2"), an_entry("a", "2"), gone("b"), an_entry("d", "2", x="y")]
    state = catalog.staging.put_staged(REPO, "main", table_of(again), started=catalog.now())
    assert state == catalog.refs.branch(REPO, "main")
    table = catalog.staging.staged_table(REPO, "main").staged
    assert rows_of(table) == [again[1], again[2], again[0], again[3], an_entry("z", "1")]


def test_of_a_path_that_is_twice_in_a_table_the_last_row_counts(catalog):
    rows = [an_entry("b", "1"), an_entry("a", "1"), an_entry("b", "2", k="v"), gone("a"), an_entry("b", "3")]
    catalog.staging.put_staged(REPO, "main", table_of(rows), started=catalog.now())
    assert rows_of(catalog.staging.staged_table(REPO, "main").staged) == [gone("a"), an_entry("b", "3")]


def test_an_empty_table_is_nothing(catalog):
    before = everything(catalog)
    catalog.staging.put_staged(REPO, "main", table_of([]), started=catalog.now())
    assert everything(catalog) == before
    assert catalog.staging.staged_table(REPO, "main").staged.equals(STAGED_SCHEMA.empty_table())


def test_chunks_slices_and_wider_types_are_taken(catalog):
    rows = [an_entry(f"p{number}", str(number % 10), **({"k": "v"} if number % 3 else {})) for number in range(50)]
    table = pa.concat_tables([table_of(rows[:20]).slice(5), table_of(rows[20:])])
    wide = table.cast(pa.schema([f.with_type(pa.large_string()) if f.type == pa.string() else f for f in table.schema]))
    catalog.staging.put_staged(REPO, "main", wide.append_column("extra", pa.nulls(45)), started=catalog.now())
    assert rows_of(catalog.staging.staged_table(REPO, "main").staged) == sorted(rows[5:], key=lambda row: row.path)


def test_a_bulk_load_that_is_refused_leaves_nothing(catalog):
    catalog.refs.protect(REPO, "main")
    before = everything(catalog)

    with raising("protected_branch"):
        catalog.staging.put_staged(REPO, "main", table_of([an_entry("a")]), started=catalog.now())
    assert everything(catalog) == before
    catalog.refs.unprotect(REPO, "main")
    catalog.staging.put_staged(REPO, "main", table_of([an_entry("a")]), started=catalog.now())


def test_a_hundred_thousand_rows_go_in_and_out(catalog):
    count = 100_000
    numbers = pa.array(range(count))
    text = numbers.cast(pa.string())
    table = pa.table(
        {
            "path": text,
            "tombstone": pa.array([False] * count),
            "physical_address": text,
            "checksum": text,
            "size_bytes": numbers,
            "mtime": numbers,
            "content_type": pa.array(["x"] * count),
            "metadata": pa.array([[]] * count, STAGED_SCHEMA.field("metadata").type),
        },
        STAGED_SCHEMA,
    )
    catalog.staging.put_staged(REPO, "main", table, started=catalog.now())
    found = catalog.staging.staged_table(REPO, "main").staged
    assert found.combine_chunks() == table.sort_by("path").combine_chunks()


def test_batches_without_rows_are_fine(catalog):
    """A table may hold some, at its beginning or as all there is."""
    rows = table_of([an_entry("a")])
    for table in (pa.concat_tables([rows.slice(1), rows]), rows.slice(1), STAGED_SCHEMA.empty_table()):
        catalog.staging.put_staged(REPO, "main", table, started=catalog.now())
    staged = catalog.staging.staged_table(REPO, "main").staged
    assert staged["path"].to_pylist() == ["a"]


def test_rows_of_any_size_are_read_in_bulk(catalog):
    """Also such as no entry point lets in any more: one row must not lose a branch."""
    rows = [
        Staged(path, Entry(path, address, "c", 1, 2, "t", {"k": value}))
        for path, address, value in (
            ("a", "data/a", "v"),
            ("b", "data/b", 'a "quoted"\nline' * 900_000),
            ("c", "data/" + "c" * (9 << 20), "v"),
            ("d", "data/d", "v"),
        )
    ]
    catalog.staging.put_staged(REPO, "main", rows, started=catalog.now())
    assert rows_of(catalog.staging.staged_table(REPO, "main").staged) == rows


def test_a_row_larger_than_any_block_is_read(catalog):
    """Rows that were staged before their size was bounded hold up neither commits nor collection."""
    large = Entry("large", "data/x", "c", 1, 0, metadata={"k": '"' * (20 << 20)})
    rows = [Staged("large", large), an_entry("a"), an_entry("z")]
    catalog.staging.put_staged(REPO, "main", rows, started=catalog.now())
    assert rows_of(catalog.staging.staged_table(REPO, "main").staged) == sorted(rows, key=lambda row: row.path)
    assert "data/x" in catalog.retention.roots(REPO).staged["physical_address"].to_pylist()


# --- how much memory a process needs to read what is staged on postgresql ---


MANY = 200_000
EXTRA = 390 << 20
"""Bytes of address space beyond what is taken before. With all of the text in memory it takes 446 MiB, else 335."""

FILL = """
INSERT INTO lakeops_staged (repository_id, token, path, tombstone, physical_address, checksum, size_bytes, mtime,
content_type, metadata, changes) SELECT 'repo', %s, 'folder/' || lpad(n::text, 80, '0'), false,
'data/' || lpad(n::text, 60, '0'), repeat('a', 64), n, n, 'application/octet-stream', NULL, 1
FROM generate_series(1, %s) AS n
"""
READ = """
import resource, sys
import psutil, pyarrow.compute, pyarrow.csv
from lakeops.catalog.open import open_catalog
from lakeops.testing import ManualClock
catalog = open_catalog(sys.argv[1], clock=ManualClock())
catalog.staging.staged_table("repo", "main", prefix="zzz")
most = psutil.Process().memory_info().vms + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (most, most))
print(catalog.staging.staged_table("repo", "main").staged.num_rows)
"""


def test_staged_rows_are_read_without_their_text_beside_them(postgres_url, opened):
    catalog = opened(postgres_url)
    create(catalog)
    with psycopg.connect(postgres_url.replace("+psycopg", "")) as conn:
        conn.execute(FILL, [catalog.refs.branch(REPO, "main").staging_token, MANY])
    ran = subprocess.run(
        [sys.executable, "-c", READ, postgres_url, str(EXTRA)], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, f"{MANY}\n"), ran.stderr
