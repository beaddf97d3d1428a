"""Every entry of the Python interface, and of the file system, with values that callers should never give.

What an entry owes each of them is a right answer or an error of ours, on one line, that fits: nothing else comes out,
nothing is changed by a call that fails, and a message does not grow with what was given.
"""

from collections.abc import Callable
from typing import Any

import pytest

from lakeops import Lake, Settings, Split
from lakeops.fs import LakeopsFileSystem
from lakeops.model.errors import InvalidInput, LakeopsError, NotFound, PreconditionFailed
from lakeops.testing import ManualClock

NO_TEXT: list[Any] = [7, 1.5, True, b"x", ["x"], {"a": "b"}, object()]
TEXT: list[Any] = [
    *("", "/", "..", "*", "a\nb", "a\0b", "\ud800", "a\udfffb", "\U0010ffff" * 2, "\x1b[2J", "a\u202eb"),
    *("x" * 1025, "x" * 100_000, "é" * 600, None, *NO_TEXT),
]
AMOUNTS: list[Any] = [
    *(-1, -(2**63) - 1, 0, 1, 2**31, 2**63 - 1, 2**63, 2**70, 1.5, float("nan"), float("inf")),
    *("7", None, True, b"1", [1], object()),
]
MAPS: list[Any] = [
    *(None, {}, {"k": None}, {"k": 1}, {1: "v"}, {"\ud800": "v"}, {"k": "\ud800"}, {"k": "a\0b"}, {"": "v"}),
    *({"k" * 300: "v"}, {"k": "v" * 70_000}, [("k", "v")], "kv", 7, object(), {"k": ["v"]}),
]
CONTENTS: list[Any] = [None, 7, "text", ["x"], object()]


SMALL = Split(2, 4, 8)


class Scene:
    """A repository with something of everything, and a directory beside it."""

    def __init__(self, lake, repo, place):
        self.lake, self.repo, self.place = lake, repo, place
        self.main, self.dev, self.commit = repo.branch("main"), repo.branch("dev"), repo.ref("main@")
        self.fs = LakeopsFileSystem(lake=lake)

    def output(self, prefix, mode="replace"):
        with self.dev.output(prefix, mode):
            pass

    def batch(self, path):
        with self.dev.batch() as batch:
            batch.put(path, b"x")


Call = Callable[[Scene, Any], Any]
READS: dict[str, tuple[list[Any], Call]] = {
    "Lake.repository": (TEXT, lambda s, v: s.lake.repository(v)),
    "Lake.repositories prefix": (TEXT, lambda s, v: list(s.lake.repositories(prefix=v))),
    "Lake.repositories after": (TEXT, lambda s, v: list(s.lake.repositories(after=v))),
    "Lake.mirror": (TEXT, lambda s, v: s.lake.mirror(v)),
    "branch": (TEXT, lambda s, v: s.repo.branch(v)),
    "branches prefix": (TEXT, lambda s, v: list(s.repo.branches(prefix=v))),
    "branches after": (TEXT, lambda s, v: list(s.repo.branches(after=v))),
    "tag": (TEXT, lambda s, v: s.repo.tag(v)),
    "tags prefix": (TEXT, lambda s, v: list(s.repo.tags(prefix=v))),
    "tags after": (TEXT, lambda s, v: list(s.repo.tags(after=v))),
    "diff left": (TEXT, lambda s, v: list(s.repo.diff(v, "main"))),
    "diff right": (TEXT, lambda s, v: list(s.repo.diff("main", v))),
    "compare left": (TEXT, lambda s, v: list(s.repo.compare(v, "main"))),
    "compare right": (TEXT, lambda s, v: list(s.repo.compare("main", v))),
    "diff prefix": (TEXT, lambda s, v: list(s.repo.diff("main", "dev", prefix=v))),
    "log": (TEXT, lambda s, v: list(s.repo.log(v))),
    "log amount": (AMOUNTS, lambda s, v: list(s.repo.log("main", amount=v))),
    "merge_base": (TEXT, lambda s, v: s.repo.merge_base("main", v)),
    "reflog": (TEXT, lambda s, v: s.repo.reflog(v)),
    "reflog limit": (AMOUNTS, lambda s, v: s.repo.reflog(limit=v)),
    "audit repository": (TEXT, lambda s, v: list(s.lake.audit(v))),
    "audit since": (TEXT, lambda s, v: list(s.repo.audit(since=v))),
    "audit actor": (TEXT, lambda s, v: list(s.repo.audit(actor=v))),
    "audit amount": (AMOUNTS, lambda s, v: list(s.repo.audit(amount=v))),
    "ref": (TEXT, lambda s, v: s.repo.ref(v).commit),
    "read": (TEXT, lambda s, v: s.main.read(v)),
    "open": (TEXT, lambda s, v: s.main.open(v).close()),
    "stat": (TEXT, lambda s, v: s.main.stat(v)),
    "stat of a commit": (TEXT, lambda s, v: s.commit.stat(v)),
    "exists": (TEXT, lambda s, v: s.main.exists(v)),
    "presign": (TEXT, lambda s, v: s.main.presign(v)),
    "presign expires": (AMOUNTS, lambda s, v: s.main.presign("f01", v)),
    "list prefix": (TEXT, lambda s, v: list(s.main.list(prefix=v))),
    "list after": (TEXT, lambda s, v: list(s.main.list(after=v))),
    "list delimiter": (TEXT, lambda s, v: list(s.main.list(delimiter=v))),
    "list of a commit, prefix": (TEXT, lambda s, v: list(s.commit.list(prefix=v))),
    "list of a commit, after": (TEXT, lambda s, v: list(s.commit.list(after=v))),
    "list of a commit, delimiter": (TEXT, lambda s, v: list(s.commit.list(delimiter=v))),
    "entries": (TEXT, lambda s, v: s.main.entries(prefix=v).read_all()),
    "entries of a commit": (TEXT, lambda s, v: s.commit.entries(prefix=v).read_all()),
    "changed partition": (TEXT, lambda s, v: s.repo.changed("main", "dev", partition_by=v)),
    "changed limit": (AMOUNTS, lambda s, v: s.repo.changed("main", "dev", limit=v)),
    "uncommitted_page": (AMOUNTS, lambda s, v: s.main.uncommitted_page(amount=v)),
    "uncommitted": (TEXT, lambda s, v: list(s.main.uncommitted(v))),
    "revert_changes": (TEXT, lambda s, v: list(s.dev.revert_changes(v))),
    "gc.report": (TEXT, lambda s, v: s.repo.gc.report(v)),
    "fs.info": (TEXT, lambda s, v: s.fs.info(f"repo/main/{v}")),
    "fs.info repository": (TEXT, lambda s, v: s.fs.info(f"{v}/main/x")),
    "fs.info ref": (TEXT, lambda s, v: s.fs.info(f"repo/{v}/x")),
    "fs.ls": (TEXT, lambda s, v: s.fs.ls(f"repo/main/{v}")),
    "fs.cat": (TEXT, lambda s, v: s.fs.cat_file(f"repo/main/{v}")),
    "fs.modified": (TEXT, lambda s, v: s.fs.modified(f"repo/main/{v}")),
    "fs.sign": (AMOUNTS, lambda s, v: s.fs.sign("repo/main/f01", v)),
}
CHANGES: dict[str, tuple[list[Any], Call]] = {
    "Lake.create_repository": (TEXT, lambda s, v: s.lake.create_repository(v)),
    "Lake.create_repository namespace": (NO_TEXT, lambda s, v: s.lake.create_repository("other", v)),
    "Lake.create_repository branch": (TEXT, lambda s, v: s.lake.create_repository("more", default_branch=v)),
    "Lake.delete_repository": (TEXT, lambda s, v: s.lake.delete_repository(v)),
    "Lake.create_mirror": (TEXT, lambda s, v: s.lake.create_mirror(v, source=s.lake)),
    "Lake.create_mirror source": (TEXT, lambda s, v: s.lake.create_mirror("mir", source=v)),
    "Lake.create_mirror branches": (
        [None, "main", b"x", 7, object()],
        lambda s, v: s.lake.create_mirror("mir", source=s.lake, branches=v),
    ),
    "Lake.create_mirror branch": (TEXT, lambda s, v: s.lake.create_mirror("mir", source=s.lake, branches=[v])),
    "Lake.replicate source": (TEXT, lambda s, v: s.lake.replicate(v, (s.place / "to").as_uri())),
    "Lake.replicate destination": (TEXT, lambda s, v: s.lake.replicate((s.place / "from").as_uri(), v)),
    "create_branch": (TEXT, lambda s, v: s.repo.create_branch(v)),
    "create_branch source": (TEXT[1:14] + NO_TEXT, lambda s, v: s.repo.create_branch("new", source=v)),
    "delete_branch": (TEXT, lambda s, v: s.repo.delete_branch(v)),
    "create_tag": (TEXT, lambda s, v: s.repo.create_tag(v, "main")),
    "create_tag ref": (TEXT, lambda s, v: s.repo.create_tag("t", v)),
    "delete_tag": (TEXT, lambda s, v: s.repo.delete_tag(v)),
    "delete_tag old": (TEXT[:-8] + NO_TEXT, lambda s, v: s.repo.delete_tag("v1", old=v)),
    "move_tag": (TEXT, lambda s, v: s.repo.move_tag(v, "dev")),
    "move_tag ref": (TEXT, lambda s, v: s.repo.move_tag("v1", v)),
    "move_tag old": (TEXT[:-8] + NO_TEXT, lambda s, v: s.repo.move_tag("v1", "dev", old=v)),
    "move": (TEXT, lambda s, v: s.dev.move(v)),
    "pass_check": (TEXT, lambda s, v: s.main.pass_check(v)),
    "fail_check": (TEXT, lambda s, v: s.main.fail_check(v, "wrong")),
    "fail_check findings": ([None, *TEXT], lambda s, v: s.main.fail_check("c", v)),
    "withdraw_check": (TEXT, lambda s, v: s.main.withdraw_check(v)),
    "protect": (TEXT, lambda s, v: (s.repo.protect(v), s.repo.unprotect(v))),
    "unprotect": (TEXT, lambda s, v: s.repo.unprotect(v)),
    "merge source": (TEXT, lambda s, v: s.repo.merge(v, "dev")),
    "merge destination": (TEXT, lambda s, v: s.repo.merge("main", v)),
    "merge strategy": (TEXT, lambda s, v: s.repo.merge("main", "dev", strategy=v)),
    "merge message": (TEXT, lambda s, v: s.repo.merge("main", "dev", message=v)),
    "merge metadata": (MAPS, lambda s, v: s.repo.merge("main", "dev", metadata=v)),
    "cherry_pick": (TEXT, lambda s, v: s.repo.cherry_pick(v, "dev")),
    "cherry_pick branch": (TEXT, lambda s, v: s.repo.cherry_pick("dev", v)),
    "cherry_pick parent": (AMOUNTS, lambda s, v: s.repo.cherry_pick("main", "dev", v)),
    "put": (TEXT, lambda s, v: s.dev.put(v, b"x")),
    "put contents": (CONTENTS, lambda s, v: s.dev.put("p", v)),
    "put metadata": (MAPS, lambda s, v: s.dev.put("p", b"x", metadata=v)),
    "put content type": (TEXT, lambda s, v: s.dev.put("p", b"x", content_type=v)),
    "batch": (TEXT, lambda s, v: s.batch(v)),
    "upload": (TEXT, lambda s, v: s.dev.upload(v, "up/")),
    "upload path": (TEXT, lambda s, v: s.dev.upload(str(s.place / "from" / "f"), v)),
    "upload folder": (TEXT, lambda s, v: s.dev.upload(s.place / "from", v)),
    "delete": (TEXT, lambda s, v: s.dev.delete(v)),
    "copy": (TEXT, lambda s, v: s.dev.copy(v, "new")),
    "copy to": (TEXT, lambda s, v: s.dev.copy("g", v)),
    "rename": (TEXT, lambda s, v: s.dev.rename(v, "new")),
    "update_metadata": (TEXT, lambda s, v: s.dev.update_metadata(v, {"k": "v"})),
    "update_metadata pairs": (MAPS, lambda s, v: s.dev.update_metadata("g", v)),
    "link": (TEXT, lambda s, v: s.dev.link(s.dev.stat("g"), v)),
    "delete_prefix": (TEXT, lambda s, v: s.dev.delete_prefix(v)),
    "output": (TEXT, lambda s, v: s.output(v)),
    "output mode": (TEXT, lambda s, v: s.output("o/", v)),
    "reset prefix": (TEXT, lambda s, v: s.dev.reset(prefix=v)),
    "reset path": (TEXT, lambda s, v: s.dev.reset(path=v)),
    "commit": (TEXT, lambda s, v: s.dev.commit(v, allow_empty=True)),
    "commit metadata": (MAPS, lambda s, v: s.dev.commit("m", v, allow_empty=True)),
    "import_objects": (TEXT, lambda s, v: s.main.import_objects(v, "in", "m")),
    "import_objects prefix": (TEXT[1:], lambda s, v: s.main.import_objects((s.place / "from").as_uri(), v, "m")),
    "import_objects message": (TEXT, lambda s, v: s.main.import_objects((s.place / "from").as_uri(), "in", v)),
    "import_objects metadata": (MAPS, lambda s, v: s.main.import_objects((s.place / "from").as_uri(), "in", "m", v)),
    "revert": (TEXT, lambda s, v: s.dev.revert(v)),
    "revert parent": (AMOUNTS, lambda s, v: s.dev.revert("dev", v)),
    "revert message": (TEXT, lambda s, v: s.dev.revert("dev", message=v)),
    "gc.set_rules": ([*MAPS, *TEXT], lambda s, v: s.repo.gc.set_rules(v)),
    "gc.set_grace": ([*AMOUNTS, *TEXT], lambda s, v: s.repo.gc.set_grace(v)),
    "gc.sweep": (TEXT, lambda s, v: s.repo.gc.sweep(v)),
    "gc.restore": (TEXT, lambda s, v: s.repo.gc.restore(v)),
    "fs.pipe": (TEXT, lambda s, v: s.fs.pipe_file(f"repo/dev/{v}", b"x")),
    "fs.rm": (TEXT, lambda s, v: s.fs.rm_file(f"repo/dev/{v}")),
    "fs.cp from": (TEXT, lambda s, v: s.fs.cp_file(f"repo/main/{v}", "repo/dev/copy")),
    "fs.cp to": (TEXT, lambda s, v: s.fs.cp_file("repo/main/f01", f"repo/dev/{v}")),
}


def make(lake, place):
    repo = lake.create_repository("repo", split=SMALL)
    main = repo.branch("main")
    with main.batch() as batch:
        for number in range(20):
            batch.put(f"f{number:02}", b"x")
    main.commit("first")
    dev = repo.create_branch("dev")
    dev.put("g", b"1")
    dev.commit("second")
    repo.create_tag("v1", "main")
    (place / "from").mkdir()
    (place / "from" / "f").write_text("1")
    return Scene(lake, repo, place)


@pytest.fixture
def scene(lake, tmp_path):
    return make(lake, tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One scene for all calls that change nothing."""
    place = tmp_path_factory.mktemp("shared")
    settings = Settings.load(home=place / "home", fsync=False, committer="tester")
    with Lake.open(settings=settings, clock=ManualClock()) as lake:
        yield make(lake, place)


def state(scene):
    refs = [ref.to_json() for ref in (*scene.repo.branches(), *scene.repo.tags())]
    staged = [change.to_json() for ref in scene.repo.branches() for change in scene.repo.branch(ref.id).uncommitted()]
    return [one.id for one in scene.lake.repositories()], refs, staged, scene.repo.protections(), scene.repo.gc.rules()


def check(name, error):
    """An error of ours, or what Python's own file systems raise; one line; not endless."""
    if name.startswith("fs.") and isinstance(error, OSError):
        assert isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError), error
        return
    assert isinstance(error, LakeopsError), (name, type(error), error)
    assert "\n" not in error.message
    assert len(error.message) < 3000, error.message[:200]
    assert error.kind != LakeopsError.kind
    assert type(error).exit_code in {1, 2, 3, 4, 5}


@pytest.mark.parametrize("name", READS)
def test_reads(shared, name):
    values, call = READS[name]
    for value in values:
        try:
            call(shared, value)
        except Exception as error:
            check(name, error)


@pytest.mark.parametrize("name", CHANGES)
def test_changes(scene, name):
    values, call = CHANGES[name]
    before = state(scene)
    for value in values:
        try:
            call(scene, value)
        except Exception as error:
            check(name, error)
            assert state(scene) == before, (name, value)
        else:
            before = state(scene)


WRONG = ["a\0b", "\ud800", *NO_TEXT]


@pytest.mark.parametrize("name", [name for name, (values, _) in {**READS, **CHANGES}.items() if values is TEXT])
def test_what_is_no_text_is_bad_input(shared, name):
    """Not "not found", and never an answer: exit code 2."""
    if name.startswith("fs."):
        return
    for value in WRONG:
        if name == "revert" and isinstance(value, list):  # several commits
            continue
        with pytest.raises(InvalidInput):
            ({**READS, **CHANGES}[name][1])(shared, value)


def test_amounts(scene):
    for call in (lambda n: list(scene.repo.log("main", amount=n)), lambda n: scene.repo.reflog(limit=n)):
        assert call(0) == []
        assert len(call(1)) == 1
        assert len(call(2**63 - 1)) > 1
        for bad in (-1, 2**63, 1.5, "7", True):
            with pytest.raises(InvalidInput):
                call(bad)
    scene.dev.put("h", b"1")
    assert [change.path for change in scene.dev.uncommitted_page(amount=0)[0]] == ["h"]


def test_names_that_are_only_unknown_are_not_found(scene):
    for call in (
        lambda: scene.lake.repository("nobody"),
        lambda: scene.lake.repository("No Name"),
        lambda: scene.repo.tag("v9"),
        lambda: scene.repo.delete_branch("a b"),
        lambda: scene.repo.unprotect("x*"),
        lambda: scene.repo.gc.report("m"),
    ):
        with pytest.raises(NotFound):
            call()
    with pytest.raises(PreconditionFailed):
        scene.repo.delete_branch("main")
