"""Puts: many in few transactions, one of several writers that succeeds, files and directories."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import BytesIO
from threading import Event, Lock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.errors import raising
from support.scenes import open_faulty, tree

from lakeops import Settings
from lakeops.model import errors
from lakeops.model.errors import InvalidInput, InvalidPath, PathTaken, StoreUnavailable, Transient
from lakeops.ops import batcher as batches
from lakeops.ops.files import reading
from lakeops.testing import Crash, Faults


@pytest.fixture
def faulty(faulty_lake, repo, faults):
    return faulty_lake.repository("repo"), faults


def put_many(repo, count):
    with repo.branch("main").batch() as batch, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: batch.put(f"f{n:03}", str(n).encode(), metadata={"n": str(n)}), range(count)))


def test_everything_is_staged(repo, monkeypatch):
    monkeypatch.setattr(batches, "MOST_OBJECTS", 20)
    put_many(repo, 50)
    assert tree(repo, "main") == {f"f{n:03}": str(n).encode() for n in range(50)}
    assert repo.branch("main").stat("f007").metadata == {"n": "7"}


def test_entries_are_those_of_put(repo):
    main = repo.branch("main")
    with main.batch() as batch:
        entry = batch.put("a", b"1", content_type="text/csv")
    assert entry == main.stat("a")
    assert entry.content_type == "text/csv"


def test_nothing_is_shown_before_it_is_linked(repo):
    main = repo.branch("main")
    with main.batch() as batch:
        batch.put("a", b"1")
        assert not main.exists("a")
        batch.link()
        assert main.exists("a")


def test_after_an_error_what_was_uploaded_is_staged(repo):
    main = repo.branch("main")
    with pytest.raises(errors.InvalidPath), main.batch() as batch:
        batch.put("a", b"1")
        batch.put("", b"2")
    assert [change.path for change in main.uncommitted()] == ["a"]


def test_branches_that_take_no_changes(repo):
    repo.protect("main")
    with raising("protected_branch"), repo.branch("main").batch():
        pytest.fail("the batch was opened")


def test_killed_before_it_is_linked(faulty):
    repo, faults = faulty
    faults.crash(at=1, when="before", operations=("put_staged",))
    with pytest.raises(Crash):
        put_many(repo, 5)
    faults.revive()
    assert tree(repo, "main") == {}
    put_many(repo, 5)
    assert len(tree(repo, "main")) == 5


def test_entries_open_as_they_were_found(repo):
    main = repo.branch("main")
    main.put("a", b"old")
    found = main.stat("a")
    main.put("a", b"new")
    with main.open_entry(found) as file:
        assert file.read() == b"old"


class Contrary:
    """Lets the later one of two links that are under way at the same time go first."""

    def __init__(self, inner):
        self._inner = inner
        self._lock = Lock()
        self._first: Event | None = None
        self.began = Event()

    def __call__(self, *args, **given):
        self.began.set()
        with self._lock:
            waiting, self._first = self._first, None if self._first else Event()
            mine = self._first
        if mine is not None:
            mine.wait(0.2)  # nobody comes when links go out one by one
            with self._lock:
                self._first = None if self._first is mine else self._first
        try:
            return self._inner(*args, **given)
        finally:
            if waiting is not None:
                waiting.set()


def test_of_puts_of_threads_to_one_path_the_last_one_wins(lake, repo, monkeypatch):
    """A later put of a thread is never covered by its earlier put, whichever thread links it."""
    monkeypatch.setattr(batches, "MOST_OBJECTS", 2)
    main = repo.branch("main")
    monkeypatch.setattr(lake.catalog.staging, "put_staged", Contrary(lake.catalog.staging.put_staged))
    last = {}

    def put_in_turn(thread):
        for number in range(6):
            batch.put(f"path {thread}", f"{number}".encode())
            last[f"path {thread}"] = f"{number}".encode()

    with main.batch() as batch, ThreadPoolExecutor(4) as pool:
        list(pool.map(put_in_turn, range(4)))
    assert {path: main.read(path) for path in last} == last


def test_threads_that_put_one_path_in_turns(lake, repo, monkeypatch):
    """Each put begins after the one before was acknowledged, in another thread."""
    monkeypatch.setattr(batches, "MOST_OBJECTS", 1)
    main = repo.branch("main")
    contrary = Contrary(lake.catalog.staging.put_staged)
    monkeypatch.setattr(lake.catalog.staging, "put_staged", contrary)
    with main.batch() as batch, ThreadPoolExecutor(2) as pool:
        linking = pool.submit(batch.put, "x", b"old")
        assert contrary.began.wait(60)
        pool.submit(batch.put, "x", b"new").result()
        linking.result()
    assert main.read("x") == b"new"


PATHS = st.sampled_from("ab")
STEPS = st.lists(
    st.tuples(st.sampled_from(["first", "second", "put", "delete", "delete_prefix", "reset", "link", "fail"]), PATHS),
    max_size=14,
)


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, most=st.integers(1, 3))
def test_one_process_sees_its_calls_take_effect_in_their_order(tmp_path_factory, steps, most):
    """Two batches and the branch itself in any order, with links that fail: the last call of a path wins."""
    faults = Faults()
    home = tmp_path_factory.mktemp("lake")
    with pytest.MonkeyPatch.context() as patch, open_faulty(Settings.load(home=home, fsync=False), faults) as lake:
        patch.setattr(batches, "MOST_OBJECTS", most)
        main = lake.create_repository("repo").branch("main")
        faults.revive()
        model: dict[str, set[bytes | None]] = {"a": {None}, "b": {None}}  # what each path may hold
        with main.batch() as first, main.batch() as second:
            opened = {"first": first, "second": second}
            for number, (step, path) in enumerate(steps):
                data = str(number).encode()
                try:
                    run_step(step, path, data, main, opened, faults)
                except errors.ObjectNotFound:
                    assert None in model[path]
                    model[path] = {None}
                except errors.Transient:
                    if step in opened:  # it may wait for the next link
                        model[path].add(data)
                else:
                    if step in ("first", "second", "put"):
                        model[path] = {data}
                    elif step in ("delete", "delete_prefix", "reset"):
                        model[path] = {None}
            faults.revive()
        shown = {item.path: main.read(item.path) for item in main.list()}
        assert {path: shown.get(path) in held for path, held in model.items()} == {"a": True, "b": True}


def run_step(step, path, data, main, opened, faults):
    if step in opened:
        opened[step].put(path, data)
    elif step == "put":
        main.put(path, data)
    elif step == "link":
        opened["first"].link()
    elif step == "fail":
        faults.fail("put_staged", error=Transient("the catalog is away", kind="catalog_unavailable"))
    elif step == "delete_prefix":
        main.delete_prefix(path)
    elif step == "delete":
        main.delete(path)
    else:
        main.reset(path=path)


def test_an_object_that_waited_too_long_is_refused_and_holds_no_other_back(repo, clock):
    """It may have been collected; the end of the batch says so."""
    main = repo.branch("main")
    with pytest.raises(errors.AttemptExpired), main.batch() as batch:
        batch.put("a", b"old")
        clock.advance(hours=13)
        for number in range(5):
            batch.put(f"b{number}", b"")
    assert [change.path for change in main.uncommitted()] == [f"b{number}" for number in range(5)]


def test_a_put_that_came_too_late_is_made_again(repo, clock):
    """An object that another program put meanwhile stays: only the new try may cover it."""
    main = repo.branch("main")

    class Slow(BytesIO):
        def read(self, size=-1):
            if not self.tell():
                clock.advance(hours=13)
                main.put("a", b"meanwhile")
            return super().read(size)

    with pytest.raises(errors.AttemptExpired):
        main.put("a", Slow(b"late"))
    assert main.read("a") == b"meanwhile"
    main.put("a", b"again")
    assert main.read("a") == b"again"


def test_what_a_batch_could_not_link_is_forgotten_with_it(faulty):
    """The caller was told. Nothing of it shows up later, with somebody else's put."""
    repo, faults = faulty
    main = repo.branch("main")
    faults.fail("put_staged", at=1, error=Transient("the catalog is away", kind="catalog_unavailable"))
    with raising("catalog_unavailable"), main.batch() as batch:
        batch.put("lost", b"1")
    faults.revive()
    main.put("kept", b"2")
    assert tree(repo, "main") == {"kept": b"2"}


ACTS = {
    "put": (lambda main: main.put("a", b"2"), b"2"),
    "delete": (lambda main: main.delete("a"), None),
    "delete_prefix": (lambda main: main.delete_prefix("a"), None),
    "reset": (lambda main: main.reset(path="a"), None),
    "copy": (lambda main: main.copy("b", "a"), b"other"),
    "move": (lambda main: main.rename("b", "a"), b"other"),
}


@pytest.mark.parametrize("act", ["put if absent", *ACTS])
def test_every_change_comes_after_what_waits_for_the_branch(repo, act):
    main = repo.branch("main")
    main.put("b", b"other")
    change, shown = ACTS.get(act, (None, b"1"))
    with main.batch() as batch:
        batch.put("a", b"1")
        if change:
            change(main)
        else:
            with pytest.raises(errors.PathTaken):
                main.put("a", b"2", if_absent=True)
    assert tree(repo, "main").get("a") == shown


def test_one_writer_of_a_path_succeeds(lake_of_threads):
    repo = lake_of_threads.create_repository("repo")
    main = repo.branch("main")

    def write(number):
        done = []
        for turn in range(6):
            try:
                main.put(f"log/{turn}", str(number).encode(), if_absent=True)
                done.append(turn)
            except PathTaken as error:
                assert error.paths == (f"log/{turn}",)
            if number == 0:
                main.commit(f"turn {turn}", allow_empty=True)  # what was staged becomes committed under the others
        return done

    with ThreadPoolExecutor(4) as pool:
        won = dict(zip(range(4), pool.map(write, range(4)), strict=True))
    assert sorted(turn for turns in won.values() for turn in turns) == list(range(6))
    for number, turns in won.items():
        for turn in turns:
            assert main.read(f"log/{turn}") == str(number).encode()


def test_absent_is_what_the_branch_does_not_show(lake):
    main = lake.create_repository("repo").branch("main")
    main.put("a", b"1")
    main.commit("a")
    with pytest.raises(PathTaken):
        main.put("a", b"2", if_absent=True)
    assert list(main.uncommitted()) == []
    main.delete("a")
    main.put("a", b"3", if_absent=True)
    main.reset(path="a")
    assert main.read("a") == b"1"


def test_one_copy_to_a_path_succeeds(lake_of_threads):
    main = lake_of_threads.create_repository("repo").branch("main")
    for number in range(4):
        main.put(f"from/{number}", str(number).encode())

    def copy(number):
        done = []
        for turn in range(4):
            with suppress(PathTaken):
                main.copy(f"from/{number}", f"log/{turn}", if_absent=True)
                done.append(turn)
        return done

    with ThreadPoolExecutor(4) as pool:
        won = dict(zip(range(4), pool.map(copy, range(4)), strict=True))
    assert sorted(turn for turns in won.values() for turn in turns) == list(range(4))
    assert all(main.read(f"log/{turn}") == str(number).encode() for number, turns in won.items() for turn in turns)
    main.commit("all")
    with pytest.raises(PathTaken):
        main.copy("from/1", "from/2", if_absent=True)
    with pytest.raises(InvalidInput, match="leave out recursive"):
        main.copy("from/", "to/", recursive=True, if_absent=True)


def test_what_is_put_while_an_object_moves_is_kept(lake_of_threads):
    main = lake_of_threads.create_repository("repo").branch("main")
    with ThreadPoolExecutor(2) as pool:
        for turn in range(25):
            main.put("here", b"before")
            late = f"late {turn}".encode()
            both = pool.submit(main.put, "here", late), pool.submit(main.rename, "here", f"there/{turn}")
            for one in both:
                one.result()
            assert late in {main.read(entry.path) for entry in main.list()}, f"turn {turn}"


def test_a_writer_whose_object_was_committed_before_it_got_its_answer_has_succeeded(lake):
    """It would write its version of a table again under another name, and the rows would be there twice."""
    main = lake.create_repository("repo").branch("main")
    inner, lost = lake.catalog.staging.put_staged, [1]

    def put_staged(*args, **kwargs):
        answer = inner(*args, **kwargs)
        while lost and lost.pop():
            main.commit("by somebody else")
            answer = inner(*args, **kwargs)  # as a transition does whose connection broke at COMMIT
        return answer

    lake.catalog.staging.put_staged = put_staged  # type: ignore[method-assign]
    main.put("log/1", b"mine", if_absent=True)
    assert (main.read("log/1"), list(main.uncommitted())) == (b"mine", [])
    with pytest.raises(PathTaken):
        main.put("log/1", b"mine", if_absent=True)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "tree"
    (folder / "deep").mkdir(parents=True)
    (folder / "a").write_bytes(b"1")
    (folder / "deep" / "b").write_bytes(b"2")
    return folder


@pytest.mark.parametrize(
    ("name", "path", "wanted"),
    [
        ("", "", {"a": b"1", "deep/b": b"2"}),
        ("", "raw", {"raw/a": b"1", "raw/deep/b": b"2"}),
        ("", "raw/", {"raw/a": b"1", "raw/deep/b": b"2"}),
        ("a", "", {"a": b"1"}),
        ("a", "raw/", {"raw/a": b"1"}),
        ("a", "raw/x.csv", {"raw/x.csv": b"1"}),
    ],
)
def test_files_go_below_a_folder_or_to_a_path(repo, folder, name, path, wanted):
    entries = repo.branch("main").upload(folder / name, path, metadata={"k": "v"}, content_type="text/csv")
    assert tree(repo, "main") == wanted
    assert [entry.path for entry in entries] == list(wanted)
    assert {(entry.content_type, entry.metadata["k"]) for entry in entries} == {("text/csv", "v")}


def test_links_are_refused_or_left_out(repo, folder):
    (folder / "link").symlink_to(folder / "a")
    with pytest.raises(InvalidInput, match="symbolic link"):
        repo.branch("main").upload(folder)
    assert tree(repo, "main") == {}
    repo.branch("main").upload(folder, skip_special=True)
    assert set(tree(repo, "main")) == {"a", "deep/b"}


def test_a_name_that_cannot_be_an_object_is_refused_before_anything_is_sent(repo, folder):
    with pytest.raises(InvalidPath):
        repo.branch("main").upload(folder, "x" * 1020)
    assert tree(repo, "main") == {}


def test_after_a_failed_upload_what_was_sent_is_staged_and_the_rest_goes_again(settings, repo, tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number:02}").write_bytes(b"x")
    faults = Faults()

    def unavailable(_):
        raise StoreUnavailable("the store does not answer")

    faults.hook("put", at=5, when="before", action=unavailable)
    with open_faulty(settings, faults) as lake, pytest.raises(StoreUnavailable):
        lake.repository("repo").branch("main").upload(folder)
    assert 0 < len(tree(repo, "main")) < 40
    repo.branch("main").upload(folder)
    assert len(tree(repo, "main")) == 40


def test_a_file_that_became_a_link_is_refused(tmp_path):
    """A folder is walked first and read later; a link put in a file's place meanwhile leads nowhere."""
    (tmp_path / "secret").write_text("x")
    (tmp_path / "file").symlink_to(tmp_path / "secret")
    with pytest.raises(InvalidInput, match="file"), reading(tmp_path / "file", follow=False):
        pass
    with reading(tmp_path / "file", follow=True) as file:
        assert file.read() == b"x"


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidInput, match=r"nosuch.*no such file"), reading(tmp_path / "nosuch", follow=True):
        pass
