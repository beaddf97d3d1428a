"""Asset events: what they say, to which outlets they go, and what a consumer reads out of them."""

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from airflow.sdk import DAG, Asset, AssetAlias, PartitionedAtRuntime
from airflow.sdk.execution_time.context import OutletEventAccessors
from sqlalchemy.exc import IntegrityError
from support.catalogs import expire_commits
from support.dags import known, states
from support.errors import raising

from lakeops.airflow.assets import COMMITS, MAX_PARTITIONS, announce, branch_asset, branch_uri, watched_branch
from lakeops.airflow.events import describe, published
from lakeops.airflow.operators import LakeopsCommitOperator, LakeopsMergeOperator
from lakeops.model.errors import StoreUnavailable


def load(repository, *paths):
    branch = repository.branch("main")
    for path in paths:
        branch.put(path, path.encode())
    return branch.commit("load").to_json()


def load_on(repository, name):
    branch = repository.branch(name) if name == "main" else repository.create_branch(name)
    branch.put(name, name.encode())
    return branch.commit("load").to_json()


def context(*outlets):
    return {"task": SimpleNamespace(outlets=list(outlets)), "outlet_events": OutletEventAccessors()}


# --- what they say -----------------------------------------------------------------------------------------------
def test_an_event_says_what_changed(flights):
    first = load(flights, "a/1", "a/2", "b/1", "top")
    flights.branch("main").delete("a/1")
    second = load(flights, "b/1/deep", "top/x", "é/1")
    assert describe(flights, "main", second) == {
        "repository": "flights",
        "branch": "main",
        "commit_id": second["id"],
        "parents": [first["id"]],
        "message": "load",
        "since": first["id"],
        "summary": {"added": 3, "removed": 1, "changed": 0},
        "prefixes": ["a/", "b/", "top/", "é/"],
        "more_prefixes": False,
    }
    (since,) = first["parents"]
    whole = describe(flights, "main", second, since=since)
    assert (whole["since"], whole["summary"]["added"], whole["prefixes"][2]) == (since, 6, "top")


def test_an_event_of_a_wide_commit_stays_small(flights):
    head = load(flights, *(f"p{number:03}/x" for number in range(120)))
    event = describe(flights, "main", head)
    assert event["summary"]["added"] == 120
    assert event["prefixes"] == [f"p{number:03}/" for number in range(100)]
    assert event["more_prefixes"]


def test_the_first_commit_and_expired_ones_have_no_change_to_tell(lake, flights):
    first = flights.branch("main").head
    assert describe(flights, "main", first.to_json())["summary"] is None
    head = load(flights, "a")
    expire_commits(lake.catalog, "flights", [first.id])
    event = describe(flights, "main", head)
    assert (event["commit_id"], event["since"], event["summary"]) == (head["id"], first.id, None)


# --- where they go -----------------------------------------------------------------------------------------------
def test_an_alias_gets_the_event_of_whatever_branch_it_was(flights):
    head = load(flights, "a/1")
    theirs = AssetAlias("theirs")
    task = context(theirs, Asset("lakefs://flights/other"), Asset("s3://bucket/x"))
    announce(task, flights, "main", head)
    (event,) = task["outlet_events"][theirs].asset_alias_events
    assert event.dest_asset_key.uri == event.dest_asset_key.name == "lakefs://flights/main"
    assert event.extra == describe(flights, "main", head)
    assert len(task["outlet_events"]) == 1, "other assets are told nothing"


def test_the_asset_of_all_branches_is_told_of_each(flights):
    heads = {name: load_on(flights, name) for name in ("main", "dev")}
    task = context(COMMITS)
    for name, head in heads.items():
        announce(task, flights, name, head)
    event = SimpleNamespace(timestamp=datetime(2013, 1, 1, tzinfo=UTC), extra=task["outlet_events"][COMMITS].extra)
    assert published({COMMITS: [event]}) == [describe(flights, name, head) for name, head in heads.items()]


def test_an_asset_gets_its_partitions(flights):
    asset = branch_asset("flights", "main", partition_by="day")
    head = load(flights, "f/day=2013-01-02/a", "f/day=2013-01-01/a", "w/day=2013-01-01/b", "f/day=/x", "day=9")
    task = context(asset)
    announce(task, flights, "main", head)
    event = task["outlet_events"][asset]
    assert event.extra == describe(flights, "main", head)
    assert event.partition_keys == {"2013-01-01", "2013-01-02"}


def test_too_many_partitions_are_none(flights, monkeypatch):
    monkeypatch.setattr("lakeops.airflow.assets.MAX_PARTITIONS", 1)
    assert MAX_PARTITIONS == 1000
    asset = branch_asset("flights", "main", partition_by="day")
    task = context(asset)
    announce(task, flights, "main", load(flights, "day=1/a", "day=2/a"))
    assert task["outlet_events"][asset].partition_keys == set()


@pytest.mark.parametrize("value", ["x" * 251, " "])
def test_what_cannot_be_a_partition_key_fails_no_task_that_has_published(flights, value):
    asset = branch_asset("flights", "main", partition_by="day")
    head = load(flights, "day=1/a", f"day={value}/a")
    task = context(asset)
    announce(task, flights, "main", head)
    event = task["outlet_events"][asset]
    assert (event.extra["commit_id"], event.partition_keys) == (head["id"], set())


def test_a_task_without_outlets_costs_nothing(flights):
    task = context()
    announce(task, flights, "main", {})
    assert not task["outlet_events"]


# --- which asset -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("branch", "uri"),
    [("main", "lakefs://flights/main"), ("dev:joe", "lakefs://flights/dev:joe"), ("a#b", "lakefs://flights/a%23b")],
)
def test_a_branch_is_an_asset(branch, uri):
    assert branch_uri("flights", branch) == uri
    assert (branch_asset("flights", branch).uri, branch_asset("flights", branch).name) == (uri, uri)


@pytest.mark.parametrize(
    ("repo", "branch"), [("flights", "main~1"), ("flights", ""), ("F", "main"), ("flights", "a/b")]
)
def test_what_is_no_branch_is_no_asset(repo, branch):
    with raising("invalid_uri"):
        branch_asset(repo, branch)


def test_a_watched_branch_has_one_watcher():
    (watcher,) = watched_branch("flights", "main", poll_interval=3).watchers
    path, kwargs = watcher.trigger.serialize()
    assert path == "lakeops.airflow.triggers.LakeopsCommitTrigger"
    assert kwargs == {
        "repo": "flights",
        "branch": "main",
        "asset": "lakefs://flights/main",
        "every": False,
        "lakeops_conn_id": "lakeops_default",
        "poll_interval": 3,
    }


# --- in a run of a DAG -------------------------------------------------------------------------------------------
def stored(uri):
    """Partition key and commit of each of an asset's events in Airflow's database."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        events = session.scalars(
            select(AssetEvent).join(AssetModel, AssetModel.id == AssetEvent.asset_id).where(AssetModel.uri == uri)
        )
        return sorted(
            [(event.partition_key, (event.extra or {}).get("commit_id")) for event in events],
            key=lambda event: event[0] or "",
        )


def test_a_task_tells_of_what_it_has_published_and_of_nothing_else(lake, airflow_database):
    repository = lake.create_repository("told")
    asset = branch_asset("told", "main", partition_by="day")
    with DAG("tells", schedule=PartitionedAtRuntime()) as dag:
        first = LakeopsMergeOperator(task_id="merge", repo="told", source="dev", outlets=[asset, AssetAlias("all")])
        first >> LakeopsMergeOperator(task_id="again", repo="told", source="dev")
    dev = repository.create_branch("dev")
    for path in ("f/day=1/a", "f/day=2/a"):
        dev.put(path, b"x")
    dev.commit("load")
    assert states(known(dag).test()) == {"merge": "success", "again": "success"}
    head = repository.branch("main").commit_id
    assert stored("lakefs://told/main") == [(None, head), ("1", head), ("2", head)]


@pytest.fixture
def taken(monkeypatch):
    """Lets another task be first at every asset of a repository that Airflow would make while a task ends."""
    from airflow.models.asset import AssetModel

    made = AssetModel.from_serialized

    def patch(repository):
        def first(asset):
            if asset.uri.startswith(f"lakefs://{repository}/"):
                raise IntegrityError("INSERT INTO asset", {}, Exception("UNIQUE constraint failed: asset.name"))
            return made(asset)

        monkeypatch.setattr(AssetModel, "from_serialized", first)

    return patch


def publish_dag(name, repo, destination, **arguments):
    with DAG(name, schedule=None, params={"branch": "main"}) as dag:
        LakeopsMergeOperator(task_id="merge", repo=repo, source="dev", destination=destination, **arguments)
    return known(dag)


def test_a_dag_that_publishes_on_a_branch_names_no_asset_that_may_have_watchers():
    """Airflow drops the watchers of an asset that a DAG names without them."""
    with DAG("names", schedule=None):
        task = LakeopsMergeOperator(task_id="merge", repo="flights", source="dev", destination="main")
    assert task.outlets == [COMMITS]


@pytest.mark.parametrize(("name", "destination"), [("first-plain", "main"), ("first-template", "{{ params.branch }}")])
def test_no_two_tasks_that_end_together_make_one_asset(lake, airflow_database, taken, name, destination):
    repository = lake.create_repository(name)
    load_on(repository, "dev")
    dag = publish_dag(name, name, destination)
    with DAG(f"{name}-follows", schedule=[branch_asset(name)]) as follows:
        pass
    known(follows)
    taken(name)
    assert states(dag.test()) == {"merge": "success"}
    head = repository.branch("main").commit_id
    assert stored(f"lakefs://{name}/main") == [(None, head)]
    assert (None, head) in stored("lakeops")
    assert states(dag.test()) == {"merge": "success"}
    assert stored(f"lakefs://{name}/main") == [(None, head)], "a merge that publishes nothing tells nobody"


def test_a_branch_that_no_dag_names_needs_no_asset(lake, airflow_database, taken):
    repository = lake.create_repository("unnamed")
    load_on(repository, "dev")
    dag = publish_dag("unnamed", "unnamed", "{{ params.branch }}")
    taken("unnamed")
    assert states(dag.test()) == {"merge": "success"}
    assert stored("lakefs://unnamed/main") == []
    assert (None, repository.branch("main").commit_id) in stored("lakeops")


# --- reading them ------------------------------------------------------------------------------------------------
def test_a_consumer_gets_each_commit_once_oldest_first():
    def event(second, extra):
        return SimpleNamespace(timestamp=datetime(2013, 1, 1, 0, 0, second, tzinfo=UTC), extra=extra)

    def record(commit, **more):
        return {"repository": "flights", "branch": "main", "commit_id": commit, **more}

    triggering = {
        AssetAlias("lakeops"): [event(3, record("c")), event(1, record("a", by="operator"))],
        Asset("lakefs://flights/main"): [
            event(2, {"from_trigger": True, "payload": record("b")}),
            event(4, {"from_trigger": True, "payload": record("a", by="watcher")}),
            event(5, {}),
            event(6, None),
            event(7, {"from_trigger": True, "payload": "of another watcher"}),
        ],
    }
    assert published(triggering) == [record("a", by="operator"), record("b"), record("c")]


@pytest.mark.parametrize("operator", ["merge", "commit"])
def test_a_commit_whose_event_was_lost_is_announced_when_the_task_is_cleared(flights, run, monkeypatch, operator):
    """Airflow sends the events of a try that succeeds. The first one here publishes, and then fails."""
    dev = flights.create_branch("dev")
    dev.put("a", b"1")
    if operator == "merge":
        dev.commit("a")
    task = {
        "merge": LakeopsMergeOperator(task_id="t", repo="flights", source="dev", destination="main"),
        "commit": LakeopsCommitOperator(task_id="t", repo="flights", branch="dev", message="m"),
    }[operator]
    kept: dict[str, str] = {}
    run = replace(run, state=SimpleNamespace(get=kept.get, set=kept.__setitem__))
    with monkeypatch.context() as down, raising("store_unavailable", "no answer"):
        down.setattr("lakeops.airflow.task.announce", Mock(side_effect=StoreUnavailable("no answer")))
        run(task)
    cleared = replace(run, events={}, more={"max_tries": 1})
    cleared(task, try_number=2)
    assert len(cleared.events["t"]) > 0
