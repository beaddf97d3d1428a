from itertools import islice

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.scenes import table

from lakeops import CommonPrefix, Entry, Lake, Split
from lakeops.ops import read


def naive(paths, prefix, after, delimiter):
    """The rows of a listing, made in the slow and obvious way."""
    shown: list[str] = []
    for path in sorted(paths):
        if not path.startswith(prefix):
            continue
        end = path.find(delimiter, len(prefix)) if delimiter else -1
        item = path if end < 0 else path[: end + len(delimiter)]
        if item > after and item not in shown:
            shown.append(item)
    return shown


names = st.text(alphabet="ab/\U0001f600é~", min_size=1, max_size=6)


@given(
    committed=st.sets(names, max_size=30),
    staged=st.dictionaries(names, st.booleans(), max_size=20),
    prefix=st.sampled_from(["", "a", "a/", "a//", "/", "b/a", "\U0001f600"]),
    delimiter=st.sampled_from(["", "/", "//", "a", "a/", "aa"]),
    others=st.sets(names, max_size=4),
    page=st.integers(1, 5),
    split=st.sampled_from([Split(2, 3, 6), Split()]),
)
@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_listing_shows_staged_over_committed_in_byte_order(
    tmp_path_factory, settings, committed, staged, prefix, delimiter, others, page, split, monkeypatch
):
    monkeypatch.setattr(read, "PAGE", page)
    with Lake.open(home=tmp_path_factory.mktemp("lake")) as lake:
        repo = lake.create_repository("repo", split=split)
        main = repo.branch("main")
        stage(main, committed)
        main.commit("base", allow_empty=True)
        shown = set(committed)
        stage(main, {path for path, there in staged.items() if there})
        shown |= {path for path, there in staged.items() if there}
        for path, there in staged.items():
            if not there and path in shown:
                main.delete(path)
                shown.discard(path)
        for ref, paths in (("main", shown), ("main@", committed)):
            handle = repo.ref(ref)
            everything = naive(paths, prefix, "", delimiter)
            found = list(handle.list(prefix, delimiter=delimiter))
            assert [item.path for item in found] == everything
            objects = [item for item in found if isinstance(item, Entry)]
            assert objects == [handle.stat(item.path) for item in objects]
            for after in {*everything, *paths, *others, prefix, prefix + delimiter}:
                rest = [later.path for later in handle.list(prefix, after=after, delimiter=delimiter)]
                assert rest == naive(paths, prefix, after, delimiter)
            assert paged(handle, prefix, delimiter, page) == everything
            table = handle.entries(prefix).read_all()
            assert table["path"].to_pylist() == naive(paths, prefix, "", "")


def paged(handle, prefix, delimiter, size):
    """A listing in pages of ``size``, each one asked for behind the last item of the one before."""
    found: list[str] = []
    while True:
        page = islice(handle.list(prefix, after=found[-1] if found else "", delimiter=delimiter), size)
        new = [item.path for item in page]
        found += new
        if len(new) < size:
            return found


def stage(branch, paths):
    if paths:
        addresses = {path: f"data/x/{number}" for number, path in enumerate(sorted(paths))}
        branch.stage(table(addresses, checksum=["same"] * len(paths)))


def test_folders_are_summed_up(repo, fill):
    fill(repo, "main", **{"raw/a/1": "", "raw/a/2": "", "raw/b": "", "top": ""})
    main = repo.branch("main")
    assert [item.path for item in main.list(delimiter="/")] == ["raw/", "top"]
    folder = list(main.list("raw/", delimiter="/"))[0]
    assert folder == CommonPrefix("raw/a/")
    assert {name for name in main.stat("top").to_json() if getattr(folder, name) is not None} == {"path", "path_type"}
    main.delete("raw/a/1")
    main.delete("raw/a/2")
    assert [item.path for item in main.list("raw/", delimiter="/")] == ["raw/b"]
    assert [item.path for item in repo.ref("main@").list("raw/", delimiter="/")] == ["raw/a/", "raw/b"]


def test_a_listing_goes_on_while_commits_are_published(repo, monkeypatch):
    monkeypatch.setattr(read, "PAGE", 3)
    main = repo.branch("main")
    for number in range(10):
        main.put(f"f{number}", b"")
    found = main.list()
    paths = [next(found).path]
    main.commit("meanwhile")
    main.put("f95", b"")
    main.commit("and again")
    paths += [item.path for item in found]
    assert paths == [*(f"f{number}" for number in range(10)), "f95"]


def test_entries_of_a_commit_are_arrow_with_full_addresses(repo, fill):
    fill(repo, "main", a="1", b="22")
    table = repo.ref("main~0").entries().read_all()
    assert table["size_bytes"].to_pylist() == [1, 2]
    assert all(address.startswith(repo.storage_namespace) for address in table["physical_address"].to_pylist())
