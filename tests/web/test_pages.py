"""The pages of a lake, as ``lakeops ui`` serves them: what they show, page by page, and that all of it is text."""

import html
import re
import tempfile
import warnings
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.rewinding import Rewinding

pytest.importorskip("starlette")

from lakeops import Lake, Repository, Settings
from lakeops.model.ids import Origin
from lakeops.model.records import ReportKind
from lakeops.testing import ManualClock
from lakeops.web import objects, pages
from lakeops.web.app import application, listening
from lakeops.web.page import HEADERS, address

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own, about its client
    from starlette.testclient import TestClient

EVIL = "<script>alert('x')</script>\u202e&\"x"


@pytest.fixture(scope="module")
def rewind(tmp_path_factory):
    """Puts a lake with a history back to where it ends."""
    home = tmp_path_factory.mktemp("pages") / "lake"
    with Lake.open(settings=Settings.load(home=home, fsync=False)) as lake:
        fill(lake.create_repository("flights"))
    return Rewinding(home)


def fill(repo):
    """Make a history with merges, a tag, conflicts, uncommitted changes, and names that are hostile."""
    main = repo.branch("main")
    for day in ("day=1", "day=2"):
        load = repo.create_branch(f"load-{day}")
        load.put(f"flights/{day}/part-0.csv", b"origin,delay\nEWR,5\nJFK,-2\n", content_type="text/csv")
        load.commit(f"load {day}")
        repo.merge(load.id, "main", message=f"publish {day}")
    dev = repo.create_branch("dev")
    main.put("README.md", b"main")
    main.commit("main's words")
    dev.put("README.md", b"dev")
    dev.put(f"raw/{EVIL}", EVIL.encode())
    dev.commit(f"load {EVIL}\nsecond line", {"link": "https://airflow.example/x", "evil": "javascript:alert(1)"})
    dev.put("later/a", b"1")
    dev.delete("flights/day=1/part-0.csv")
    repo.create_tag("v1", "main~1")
    repo.delete_branch("load-day=1")


@pytest.fixture
def lake(rewind, monkeypatch):
    monkeypatch.setenv("LAKEOPS_FSYNC", "false")
    pages._cache.clear()  # commits have the same ids in each test
    with Lake.open(home=rewind()) as opened:
        yield opened


@pytest.fixture
def flights(lake):
    return lake.repository("flights")


@pytest.fixture
def ask(lake):
    with TestClient(application(lake), base_url="http://127.0.0.1:8087") as client:
        yield client.get


def shown(answer):
    """The text of a page that a person reads."""
    assert answer.status_code == 200, answer.text
    body = answer.text.partition("<body>")[2]
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", body)))


def test_a_text_as_long_as_a_commit_id_is_no_link_to_a_commit(lake, ask):
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        place = f"file://{short}/".ljust(64, "x")
        assert len(place) == 64
        lake.create_repository("long", place)
        found = ask("/long/audit").text
    assert place[:20] in found
    assert "/commit/file" not in found


def test_every_link_leads_to_a_page(flights, ask):
    seen: set[str] = set()
    waiting = ["/"]
    while waiting:
        at = waiting.pop()
        seen.add(at)
        answer = ask(at)
        assert answer.status_code == 200, at
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
        assert "<script>alert" not in answer.text
        assert "\u202e" not in answer.text
        found = {html.unescape(link) for link in re.findall(r'href="(/[^"]*)"', answer.text)}
        waiting += found - seen - set(waiting)
    assert len(seen) > 40
    for view in ("/tags", "/tree/", "/object/", "/uncommitted/", "/diff", "/gc", "/mirror", "/audit", "/commit/"):
        assert any(view in at for at in seen), view


def test_branches_say_how_far_they_are_from_the_default_one(flights, ask):
    text = shown(ask("/flights"))
    assert text.index(" main default") < text.index(" dev "), "the default branch comes first"
    assert "1 ahead 1 behind" in text
    assert "2 behind" in text, "load-day=2 lacks its own merge and a commit of main"
    assert "2 uncommitted" in text
    assert "load-day=2" in shown(ask("/flights?q=load"))
    assert "dev" not in shown(ask("/flights?q=load")).partition("Last commit")[2]


def test_a_branch_without_a_commit_of_its_own_names_who_made_it(lake, flights, ask):
    with Lake.open(settings=lake.settings.model_copy(update={"committer": "eve"})) as theirs:
        theirs.repository("flights").create_branch("new")
    assert "created by eve" in shown(ask("/flights?q=new"))
    assert "created by" not in shown(ask("/flights?q=main"))


def test_long_lists_go_on_page_by_page(flights, ask, monkeypatch):
    for name in ("REFS", "COMMITS"):
        monkeypatch.setattr(pages, name, 2)
    monkeypatch.setattr(pages, "RECORDS", 2)
    for name in ("OBJECTS", "STAGED", "TRACED"):
        monkeypatch.setattr(objects, name, 2)
    monkeypatch.setattr(pages, "LISTED", 1)
    pages._cache.clear()
    for number in range(3):
        flights.branch("dev").put(f"many/{number}", b"1")
        flights.create_tag(f"t{number}", "main")

    def every(path, pattern):
        found: list[str] = []
        while path:
            answer = ask(path)
            assert answer.status_code == 200, path
            found += re.findall(pattern, answer.text)
            following = re.search(r'href="([^"]*)" rel="next"', answer.text)
            path = html.unescape(following[1]) if following else ""
        return found

    commit = r'<a class="mono" href="/flights/commit/([0-9a-f]{64})">'
    assert every("/flights/ref/main", commit) == [one.id for one in flights.walk(["main"], 100)[0]]
    assert every("/flights/tags", r"<strong>([^<]*)</strong>") == ["t0", "t1", "t2", "v1"]
    branches = every("/flights", r"<strong>([^<]*)</strong>")
    assert set(branches) == {"main", "dev", "load-day=2"}
    many = every("/flights/tree/dev?prefix=many/", r'title="(many/\d)"')
    assert many == ["many/0", "many/1", "many/2"]
    staged = [change.path for change in flights.branch("dev").uncommitted()]
    assert every("/flights/uncommitted/dev", r'class="path" title="([^"]*)"') == staged
    written = every("/flights/blame/main", r'class="path"><a href="[^"]*" title="([^"]*)"')
    assert written == [one.path for one in flights.ref("main").blame()]
    listed = every("/flights/diff?left=main~2&right=main&two_way=true", r'class="path" title="([^"]*)"')
    assert listed == [change.path for change in flights.diff("main~2", "main")]
    assert len(every("/flights/audit", r'<td class="num"><time')) == len(list(flights.audit()))
    assert len(every("/flights/moves", r'<td class="num"><time')) == len(flights.reflog())
    assert len(every("/flights/moves?of=dev", r'<td class="num"><time')) == len(flights.reflog("dev"))


def test_a_commit_sums_up_what_it_changed(flights, ask):
    head = flights.ref("dev").commit_id
    text = shown(ask(f"/flights/commit/{head}"))
    assert "second line" in text
    assert "2 added" in text
    assert "raw/ 1 · ·" in text, "folders with counts come before the list"
    assert text.index("By folder") < text.index("Every path")
    assert "Branches and tags dev Links" in text, "the refs that have it"
    page = ask(f"/flights/commit/{head}").text
    assert 'href="https://airflow.example/x"' in page
    assert 'href="javascript' not in page
    merge = shown(ask(f"/flights/commit/{flights.ref('v1').commit_id}"))
    assert "(destination)" in merge
    assert "(source)" in merge
    assert " v1 " in merge
    assert "history begins here" in shown(ask("/flights/commit/main~3"))


def test_the_graph_draws_merges(flights, ask):
    page = ask("/flights/ref/main").text
    assert page.count('aria-label="merge of 2 commits"') == 2
    assert len(set(re.findall(r'cx="(\d+)" cy="18"', page))) == 2, "what was merged has a lane of its own"


def test_a_comparison_shows_conflicts_first(flights, ask):
    text = shown(ask("/flights/diff?left=main&right=dev"))
    assert "1 path in conflict" in text
    assert "1 ahead 1 behind" in text
    assert "raw/" in shown(ask("/flights/diff?left=main&right=dev&prefix=raw/"))
    assert "Choose what to compare" in shown(ask("/flights/diff"))
    assert "Both refs are the same commit" in shown(ask("/flights/diff?left=main&right=main"))
    assert "Only main changed since the merge base" in shown(ask("/flights/diff?left=main&right=main~1"))
    assert "Nothing differs" in shown(ask("/flights/diff?left=main&right=main~1&prefix=none/"))


def test_a_wide_difference_is_cut_short(flights, ask, monkeypatch):
    monkeypatch.setattr(pages, "COUNTED", 1)
    pages._cache.clear()
    assert "at least 1 added" in shown(ask("/flights/diff?left=main~2&right=main&two_way=true"))
    pages._cache.clear()


def test_long_metadata_is_there_as_a_whole(flights, ask):
    words = " ".join(f"word-{number}" for number in range(200))
    flights.branch("main").put("long", b"x", metadata={"words": words})
    commit = flights.branch("main").commit("long", {"words": words})
    for path in (f"/flights/commit/{commit.id}", "/flights/object/main?path=long"):
        text = ask(path).text
        assert re.search(rf"<details><summary>word-0 [^<]*…[^<]*word-199</summary>{words}</details>", text), path


def test_sums_of_the_same_commits_are_found_once(flights, monkeypatch):
    pair = flights.ref("main~1").commit_id, flights.ref("main").commit_id
    first = pages.diff_stat(flights, *pair, two_way=True)
    monkeypatch.setattr(Repository, "sums", None)
    again = pages.diff_stat(flights, *pair, two_way=True)
    assert again is first


def table(contents):
    file = BytesIO()
    pq.write_table(contents, file)
    return file.getvalue()


def parquets(groups):
    """A file with a row group of each of these numbers of rows."""
    file, rows = BytesIO(), pa.table({"origin": ["EWR"], "delay": [0]})
    with pq.ParquetWriter(file, rows.schema) as writer:
        for count in groups:
            writer.write_table(rows.slice(0, count))
    return file.getvalue()


UNTOLD = pa.table(
    {
        "at": pa.array([253_402_297_200], pa.timestamp("s", "Europe/Berlin")),
        "date": pa.array([2_932_897], pa.date32()),
        "name": pa.array([b"Z\xfcrich"], pa.binary()).view(pa.string()),
        "fine": ["well"],
    }
)
"""Values that Arrow keeps and Python does not: after the year 9999, and a text that is no UTF-8."""


def parquet(rows):
    return table(pa.table({"origin": ["EWR"] * rows, "delay": list(range(rows))}))


@pytest.mark.parametrize(
    ("path", "data", "told"),
    [
        ("a.csv", b"origin,delay\nEWR,5\n", ["CSV", "origin delay", "EWR 5"]),
        ("a.tsv", b"origin\tdelay\nEWR\t5\n", ["CSV", "origin delay"]),
        ("a.json", b'{"b":[1,2]}', ["JSON", '"b": [']),
        ("bad.json", b"{", ["not"]),
        ("a.txt", "Zürich\n".encode(), ["Text", "Zürich"]),
        ("a.bin", bytes(range(256)), ["Binary", "00 01 02"]),
        ("empty", b"", ["The object is empty"]),
        ("a.parquet", parquet(60), ["Parquet", "60 rows", "2 columns", "EWR 49", "int64", "The first 50 rows"]),
        ("none.parquet", parquet(0), ["0 rows", "It has no rows", "origin null"]),
        ("bad.parquet", b"PAR1" + b"\xff" * 40 + b"PAR1", ["Parquet", "footer is missing, or too large"]),
        ("worse.parquet", b"PAR1" + b"\x15" * 40 + b"\x10\0\0\0PAR1", ["no Parquet file that can be read"]),
        ("long.txt", b"x" * (objects.MOST_BYTES + 5), ["The first 65.5 kB of 65.5 kB"]),
        ("cut.txt", "é".encode() * objects.MOST_BYTES, ["Text"]),
        ("page.html", b"<script>alert(1)</script>", ["<script>alert(1)</script>"]),
        (
            "twice.json",
            b'{"id":1,"id":2,"f":1.10,"n":[],"s":"a,[\\"b"}',
            ['"id": 1, "id": 2, "f": 1.10, "n": [], "s": "a,['],
        ),
        ("long.json", b"[12345678901234567.25, 1E2]", ["[ 12345678901234567.25, 1E2 ]"]),
        ("deep.json", b"[1" + b",[1" * 400 + b"]" * 401, ["JSON", " …"]),
        ("wide.csv", b",".join(b"c%d" % at for at in range(60)), ["The first 40 columns.", "c39"]),
        ("wide.parquet", table(pa.table({f"c{at}": [1] for at in range(45)})), ["45 columns", "The first 40 columns."]),
        ("late.parquet", parquets([0, 1]), ["EWR 0", "1 row "]),
        ("dates.parquet", table(UNTOLD), ["date date32", "(OverflowError)", "(UnicodeDecodeError)", "well"]),
    ],
)
def test_an_object_is_shown_as_what_it_is(flights, ask, path, data, told):
    flights.branch("dev").put(path, data)
    answer = ask(address("", "flights", "object", "dev", path=path))
    text = shown(answer)
    for words in told:
        assert words in text
    assert answer.text.count("<script>") == 1, "the page's own"


@pytest.mark.parametrize("path", ["data", "data.tsv"])
def test_a_table_of_tabs_is_cut_at_tabs(flights, ask, path):
    kind = "text/tab-separated-values" if path == "data" else None
    flights.branch("dev").put(path, b"a,b\tc\n", content_type=kind)
    assert "<th>a,b</th><th>c</th>" in ask(f"/flights/object/dev?path={path}").text


def test_tabs_stay_tabs(flights, ask):
    dev = flights.branch("dev")
    dev.put("code", b"all:\n\tmake\x07\n")
    head = dev.commit("subject\n\n\tindented").id
    assert "all:\n\tmake\\x07<" in ask("/flights/object/dev?path=code").text
    assert "\n\tindented</pre>" in ask(f"/flights/commit/{head}").text


@pytest.mark.parametrize("what", ["wide", "first", "gone", "text"])
def test_a_schema_is_compared_whole_or_not_at_all(flights, ask, what):
    dev, names = flights.branch("dev"), [f"c{at}" for at in range(502)]
    before = pa.table({name: [1] for name in names})
    dev.put("t", table(before))
    dev.commit("before")
    after = before.set_column(501, "c501", pa.array(["x"])) if what == "wide" else before.add_column(0, "new", [[1]])
    dev.put("t", b"text" if what == "text" else table(after))
    dev.commit("after")
    if what == "gone":
        Path(flights.ref("dev~1").stat("t").physical_address.removeprefix("file://")).unlink()
    text = shown(ask("/flights/change?before=dev~1&after=dev&path=t"))
    told = re.findall(r"(?:changed|added|removed) \w+ \S+ \S+ |\d+ columns unchanged|Schema", text)
    assert told == {
        "wide": ["Schema", "changed c501 int64 string ", "501 columns unchanged"],
        "first": ["Schema", "added new · int64 ", "502 columns unchanged"],
    }.get(what, [])


def test_a_page_of_staged_rows_that_change_nothing_says_that_there_are_more(flights, ask, monkeypatch):
    monkeypatch.setattr(objects, "STAGED", 2)
    dev, lost = flights.branch("dev"), [f"_temporary/{at:03}" for at in range(89)]
    with dev.batch() as batch:
        for path in lost:
            batch.put(path, b"1")
    for path in lost:
        dev.delete(path)
    link, seen = "/flights/uncommitted/dev", []
    while link:
        answer = ask(link)
        seen.append(shown(answer))
        following = re.search(r'href="([^"]*)" rel="next"', answer.text)
        link = html.unescape(following[1]) if following else ""
    assert len(seen) > 2
    assert "later/a" in seen[-1]
    assert not [text for text in seen if "Everything is committed" in text or "Nothing more" in text]


@pytest.mark.parametrize(
    "page", ["tree/dev?prefix", "blame/dev?prefix", "uncommitted/dev?prefix", "search?q", "tags?q"]
)
def test_a_field_and_a_copy_hold_the_very_text(flights, ask, page):
    exact = 'a\u200f\u202e/ü\\"<'
    text = ask(f"/flights/{page}={quote(exact)}").text
    assert exact in [html.unescape(value) for value in re.findall(r'value="([^"]*)"', text)]
    copied = [html.unescape(value) for value in re.findall(r'data-copy="([^"]*)"', text)]
    assert not copied or f"lakefs://flights/dev/{exact}" in copied


def test_a_change_shows_both_sides(flights, ask):
    dev = flights.branch("dev")
    before = pa.table({"origin": ["EWR", "JFK"], "delay": [5, -2], "gate": ["A", "B"]})
    after = pa.table({"origin": ["EWR", "JFK", "LGA"], "delay": [5.5, -2.0, 0.0], "plane": ["x", "y", "z"]})
    dev.put("t.parquet", table(before))
    dev.commit("before")
    dev.put("t.parquet", table(after))
    staged = re.search(r'href="([^"]*path=t.parquet)"', ask("/flights/uncommitted/dev").text)
    assert staged is not None
    dev.put("later/b", b"1")
    texts = [shown(ask(html.unescape(staged[1])))]
    dev.commit("after")
    for page in (
        f"/flights/commit/{dev.commit_id}",
        "/flights/diff?left=dev~1&right=dev",
        "/flights/versions/dev?path=t.parquet",
    ):
        link = re.search(r'href="(/flights/change[^"]*path=t.parquet)"', ask(page).text)
        assert link is not None, page
        texts.append(shown(ask(html.unescape(link[1]))))
    for text in texts:
        assert "2 rows" in text.partition("3 rows")[0]
        for told in ("changed delay int64 double", "removed gate", "added plane", "1 column unchanged", "LGA 0.0 z"):
            assert told in text
    assert "There was no object" in shown(ask(address("", "flights", "change", after="dev", path="t.parquet")))
    assert "The object is gone" in shown(
        ask(address("", "flights", "change", before="dev", after="main", path="t.parquet"))
    )
    text = shown(ask(address("", "flights", "change", before="dev", after="dev", path="t.parquet")))
    assert "The same 3 columns before and after" in text


def test_who_wrote_each_object_is_told(flights, ask, monkeypatch):
    text = shown(ask("/flights/blame/main"))
    assert re.search(r"flights/day=1/part-0.csv \d+ B [0-9a-f]{12} load day=1", text)
    assert "or earlier" not in text
    versions = shown(ask("/flights/versions/dev?path=README.md"))
    assert re.search(r"changed \d+ B [0-9a-f]{12} load", versions) or re.search(
        r"added \d+ B [0-9a-f]{12} load", versions
    )
    monkeypatch.setattr(objects, "DEPTH", 0)
    assert "or earlier" in shown(ask("/flights/blame/main"))
    assert "or earlier" in shown(ask("/flights/versions/main?path=README.md"))
    assert "None of the last 0 commits wrote it" in shown(ask("/flights/versions/main?path=nosuch"))


def test_an_object_whose_contents_are_gone_says_so(flights, ask):
    entry = flights.ref("dev").stat("later/a")
    Path(entry.physical_address.removeprefix("file://")).unlink()
    assert "later/a" in shown(ask("/flights/object/dev?path=later/a"))
    assert 'class="box bad"' in ask("/flights/object/dev?path=later/a").text


def test_uncommitted_changes_are_what_a_commit_would_change(flights):
    dev = flights.branch("dev")
    dev.put("README.md", b"dev")  # the same contents again
    found, more = dev.uncommitted_page()
    assert (found, more) == (list(dev.uncommitted()), None)
    assert [change.type.value for change in found] == ["removed", "added"]
    one, after = dev.uncommitted_page(amount=1)
    rest, _ = dev.uncommitted_page(after=after or "")
    assert [*one, *rest] == found
    assert dev.uncommitted_page("later/")[0] == list(dev.uncommitted("later/"))


def test_who_made_a_commit_is_its_dag_and_not_its_workers_user(flights, ask):
    run = Origin({"airflow_dag_id": "ingest", "airflow_run_id": f"scheduled {EVIL}", "airflow_task_id": "commit"})
    made = flights.branch("dev").commit("by a task", run)
    for path in ("/flights", "/flights/ref/dev", "/flights/search?q=task", "/flights/blame/dev?prefix=later/"):
        answer = ask(path)
        assert re.search(r'<span title="Task commit of run [^"]*Committer: [^"]*">ingest</span>', answer.text), path
        assert "<script>alert" not in answer.text
    assert "task commit of ingest, run scheduled" in shown(ask(f"/flights/commit/{made.id}"))


def test_a_branch_that_was_dropped_says_where_it_was(flights, ask):
    head = flights.tag("v1").commit_id
    flights.delete_tag("v1")
    for kind in ("ref", "tree", "uncommitted", "blame"):
        text = shown(ask(f"/flights/{kind}/load-day=1"))
        assert "Deleted" in text
        assert "lakeops branch create" in text
        text = shown(ask(f"/flights/{kind}/v1"))
        assert f"lakeops tag create lakefs://flights/v1 lakefs://flights/{head}" in text
        assert "branch create" not in text


def test_the_last_fsck_is_told(flights, ask):
    assert "fsck has not run yet" in shown(ask("/flights/integrity"))
    check = flights.fsck()
    assert list(check) == []
    assert check.note()
    assert "no errors" in shown(ask("/flights/integrity"))
    entry = next(iter(flights.ref("main").list("flights/")))
    Path(entry.physical_address.removeprefix("file://")).unlink()
    check = flights.fsck(data=True)
    list(check)
    check.note()
    text = shown(ask("/flights/integrity"))
    for told in ("1 error", "object_missing", entry.path, "restore the object from a version", "Do not sweep"):
        assert told in text
    assert len(flights._ctx.catalog.audit.reports("flights", ReportKind.FSCK)) == 1


def test_garbage_is_drawn_and_stands_in_a_table(tmp_path):
    clock = ManualClock()
    with (
        Lake.open(home=tmp_path / "lake", clock=clock) as lake,
        TestClient(application(lake), base_url="http://127.0.0.1") as client,
    ):
        repo = lake.create_repository("flights")
        assert "There is no mark yet" in shown(client.get("/flights/gc"))
        repo.gc.mark()
        nothing = shown(client.get("/flights/gc"))
        assert "No mark of the last 30 days has found garbage" in nothing
        assert "Bytes over time" not in nothing
        for contents in (b"overwritten", b"kept"):
            repo.branch("main").put("a", contents)
        clock.advance(days=3)
        mark = repo.gc.mark()
        answer = client.get("/flights/gc")
        assert re.search(r'<svg [^>]*role="img" aria-labelledby="garbage-title garbage-text"><title', answer.text)
        assert answer.text.count('<rect class="open"') == 2
        assert mark.id in shown(answer)
        repo.gc.sweep(mark.id, force=True)
        assert client.get("/flights/gc").text.count('<rect class="done"') == 1


def trail(answer):
    found = re.search(r'<ol class="crumbs">(.*?)</ol>', answer.text, re.DOTALL)
    assert found is not None
    each = re.findall(r'<li>(?:<a href="([^"]*)">|<span aria-current="page">)(.*?)</(?:a|span)></li>', found[1])
    return [(html.unescape(text), html.unescape(address) or None) for address, text in each]


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/", []),
        ("/_audit", ["Audit"]),
        ("/flights", ["flights", "Branches"]),
        ("/flights/ref/dev", ["flights", "dev"]),
        ("/flights/tree/dev?prefix=flights/", ["flights", "dev", "Objects"]),
        ("/flights/object/main?path=flights/day%3D1/part-0.csv", ["flights", "main", "Objects", "part-0.csv"]),
        ("/flights/uncommitted/dev", ["flights", "dev", "Uncommitted changes"]),
        ("/flights/blame/dev", ["flights", "dev", "Blame"]),
        ("/flights/versions/dev?path=README.md", ["flights", "dev", "Blame", "README.md"]),
        ("/flights/change?before=main&after=dev&path=README.md", ["flights", "Compare", "README.md"]),
        ("/flights/mirror", ["flights", "Mirrors"]),
        ("/nosuch/ref/main", ["Not found"]),
    ],
)
def test_every_page_says_where_it_is(flights, ask, path, names):
    lake, *rest = trail(ask(path))
    assert "catalog.db" in lake[0]
    assert [text for text, _ in rest] == names
    *above, (_, own) = [lake, *rest]
    assert own is None, "a page does not link to itself"
    for _, link in above:
        assert link is not None
        assert ask(link).status_code == 200


@pytest.mark.parametrize(
    ("path", "link"),
    [
        ("/flights/ref/nosuch", "/flights"),
        ("/flights/object/main?path=nosuch", "/flights"),
        ("/nosuch/ref/main", "/"),
        ("/nosuch", "/"),
        ("/flights/object/main?path=%60%3Cscript%3E%60", "/flights"),
    ],
)
def test_a_page_that_is_not_there_leads_to_what_is(flights, ask, path, link):
    answer = ask(path)
    assert answer.status_code == 404
    assert f'<a class="button" href="{link}">' in answer.text
    assert "<code><script>" not in answer.text


def test_commands_in_what_is_wrong_stand_out(flights, ask):
    entry = flights.branch("main")
    for file in (
        Path(entry._ctx.repository.storage_namespace.removeprefix("file://")) / "_lakefs" / "ranges"
    ).iterdir():
        file.unlink()
    assert "<code>lakeops fsck</code> says what" in ask("/flights/tree/main").text


def test_typing_a_ref_leads_to_it(flights, ask):
    answer = ask("/flights/go?ref=+main~1+", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/flights/ref/main~1")
    assert answer.headers["cache-control"] == "no-store"
    assert ask("/flights/go?ref=//evil.example", follow_redirects=False).headers["location"].startswith("/flights/ref/")


def test_a_search_finds_refs_commits_and_messages(flights, ask):
    head = flights.ref("dev").commit_id
    text = shown(ask("/flights/search?q=dev"))
    assert f"dev is commit {head[:12]}" in text
    assert "Branches that begin with it" in text
    assert "No commit has it" in text
    assert "all of them" not in text
    assert 'action="/flights/search"' in ask("/flights/ref/main").text, "every page of a repository leads to it"
    found = shown(ask("/flights/search?q=PUBLISH+DAY"))
    assert found.index("publish day=2") < found.index("publish day=1")
    assert "load day" not in found
    assert flights.ref("main~1").commit_id[:12] in shown(
        ask(f"/flights/search?q={flights.ref('main~1').commit_id[:9]}")
    )
    assert "Type what you look for" in shown(ask("/flights/search"))
    assert "<script>alert" not in ask("/flights/search?q=<script>alert('x')</script>").text


def test_a_search_says_how_far_it_looked(flights, ask, monkeypatch):
    monkeypatch.setattr(pages, "SEARCHED", 2)
    path, seen, pages_seen = "/flights/search?q=repository+created", "", 0
    while path:
        answer = ask(path)
        seen += shown(answer)
        following = re.search(r'href="([^"]*)" rel="next"', answer.text)
        path = html.unescape(following[1]) if following else ""
        pages_seen += 1
    commits = flights.walk(["main", "dev"], 100)[0]
    assert pages_seen == -(-len(commits) // 2)
    assert "None of the 2 commits that were looked at has it" in seen
    assert seen.rstrip().count("Repository created") == 1


def test_the_list_tells_branches_size_and_health(flights, lake, ask, monkeypatch):
    objects_of = list(flights.ref("main").list())
    answer = ask("/")
    assert f'title="{len(objects_of)} objects at the last commit of main">' in answer.text
    assert "no fsck yet" in shown(answer)
    flights.fsck()
    lake.catalog.audit.add_report("flights", ReportKind.FSCK, {"severities": {"error": 2}}, actor="ada")
    lake.create_repository("empty")
    text = shown(ask("/"))
    assert "2 errors" in text
    assert text.index("empty") < text.index("flights")
    monkeypatch.setattr(pages, "MOST_BRANCHES", 2)
    assert "over 2" in shown(ask("/"))


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/nosuch", 404, "no repository 'nosuch'"),
        ("/flights/ref/nosuch", 404, "nosuch"),
        ("/flights/ref/ma..in", 400, "ma..in"),
        ("/flights/commit/feed", 404, "feed"),
        ("/flights/diff?left=main&right=nosuch", 404, "nosuch"),
        ("/flights/object/main?path=nosuch", 404, "nosuch"),
        ("/flights/object/main", 400, "path"),
        ("/flights/audit?before=x", 400, "a time and a number"),
        ("/flights/moves?before=x", 400, "a number"),
        ("/flights/uncommitted/v1", 404, "v1"),
        ("/flights/change?before=main&after=dev&path=nosuch", 404, "neither before nor after"),
        ("/flights/change?before=nosuch&after=dev&path=README.md", 404, "nosuch"),
        ("/flights/change?after=dev", 400, "path"),
        ("/flights/versions/main", 400, "path"),
        ("/flights/versions/nosuch?path=a", 404, "nosuch"),
        ("/flights/blame/nosuch", 404, "nosuch"),
        ("/flights/audit?before=x", 400, "number"),
        ("/flights/tree/main?prefix=" + "x" * 3000, 400, "longer"),
        ("/flights/tree/main?prefix=%00", 400, "NUL"),
        ("/flights/ref/main?from=zz", 404, "zz"),
        ("/flights/go", 400, "type a branch"),
        ("/flights/search?q=x&below=1", 400, "a generation and a commit id"),
        ("/a/b/c/d", 404, "no page at this address"),
    ],
)
def test_what_cannot_be_shown_is_said_on_a_page(flights, ask, path, status, message):
    answer = ask(path)
    assert answer.status_code == status
    assert message in html.unescape(answer.text)
    assert "</html>" in answer.text
    assert '<a class="button" href="/' in answer.text, "there is a way on"
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS


def test_an_error_that_nobody_expected_says_nothing_of_the_inside(flights, lake, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("s3cret")

    monkeypatch.setattr(Repository, "walk", fail)
    with TestClient(application(lake), base_url="http://localhost", raise_server_exceptions=False) as client:
        answer = client.get("/flights/ref/main")
    assert (answer.status_code, "s3cret" in answer.text) == (500, False)
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS


def test_only_a_name_of_this_machine_is_answered(flights, ask):
    """A site that gives 127.0.0.1 a name of its own would otherwise read the pages through a visitor's browser."""
    assert ask("/flights", headers={"host": "evil.example"}).status_code == 400
    assert ask("/flights", headers={"host": "localhost:8087"}).status_code == 200


def test_the_pages_listen_on_loopback_alone():
    socket, at = listening(0)
    with socket:
        host, port = socket.getsockname()
        assert (host, at) == ("127.0.0.1", f"http://127.0.0.1:{port}/")


def test_collection_and_mirrors_are_told_in_words(flights, lake, ask):
    assert "There are no rules" in shown(ask("/flights/gc"))
    flights.gc.set_rules({"default_retention_days": 21, "branches": [{"branch_id": "main", "retention_days": 365}]})
    flights.gc.mark()
    text = shown(ask("/flights/gc"))
    assert "21 days" in text
    assert "Files younger than the grace period of 24 h are never deleted" in text
    assert "Branch main : commits are kept for 365 days" in text
    assert "marked" in text
    lake.create_mirror("copy", source=f"{lake.settings.home}#flights").sync()
    text = shown(ask("/copy/mirror"))
    assert "waits for replication" in text
    assert " main branch " in text
    assert "This repository is not a mirror" in shown(ask("/flights/mirror"))
    assert "Commits kept for it" in shown(ask("/flights/mirror"))


@pytest.mark.parametrize(
    ("state", "word"), [(None, "amount: waiting"), ("failed", "amount: failed it is -1"), ("passed", "amount: passed")]
)
def test_each_page_with_a_branch_or_commit_shows_its_checks(flights, ask, state, word):
    head = flights.branch("dev").commit("declares", checks=["amount", "approval"], allow_empty=True).id
    if state == "failed":
        flights.ref(head).fail_check("amount", "it is -1", by="ada")
    elif state == "passed":
        flights.ref(head).pass_check("amount", by="ada")
    flights.ref(head).fail_check("approval", "not today", by="bob")
    for path in ("/flights", "/flights/ref/dev", f"/flights/commit/{head}", "/flights/diff?left=main&right=dev"):
        text = shown(ask(path))
        assert word in text, path
        assert "approval: rejected not today" in text, path
    assert "by bob" in shown(ask(f"/flights/commit/{head}"))


@pytest.mark.parametrize(
    "path", ["", "/tags", "/ref/main", "/blame/main", "/versions/main?path=README.md", "/search?q=load"]
)
def test_narrow_screens_show_who_committed(flights, ask, path):
    """The column of names is hidden there. Each row has the name once more, in a cell that stays."""
    flights.create_tag("seen", "main")
    text = ask(f"/flights{path}").text
    rows = text.partition("<tbody>")[2].partition("</tbody>")[0].count("<tr>")
    assert rows
    assert text.count('class="narrow"') == rows


TABS = ["Branches", "Tags", "Compare", "Garbage collection", "Mirrors", "Integrity", "Reflog", "Audit"]
VIEWS = ["History", "Objects", "Blame", "Uncommitted changes", "Compare"]
BUTTONS = {
    *("Merge", "Tag", "Revert", "Reset", "Move", "Move branch", "Create branch", "Delete", "Delete branch"),  # git
    *("Restore", "Sync", "Sweep", "Collect garbage", "Run fsck"),  # the command line
    *("Trigger", "Search", "Compare", "copy"),  # Airflow, and any page
}
TEMPLATES = Path(pages.__file__).with_name("templates")


def test_labels_are_words_of_git_airflow_and_the_command_line():
    """Tabs, views and buttons of all templates."""
    texts = {file.name: file.read_text(encoding="utf-8") for file in TEMPLATES.glob("*.html")}
    buttons: set[str] = set()
    for text in texts.values():
        for label in (
            r"\('([^']+?) ?'(?: ~ [^,()]+)*, act\(",
            r'href="\{\{ act\((?:[^{}]|\{[^{])*?\}\}">([^<{]+)<',
            r"<button[^>]*>([^<{]+)<",
        ):
            buttons |= {*re.findall(label, text)}
    assert buttons == BUTTONS
    assert re.findall(r"\('\w+', '([\w ]+)', to\(", texts["page.html"]) == TABS
    views = texts["parts.html"].partition('aria-label="Views of')[2].partition("</nav>")[0]
    assert re.findall(r">([A-Z][\w ]+)</a>", views) == VIEWS
