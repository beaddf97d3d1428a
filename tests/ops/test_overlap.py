"""One rule for all verbs: no repository in another one's place, and no link to what another one manages."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from support.mirrors import open_lake
from support.scenes import SPLIT, table, tree
from support.soundness import assert_sound

from lakeops import Lake
from lakeops.catalog.open import open_catalog
from lakeops.engine.base import LocalEngine
from lakeops.model.errors import AlreadyExists, InvalidInput, NamespaceTaken, PreconditionFailed
from lakeops.ops.mirror.replicate import replicate
from lakeops.store import layout
from lakeops.store.open import Stores, StoreSettings, above, lies_in, overlap, real_place, same_server
from lakeops.testing import Faults

PLACES = {
    "the same": "outer",
    "inside": "outer/inner",
    "among its objects": "outer/data/inner",
    "in a partition": "outer/data/2026010100/0000aaaaaaaaaaaaaaaaaaaa",
    "among its metadata": "outer/_lakefs/inner",
    "among its tasks": "outer/_lakefs/tasks/inner",
    "around it": "",
}
"""Where a second repository would be, relative to a directory in which ``outer`` is one."""

SPELLINGS: dict[str, Callable[[Path, str], str]] = {
    "plain": lambda base, rest: f"file://{base}/place/{rest}",
    "a slash at the end": lambda base, rest: f"file://{base}/place/{rest}/",
    "slashes": lambda base, rest: f"file://{base}//place///{rest}",
    "localhost": lambda base, rest: f"file://localhost{base}/place/{rest}",
    "percent": lambda base, rest: f"file://{base}/%70lace/{rest}",
    "a link": lambda base, rest: f"file://{base}/link/{rest}",
}


@pytest.fixture
def base(tmp_path):
    (tmp_path / "place").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "place")
    return tmp_path


@pytest.fixture
def lake(base, clock):
    with open_lake(base / "lake", clock) as opened:
        yield opened


@pytest.fixture
def other(base, clock):
    """Another lake, whose catalog knows nothing of the first one's repositories."""
    with open_lake(base / "other", clock) as opened:
        yield opened


@pytest.fixture
def outer(lake, base):
    repo = lake.create_repository("outer", f"file://{base}/place/outer", split=SPLIT)
    repo.branch("main").put("a", b"1")
    repo.branch("main").commit("one")
    return repo


def create(lake, place):
    lake.create_repository("second", place, split=SPLIT)


def mirror(lake, place):
    origin = lake.create_repository("origin", split=SPLIT)
    lake.create_mirror("second", place, source=lake, source_repository=origin.id)


def copy(lake, place):
    origin = lake.create_repository("origin", split=SPLIT)
    lake.replicate(origin.storage_namespace, place, delete=True, force=True)


VERBS = {"create": create, "mirror": mirror, "replicate": copy}


def everything(base):
    return {str(path): path.read_bytes() for path in sorted((base / "place").rglob("*")) if path.is_file()}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("by", ["this lake", "another lake"])
def test_no_repository_comes_to_lie_in_or_around_another_one(lake, other, outer, base, verb, spelling, by):
    before = everything(base)
    actor = lake if by == "this lake" else other
    for number, (name, rest) in enumerate(PLACES.items()):
        if not rest and spelling != "plain" and verb != "create":
            continue
        with pytest.raises(PreconditionFailed) as refused:
            VERBS[verb](actor, SPELLINGS[spelling](base, rest))
        assert refused.value.kind in {"namespace_taken", "not_a_replica", "not_the_owner"}, name
        assert everything(base) == before, name
        if verb != "create":
            actor.delete_repository("origin")
        assert [repo.id for repo in actor.repositories()] == (["outer"] if by == "this lake" else []), number
    assert_sound(outer)


def test_neighbours_are_welcome(lake, outer, base):
    for name in ("outer2", "oute", "out/er", "x"):
        lake.create_repository(f"repo-{name.replace('/', '-')}", f"file://{base}/place/{name}")


def test_a_repository_in_another_ones_place_is_left_alone_by_copies(lake, outer, base):
    """A lake of an earlier version may have made one; nothing is deleted there."""
    source = lake.create_repository("source", f"file://{base}/place/source")
    stores = Stores(StoreSettings(fsync=False))
    destination = stores.at(f"file://{base}/copy")
    replicate(stores.at(source.storage_namespace), destination, LocalEngine(1))
    destination.put("data/inner/_lakefs/repository.json", b"{}")
    destination.put("data/inner/data/2026010100/x", b"theirs")
    with pytest.raises(NamespaceTaken, match="data/inner"):
        replicate(stores.at(source.storage_namespace), destination, LocalEngine(1), delete=True, force=True)
    assert destination.get("data/inner/data/2026010100/x") == b"theirs"


def test_a_place_whose_creation_lost_its_name_is_free(lake, base):
    create = lake.catalog.repositories.create_repository

    def overtaken(*given, **more):
        lake.catalog.repositories.create_repository = create  # type: ignore[method-assign]
        lake.create_repository("same", (base / "second").as_uri())
        create(*given, **more)

    lake.catalog.repositories.create_repository = overtaken  # type: ignore[method-assign]
    with pytest.raises(AlreadyExists):
        lake.create_repository("same", (base / "first").as_uri())
    made = lake.create_repository("another", (base / "first").as_uri())
    made.branch("main").put("path", b"1")
    made.branch("main").commit("first")
    with pytest.raises(NamespaceTaken):
        lake.create_repository("third", (base / "first").as_uri())
    assert made.gc.mark().objects == 0
    assert [item.kind for item in made.fsck() if item.severity == "error"] == []


def test_of_two_that_are_created_at_once_in_each_other_at_most_one_is_made(lake, other, base):
    """The other one is created after this one has looked around, and before it has its row."""
    for number, (mine, theirs) in enumerate([("p{}", "p{}/data/q"), ("p{}/data/q", "p{}"), ("p{}", "p{}/q")]):
        place, inner = (f"file://{base}/place/{text.format(number)}" for text in (mine, theirs))
        faults = Faults()
        stores = Stores(StoreSettings(fsync=False), wrap=faults.around)
        mine_lake = Lake(lake.catalog, lake.settings, stores=stores)
        made: list[str] = []

        def race(_call, inner=inner, number=number, made=made):
            made.append(other.create_repository(f"theirs-{number}", inner).id)

        faults.hook("put", prefix=layout.CLAIM, action=race)
        with pytest.raises(NamespaceTaken):
            mine_lake.create_repository(f"mine-{number}", place)
        assert made
        assert_sound(other.repository(made[0]))
        other.repository(made[0]).gc.mark()


@pytest.mark.parametrize(
    ("when", "words"),
    [("before", "another repository of this name, perhaps just now, 'same'"), ("after", "repository 'same' exists")],
)
def test_of_two_that_create_the_same_at_once_the_later_one_is_told_so(lake, base, when, words):
    """After the first one's claim, the other one takes that up as left behind."""
    faults = Faults()
    mine = Lake(lake.catalog, lake.settings, stores=Stores(StoreSettings(fsync=False), wrap=faults.around))
    place = (base / "place").as_uri()
    faults.hook("put", prefix=layout.CLAIM, when=when, action=lambda _call: lake.create_repository("same", place))
    with pytest.raises((AlreadyExists, NamespaceTaken), match=words):
        mine.create_repository("same", place)
    assert_sound(lake.repository("same"))
    lake.repository("same").gc.mark()


# --- what may be linked ---
def link(repo, address):
    repo.branch("main").stage(table({"p": address}))


def take(repo, address):
    repo.branch("main").import_objects(address.rstrip("/").rpartition("/")[0], "p", "taken")


LINKS = {"stage": link, "import": take}


@pytest.mark.parametrize("spelling", [name for name in SPELLINGS if name != "a slash at the end"])
@pytest.mark.parametrize("verb", LINKS)
@pytest.mark.parametrize("by", ["this lake", "another lake"])
def test_what_another_repository_manages_is_not_linked(lake, other, outer, base, verb, spelling, by):
    actor = lake if by == "this lake" else other
    repo = actor.create_repository("second", split=SPLIT)
    address = outer.ref("main").stat("a").physical_address
    key = address.partition("/place/outer/")[2]
    with pytest.raises(InvalidInput) as refused:
        LINKS[verb](repo, SPELLINGS[spelling](base, f"outer/{key}"))
    assert refused.value.kind != "invalid_uri"
    assert "managed by" in refused.value.message or "not an object's address" in refused.value.message
    assert list(repo.branch("main").uncommitted()) == []
    assert len(list(repo.log("main"))) == 1


@pytest.mark.parametrize("spelling", [name for name in SPELLINGS if name != "a slash at the end"])
@pytest.mark.parametrize("verb", LINKS)
def test_what_a_repository_manages_itself_is_linked_by_its_own_address_alone(outer, base, verb, spelling):
    address = outer.ref("main").stat("a").physical_address
    key = address.partition("/place/outer/")[2]
    spelled = SPELLINGS[spelling](base, f"outer/{key}")
    if verb == "stage" and spelled == address:
        link(outer, spelled)
        outer.branch("main").reset()
        return
    with pytest.raises(InvalidInput):
        LINKS[verb](outer, spelled)
    assert list(outer.branch("main").uncommitted()) == []


@pytest.mark.parametrize("by", ["this lake", "another lake"])
def test_a_source_around_a_repository_is_not_imported(lake, other, outer, base, by):
    repo = (lake if by == "this lake" else other).create_repository("second", split=SPLIT)
    (base / "place" / "file").write_bytes(b"x")
    with pytest.raises(InvalidInput, match="repository"):
        repo.branch("main").import_objects(f"file://{base}/place", "p", "all of it", skip_special=True)
    assert len(list(repo.log("main"))) == 1


def test_what_lies_beside_a_repository_is_linked(lake, outer, base):
    repo = lake.create_repository("second", split=SPLIT)
    free = base / "place" / "data" / "x"
    free.parent.mkdir()
    free.write_bytes(b"x")
    link(repo, f"file://{free}")
    assert tree(repo, "main") == {"p": b"x"}
    repo.branch("main").reset()
    take(repo, f"file://{free}")
    assert tree(repo, "main") == {"p/x": b"x"}


# --- the catalog alone, and how places compare ---
def test_the_catalog_itself_refuses_what_overlaps(tmp_path, clock):
    """Whatever its callers looked at: two of them may be at it at once."""
    from support.catalogs import create as insert

    catalog = open_catalog(f"sqlite:///{tmp_path}/catalog.db", clock=clock)
    insert(catalog, "a/b")
    for taken in ("a", "a/b/c", "a/b"):
        with pytest.raises(PreconditionFailed):
            insert(catalog, taken)
    for free in ("a/bb", "a/c", "b"):
        insert(catalog, free)
    catalog.close()


def test_places_compare_as_they_are(base):
    one = [spell(base, "x y/z") for spell in SPELLINGS.values()]
    for left, right in itertools.product(one, one):
        assert overlap(left, right)
    assert not overlap(one[0], f"file://{base}/place/x y/zz")
    assert overlap("s3://bucket/a/", "s3://bucket/a/b")
    assert overlap("s3://bucket", "s3://bucket/a")
    assert not overlap("s3://bucket/a", "s3://bucket/ab")
    assert not overlap("s3://bucket-2/a", "s3://bucket/a")
    assert lies_in("s3://b/a/data/x", "s3://b/a/data")
    assert not lies_in("s3://b/a/data2", "s3://b/a/data")
    assert above("s3://b/a/data/x") == ["s3://b/a/data", "s3://b/a", "s3://b"]
    assert above("s3://b") == []
    assert above(f"file://{base}/link/x")[:2] == [f"file://{base}/place", f"file://{base}"]
    assert real_place(f"file://{base}/link/x%20y") == f"{base}/place/x y"


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (None, None, True),
        (None, "https://s3.amazonaws.com", True),
        ("http://minio:9000", "http://minio:9000/", True),
        ("http://MinIO:9000", "http://minio:9000", True),
        ("https://s3.example.com", "https://s3.example.com:443", True),
        ("http://s3.example.com:80/", "http://s3.example.com", True),
        ("http://minio:9000", "http://minio:9001", False),
        (None, "http://minio:9000", False),
    ],
)
def test_servers_compare_as_they_are(left, right, same):
    assert same_server(left, right) is same
