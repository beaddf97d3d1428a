"""How many requests of a verb wait for one another, with a store far away and an empty or a full cache on disk."""

import pytest
from support.far import PATHS, Requests, open_far, prepare, staged

QUIET = 0.1


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("far"))


@pytest.fixture(params=["cold", "kept"])
def how(request):
    return request.param


@pytest.fixture
def chain(prepared, how, tmp_path):
    """How many requests of a verb wait for one another, in a new process."""
    folder = prepared.disk_cache if how == "kept" else tmp_path / "none yet"
    settings = prepared.model_copy(update={"disk_cache": folder})

    def measured(act):
        requests = Requests(QUIET)
        with open_far(settings, requests) as lake:
            act(lake.repository("repo"))
        return len(requests.rounds)

    return measured


def committed(prepared, *branches, which):
    staged(prepared, *branches, which=which)
    with open_far(prepared, Requests()) as lake:
        for branch in branches:
            lake.repository("repo").branch(branch).commit(branch)


def test_a_first_stat(chain, how):
    assert chain(lambda repo: repo.ref("main@").stat("t/000777")) == {"cold": 2, "kept": 0}[how]


def test_a_first_page(chain, how):
    longest = chain(lambda repo: [item for item, _ in zip(repo.ref("main@").list(), range(30), strict=False)])
    assert longest <= {"cold": 3, "kept": 0}[how]


def test_a_diff(chain, how):
    assert chain(lambda repo: list(repo.diff("main~1", "main"))) == {"cold": 1, "kept": 0}[how]


def test_a_clustered_commit(prepared, chain, how):
    staged(prepared, f"commit-{how}", which=lambda _: range(900, 930))
    assert chain(lambda repo: repo.branch(f"commit-{how}").commit("c")) == {"cold": 3, "kept": 1}[how]


def test_a_clustered_merge(prepared, chain, how):
    names = [f"{side}-{how}" for side in ("from", "to")]
    committed(prepared, *names, which=lambda number: range(900 + 4 * number, 904 + 4 * number))
    assert chain(lambda repo: repo.merge(*names)) <= {"cold": 3, "kept": 1}[how]


def test_scattered_changes_travel_together(prepared, chain, how):
    """One request after the other would be sixty and more."""
    names = [f"{side}-scattered-{how}" for side in ("from", "to")]
    committed(prepared, *names, which=lambda number: range(number, PATHS, 40))
    assert chain(lambda repo: list(repo.diff(names[0], names[1]))) <= {"cold": 8, "kept": 0}[how]


def test_an_import(prepared, chain, how, tmp_path):
    """One write after the other would be one for each range."""
    with open_far(prepared, Requests()) as lake:
        lake.repository("repo").create_branch(f"import-{how}", "main")
    source = tmp_path / "source"
    source.mkdir()
    for number in range(300):
        (source / f"{number:04}").touch()
    longest = chain(
        lambda repo: repo.branch(f"import-{how}").import_objects(source.as_uri(), "imported/", message="import")
    )
    assert longest == {"cold": 5, "kept": 4}[how]
