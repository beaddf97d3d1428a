"""Whatever goes wrong, every page is a page: it says what is wrong and what to do, and has the right status.

``ADDRESSES`` has an address for every route, and the tables say what each page does about each kind of harm. A route
that is not there fails the first test.
"""

import html
import socket
import warnings
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.catalogs import expire_commits

pytest.importorskip("starlette")

from sqlalchemy import update
from support import damage
from support.page_addresses import ADDRESSES
from support.rewinding import Rewinding

from lakeops import Lake, Settings
from lakeops.catalog.tables import COMMIT
from lakeops.model.errors import StoreUnavailable
from lakeops.testing import Faults, open_faulty
from lakeops.web import pages
from lakeops.web.app import IMPATIENT, application
from lakeops.web.page import HEADERS
from lakeops.web.pages import ROUTES

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own, about its client
    from starlette.testclient import TestClient

OBJECTS = {
    f"/{{repository}}/{name}"
    for name in ("tree/{ref}", "object/{ref}", "uncommitted/{ref}", "blame/{ref}", "versions/{ref}", "change", "diff")
}
"""Pages that read ranges. A commit's page reads them as well, and shows what it knows without them."""
COMMIT_PAGE = "/{repository}/commit/{commit_id}"
QUERIES = {
    "/": {"q", "after"},
    "/_audit": {"actor", "before"},
    "/{repository}": {"q", "after"},
    "/{repository}/tags": {"q", "after"},
    "/{repository}/go": {"ref"},
    "/{repository}/search": {"q", "below"},
    "/{repository}/ref/{ref}": {"from"},
    COMMIT_PAGE: {"prefix", "after"},
    "/{repository}/tree/{ref}": {"prefix", "after"},
    "/{repository}/object/{ref}": {"path"},
    "/{repository}/uncommitted/{ref}": {"prefix", "after"},
    "/{repository}/blame/{ref}": {"prefix", "after"},
    "/{repository}/versions/{ref}": {"path"},
    "/{repository}/change": {"before", "after", "path"},
    "/{repository}/diff": {"left", "right", "prefix", "after"},
    "/{repository}/gc": set(),
    "/{repository}/mirror": set(),
    "/{repository}/integrity": set(),
    "/{repository}/moves": {"of", "before"},
    "/{repository}/audit": {"actor", "before"},
}
"""What each page takes from the address."""


@pytest.fixture(scope="module")
def rewind(tmp_path_factory):
    home = tmp_path_factory.mktemp("populated") / "lake"
    with Lake.open(settings=Settings.load(home=home, fsync=False)) as opened:
        damage.populate(opened)
    return Rewinding(home)


@pytest.fixture
def lake(rewind):
    pages._cache.clear()  # commits have the same ids in each test
    with Lake.open(settings=Settings.load(home=rewind(), fsync=False)) as opened:
        yield opened


@pytest.fixture
def repo(lake):
    return lake.repository("repo")


@contextmanager
def asking(lake):
    """Asks for pages of a lake of which nothing is remembered."""
    with TestClient(application(lake), base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        yield lambda path: client.get(path, follow_redirects=False)


def anew(lake):
    return Lake.open(settings=lake.settings, must_exist=True)


def told(answer, status, *words):
    """An answer is a whole page in the usual clothes, which says these words and shows nothing of the inside."""
    text = html.unescape(answer.text)
    assert answer.status_code == status, text
    assert "</html>" in text
    assert "<header" in text
    for hidden in ("Traceback", 'File "/', "sqlalchemy", "sqlite3."):
        assert hidden not in text
    for word in words:
        assert word in text
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS


def is_well(answer):
    assert answer.status_code in {200, 303}, answer.text


def test_every_route_is_in_the_tables():
    routes = [path for path, _ in ROUTES]
    assert routes == list(ADDRESSES) == list(QUERIES)


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [("nosuch", 404, "no repository 'nosuch'"), ("NO", 404, "There is no page"), ("a" * 5000, 404, "repository")],
)
def test_a_repository_that_is_not_there(lake, name, status, words):
    with asking(lake) as ask:
        for route, path in ADDRESSES.items():
            if "{repository}" in route and not route.endswith("go"):
                answer = ask(path.replace("/repo", f"/{name}", 1))
                assert answer.status_code in {status, 400}
                told(answer, answer.status_code)
                if name == "nosuch":
                    told(answer, status, words, "It may have been deleted")


@pytest.mark.parametrize("ref", ["gone", "main~99", "main@{1}", "a" * 5000, "%00", "ma..in", "%F0%9F%92%A9", "-x"])
def test_a_ref_that_means_nothing(lake, repo, ref):
    repo.create_branch("gone")
    repo.delete_branch("gone")
    with asking(lake) as ask:
        for route, path in ADDRESSES.items():
            if "{ref}" not in route and route != COMMIT_PAGE and route != "/{repository}/diff":
                continue
            bad = path.replace("main@", "main").replace("right=main", f"right={ref}").replace("/main", f"/{ref}", 1)
            answer = ask(bad)
            if ref == "gone" and "{ref}" in route:
                told(answer, 200, "Deleted", "To bring it back")
            else:
                told(answer, answer.status_code)
                assert answer.status_code in {400, 404}, (bad, answer.status_code)


def test_what_is_asked_for_is_bounded(lake):
    with asking(lake) as ask:
        for route, names in QUERIES.items():
            for name in names:
                address, _, query = ADDRESSES[route].partition("?")
                kept = "&".join(one for one in query.split("&") if one and not one.startswith(f"{name}="))
                told(ask(f"{address}?{kept}&{name}={'x' * 5000}"), 400, "longer than 2048 characters", "Correct")
                answer = ask(f"{address}?{kept}&{name}=%00%FF%F0")
                told(answer, answer.status_code) if answer.status_code != 303 else None
                assert answer.status_code in {200, 303, 400, 404}, (route, name)


@pytest.mark.parametrize("harm", [damage.flip, damage.cut_short, damage.remove])
@pytest.mark.parametrize("file", ["range", "metarange"])
def test_files_that_are_damaged_or_gone(lake, repo, harm, file):
    ranges = [row.key for row in damage.metarange(repo).rows(0, len(damage.metarange(repo)))]
    for key in ranges if file == "range" else [damage.metarange_file(repo)]:
        harm(repo, key)
    with anew(lake) as fresh, asking(fresh) as ask:
        for route, path in ADDRESSES.items():
            answer = ask(path)
            if route in OBJECTS:
                told(answer, 500, "lakeops fsck", "Other pages may still work")
            elif route == COMMIT_PAGE:
                told(answer, 200, "merge", "cannot be shown", "lakeops fsck")
            else:
                is_well(answer)


def test_a_commit_that_expired(lake, repo):
    lost = repo.create_branch("lost", "main")
    lost.put("x", b"x")
    lost.commit("lost")
    expired = lost.commit_id
    repo.delete_branch("lost")
    expire_commits(lake.catalog, "repo", [expired])
    with asking(lake) as ask:
        for route, path in ADDRESSES.items():
            if route == COMMIT_PAGE or route == "/{repository}/ref/{ref}":
                told(ask(path.replace("main@", expired).replace("main", expired)), 200, "expired")
            elif route == "/{repository}/uncommitted/{ref}":
                told(ask(path.replace("main", expired)), 404)
            elif route in OBJECTS:
                bad = path.replace("main~3", expired).replace("main~1", expired).replace("/main", f"/{expired}")
                told(ask(bad), 410, "expired", "Retention rules took it")


def test_a_row_of_the_catalog_that_cannot_be_decoded(lake, repo):
    head = damage.head(repo).id
    damage.sql(repo, update(COMMIT).where(COMMIT.c.id == head).values(metadata=["no map"]))
    with anew(lake) as fresh, asking(fresh) as ask:
        for path in ADDRESSES.values():
            answer = ask(path)
            if answer.status_code not in {200, 303}:
                told(answer, 500, "cannot be decoded", "lakeops fsck")
        told(ask("/"), 200, "damaged", "cannot be decoded")


def test_a_database_that_is_down(lake, repo):
    with anew(lake) as fresh, asking(fresh) as ask:
        is_well(ask("/repo"))
        fresh.catalog.database.engine.dispose()
        place = Path(str(fresh.settings.home))
        place.rename(place.with_name("elsewhere"))
        for route, path in ADDRESSES.items():
            if route != "/{repository}/go":  # it asks nobody
                told(ask(path), 503, "Try again in a while")
        place.with_name("elsewhere").rename(place)
        is_well(ask("/repo"))


def test_a_store_that_is_down(lake):
    faults = Faults()
    with open_faulty(lake.settings, faults) as fresh, asking(fresh) as ask:
        for route, path in ADDRESSES.items():
            faults.revive()
            faults.fail(at=None, error=StoreUnavailable("s3://bucket does not answer"))
            answer = ask(path)
            if route in OBJECTS:
                told(answer, 503, "does not answer", "Try again in a while")
            elif route == COMMIT_PAGE:
                told(answer, 200, "cannot be shown", "does not answer")
            else:
                is_well(answer)


def test_a_store_that_takes_connections_and_never_answers(tmp_path, moto_endpoint, buckets, monkeypatch):
    home = tmp_path / "far"
    with Lake.open(settings=Settings.load(home=home, s3_endpoint_url=moto_endpoint, fsync=False)) as lake:
        damage.populate(lake, f"s3://{buckets(moto_endpoint)}/silent")
    for name, patience in (("connect_timeout", 0.3), ("read_timeout", 0.3), ("max_attempts", 1)):
        assert name in IMPATIENT, "pages wait for a store no longer than a person would"
        monkeypatch.setitem(IMPATIENT, name, patience)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Lake.open(settings=Settings.load(home=home, s3_endpoint_url=endpoint)) as lake, asking(lake) as ask:
            is_well(ask("/repo"))
            told(ask("/repo/tree/main"), 503, "Try again in a while")
            told(ask("/repo/commit/main@"), 200, "merge", "cannot be shown")


def test_a_mirror_whose_source_is_down(lake, repo, tmp_path):
    home = tmp_path / "source"
    with Lake.open(settings=Settings.load(home=home, fsync=False)) as source:
        source.create_repository("origin").branch("main").put("a", b"1")
    mirror = lake.create_mirror("copy", source=f"{home}#origin")
    home.rename(tmp_path / "gone")
    with pytest.raises(Exception, match=r"."):
        mirror.sync()
    with asking(lake) as ask:
        answer = ask("/copy/mirror")
        told(answer, 200, "The last sync failed", "not synced yet")
        assert "tag good" not in answer.text
        for path in ADDRESSES.values():
            if path.startswith("/repo"):
                answer = ask(path.replace("/repo", "/copy", 1))
                assert answer.status_code in {200, 303, 404, 503}, (path, answer.status_code)
                if answer.status_code != 303:
                    told(answer, answer.status_code)


def parquet():
    file = BytesIO()
    pq.write_table(pa.table({"origin": ["EWR"] * 4_000, "delay": list(range(4_000))}), file, row_group_size=1_000)
    return file.getvalue()


WHOLE = parquet()


@pytest.mark.parametrize(
    ("path", "data", "words"),
    [
        ("a.parquet", WHOLE[: len(WHOLE) // 2], "footer is missing"),
        ("b.parquet", WHOLE[:4] + bytes(len(WHOLE) - 4), "footer is missing"),
        ("c.parquet", WHOLE[:40] + b"\xff" * 400 + WHOLE[440:], "no Parquet file that can be read"),
        ("d.parquet", WHOLE[:-300] + b"\xff" * 200 + WHOLE[-100:], "no Parquet file that can be read"),
        ("e.bin", bytes(range(256)) * 400, "Not a text"),
        ("f.csv", b'"never closed' + b"x" * 200_000, "Text"),
        ("g.json", b"[" * 60_000, "Named like JSON, but it is not"),
        ("h.txt", b"\x1b[31m\xe2\x80\xae<script>", "&lt;script&gt;"),
    ],
)
def test_contents_that_cannot_be_read(lake, repo, path, data, words):
    repo.branch("dev").put(path, data)
    with asking(lake) as ask:
        for page in (f"/repo/object/dev?path={path}", f"/repo/change?before=main&after=dev&path={path}"):
            answer = ask(page)
            told(answer, 200)
            assert words in answer.text
            assert "\x1b" not in answer.text
            assert "\u202e" not in answer.text
