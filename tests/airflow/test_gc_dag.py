"""The daily garbage collection: real runs of its DAG, and when a person is asked."""

import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.sdk import DAG, task
from sqlalchemy import delete, update
from support.airflow_tasks import with_garbage
from support.catalogs import everything
from support.dags import known, known_file

from lakeops import Lake
from lakeops.airflow.approval import LakeopsGcApprovalOperator
from lakeops.airflow.compat import TaskAwaitingInput
from lakeops.airflow.dags import gc_dag
from lakeops.airflow.operators import LakeopsExpireRefsOperator, LakeopsFsckOperator
from lakeops.airflow.publish import WriteAuditPublish

SLIP = {"default_retention_days": 0, "branches": [{"branch_id": "idle-*", "expire_after_days": 10}]}
DAG_FILE = Path(__file__).resolve().parents[2] / "dags" / "lakeops_gc.py"


@pytest.fixture(scope="module")
def lakeops_gc(airflow_database):
    return known_file(DAG_FILE)["lakeops_gc"]


def states(run):
    found: dict[str, list[str]] = {}
    for instance in sorted(run.get_task_instances(), key=lambda instance: instance.map_index):
        found.setdefault(instance.task_id.removeprefix("collect."), []).append(str(instance.state))
    return found


def objects(name):
    with Lake.open() as lake:
        place = Path(lake.repository(name).storage_namespace.removeprefix("file://"))
    return sum(1 for file in (place / "data").rglob("*") if file.is_file())


def branches(name):
    with Lake.open() as lake:
        return {ref.id for ref in lake.repository(name).branches()}


# --- runs of the DAG ---------------------------------------------------------------------------------------------
def test_a_run_collects_every_repository_but_mirrors(lake, lakeops_gc):
    for name in ("one", "two", "mirrored"):
        with_garbage(name)
    lake.repository("mirrored").set_read_only()
    lake.create_repository("clean")
    assert objects("one") == 3
    run = lakeops_gc.test(run_conf={"dry_run": False})
    assert str(run.state) == "success"
    found = states(run)
    assert found["mark"] == ["success"] * 3
    assert sorted(found["sweep"]) == ["skipped", "success", "success"], "there is nothing to sweep in a clean one"
    assert [objects(name) for name in ("one", "two", "mirrored")] == [2, 2, 3]
    assert branches("one") == {"main", "idle-2"}
    assert list(lake.repository("one").fsck(data=True)) == []


@pytest.mark.parametrize("only_show", [False, True])
@pytest.mark.parametrize("kind", ["scheduled", "asset_triggered", "manual"])
def test_only_a_run_that_somebody_triggers_is_a_dry_run_by_default(kind, only_show):
    mark: Any = gc_dag("gc", only_show=only_show).get_task("collect.mark")
    for dry_run in (True, False):
        context: Any = {"dag_run": SimpleNamespace(run_type=kind), "params": {"dry_run": dry_run}}
        assert mark.render_template(mark.only_show, context) == str(dry_run if kind == "manual" else only_show)


def test_a_dry_run_changes_nothing(lake, lakeops_gc):
    with_garbage("one")
    repo = lake.repository("one")
    repo.branch("main").put("kept", b"newer")
    repo.branch("main").commit("two")
    repo.gc.set_rules(SLIP)
    before = everything(lake.catalog)
    run = lakeops_gc.test(run_conf={"repository": "one", "dry_run": True})
    assert str(run.state) == "success"
    assert (states(run)["approve"], states(run)["sweep"]) == (["skipped"], ["skipped"])
    assert everything(lake.catalog) == before
    assert objects("one") == 4
    assert branches("one") == {"main", "idle-1", "idle-2"}


def test_a_repository_that_does_not_exist_fails_before_anything(lake, lakeops_gc):
    run = lakeops_gc.test(run_conf={"repository": "nosuch"})
    assert states(run)["repositories"] == ["failed"]


def test_a_run_with_a_field_that_the_form_lacks_fails_before_anything(lake, lakeops_gc):
    with_garbage("one")
    run = lakeops_gc.test(run_conf={"repo": "another", "dry_run": False})
    assert (states(run)["repositories"], objects("one")) == (["failed"], 3)


# --- asking ------------------------------------------------------------------------------------------------------
@pytest.fixture
def mark(lake):
    with_garbage("one")
    return lake.repository("one").gc.mark()


def ask(mark, monkeypatch, **arguments):
    """An approval of a mark, a context for it, and what was asked."""
    from airflow.providers.standard.operators import hitl

    asked: list[Any] = []
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **given: asked.append(given))
    task = LakeopsGcApprovalOperator(task_id="approve", repo="one", mark_id=mark.id, **arguments)

    class Instance(dict[str, Any]):
        id, task_id, map_index = "ti", "approve", -1

        def xcom_push(self, *, key, value):
            self[key] = value

    return task, {"task_instance": Instance(), "ti": Instance()}, asked


def answer(option):
    """What Airflow hands to the task when a person has chosen."""
    user = {"id": "7", "name": "ada"}
    event = {"params_input": {}, "responded_at": datetime.now(UTC), "responded_by_user": user}
    return {**event, "chosen_options": [option]}


@pytest.mark.parametrize("limit", [None, "", "7", 1000])
def test_a_small_sweep_asks_nobody(mark, monkeypatch, limit):
    task, context, asked = ask(mark, monkeypatch, above_bytes=limit)
    assert task.execute(context) == {"mark_id": mark.id, "approved_by": None}
    assert asked == []


def test_a_larger_one_waits_for_a_person_who_sees_the_report(mark, monkeypatch):
    monkeypatch.setitem(sys.modules, "lakeops.airflow.plugin", ModuleType("plugin"))
    task, context, asked = ask(mark, monkeypatch, above_bytes="6")
    with pytest.raises(TaskAwaitingInput) as parked:
        task.execute(context)
    kept = parked.value.kwargs
    (form,) = asked
    assert form["subject"] == "Delete 7 B of lakefs://one?"
    first, *rest = form["body"].splitlines()
    assert first.startswith("* `lakefs://one: 1 of 3 objects are garbage (7 B")
    *rest, _, link = rest
    assert rest
    assert all(line.startswith("* `") for line in rest), "each line stays a line"
    assert link == "[See the rules and the marks](/lakeops/lakeops_default/one/gc)"
    found = task.execute_complete(context, answer("Sweep"), **kept)
    assert found == {"mark_id": mark.id, "approved_by": "ada"}
    (link,) = task.operator_extra_links
    assert link.get_link(task, ti_key=None) == "/lakeops/lakeops_default/one/gc", (
        "also in the process that takes the answer"
    )
    with pytest.raises(AirflowSkipException, match=f"ada chose to leave mark {mark.id} unswept; 0 commits live again"):
        task.execute_complete(context, answer("Leave it"), **kept)


def test_no_state_of_the_approval_stands_for_an_answer(lake, airflow_database):
    with_garbage("one")
    asking = known(gc_dag("asking", default_args={"retries": 0}))
    assert asking.get_task("collect.approve").response_timeout < timedelta(days=1), "the next run can start"
    given = {"dry_run": False, "ask_above_gib": 0}
    run = asking.test(run_conf=given, mark_success_pattern="collect.approve")
    assert (states(run)["sweep"], objects("one")) == (["failed"], 3)


@pytest.mark.parametrize("option", ["Sweep", "Leave it"])
def test_an_answer_about_another_mark_counts_for_none(lake, mark, monkeypatch, option):
    """The mark of the DAG's approval is an XCom, which somebody may edit while the form waits."""
    task, context, _ = ask(mark, monkeypatch, above_bytes="6")
    with pytest.raises(TaskAwaitingInput) as parked:
        task.execute(context)
    task.mark_id = lake.repository("one").gc.mark().id
    with pytest.raises(AirflowFailException, match=f"nobody was asked about mark_id '{task.mark_id}'"):
        task.execute_complete(context, answer(option), **parked.value.kwargs)
    assert "restored" not in {found.state.value for found in lake.repository("one").gc.marks()}


@pytest.mark.parametrize("how", ["left", "no answer", "only shown", "swept by hand"])
def test_who_leaves_a_mark_gets_its_commits_back(lake, monkeypatch, how):
    with_garbage("one")
    repo = lake.repository("one")
    old = repo.branch("main").commit_id
    repo.gc.set_rules({"default_retention_days": 0})
    mark = repo.gc.mark()
    assert repo.ref(f"{old}~1").commit.expired
    task, context, _ = ask(mark, monkeypatch, above_bytes="6", only_show=how == "only shown")
    if how == "only shown":
        with pytest.raises(AirflowSkipException, match="1 commit live again"):
            task.execute(context)
    else:
        with pytest.raises(TaskAwaitingInput) as parked:
            task.execute(context)
        silence = {"error": "no response", "error_type": "timeout"}
        if how == "swept by hand":
            repo.gc.sweep(mark.id, force=True)
        words = "its sweep has begun" if how == "swept by hand" else "1 commit live again"
        with pytest.raises(AirflowSkipException, match=words):
            event = silence if how == "no answer" else answer("Leave it")
            task.execute_complete(context, event, **parked.value.kwargs)
    swept = how == "swept by hand"
    assert repo.ref(f"{old}~1").commit.expired is swept
    assert repo.gc.marks()[0].state.value == ("swept" if swept else "restored")


# --- checking ----------------------------------------------------------------------------------------------------
def test_fsck_fails_over_damage_and_says_what_to_do(lake, run):
    place = with_garbage("one")
    sound = run(LakeopsFsckOperator(task_id="t", repo="one"))
    assert sound["ok"]
    assert sound["severities"]["error"] == 0
    for file in (place / "_lakefs" / "metaranges").rglob("*.parquet"):
        file.unlink()
    looked_at = r"\(checked \d+ commits?, .*without the contents of objects\)"
    with pytest.raises(AirflowFailException, match=rf"fsck of lakefs://one {looked_at} found .* errors?.*metarange"):
        run(LakeopsFsckOperator(task_id="t", repo="one"))
    assert {finding["severity"] for finding in run.xcoms["findings"]} >= {"error"}
    looked = run(LakeopsFsckOperator(task_id="t", repo="one", fail_on="never", max_findings=1))
    assert (looked["ok"], len(looked["findings"])) == (False, 1)


# --- branches that runs have left --------------------------------------------------------------------------------
@pytest.fixture
def leaving(airflow_database):
    """A DAG whose block writes and then fails: in a second writer, or after the commit in a check."""
    block = partial(WriteAuditPublish, repo="one", message="Publish", task_args={"retries": 0})
    with DAG("leaving", schedule=None, params={"writer": False}) as dag, block() as publish:

        @publish.output("data/")
        def write(url):
            Path(f"{url}/part-0".removeprefix("file://")).write_text("data")

        @task
        def also(params=None):
            if params["writer"]:
                raise RuntimeError("the source is down")

        @publish.check
        def complete(ref):
            return ["amount -1"]

        write() >> also()
        complete()
    return known(dag)


def in_database(act):
    from airflow.utils.session import create_session

    with create_session() as session:
        act(session)


def set_state(state):
    return lambda session: session.execute(update(DagRun).where(DagRun.dag_id == "leaving").values(state=state))


def forget_runs(session):
    session.execute(delete(DagRun).where(DagRun.dag_id == "leaving"))


def forget_dag(session):
    forget_runs(session)
    session.execute(delete(DagModel).where(DagModel.dag_id == "leaving"))


def written_to(branch):
    branch.put("mine", b"1")
    branch.commit("a person's")


GONE, STAYS, UNTOLD = "deleted", "kept", None


ENDS = {
    "failed": (None, GONE),
    "failed before its commit": (None, GONE),
    "deleted": (forget_runs, GONE),
    "deleted before its commit": (forget_runs, GONE),
    "of an unknown DAG": (forget_dag, STAYS),
    "running": (set_state("running"), UNTOLD),
    "successful": (set_state("success"), UNTOLD),
    "written to by a person": (written_to, UNTOLD),
    "protected": (lambda repo: repo.protect("leaving:*"), STAYS),
    "protected and only shown": (lambda repo: repo.protect("leaving:*"), STAYS),
    "only shown": (None, GONE),
    "young": (None, UNTOLD),
}


@pytest.mark.parametrize("what", ENDS)
def test_branches_of_runs_that_are_gone_go(lake, leaving, what):
    act, end = ENDS[what]
    repo = lake.create_repository("one")
    run = leaving.test(run_conf={"writer": (writer := "before" in what)})
    assert str(run.state) == "failed"
    (name,) = branches("one") - {"main"}
    branch = repo.branch(name)
    assert (list(branch.uncommitted()) != []) is writer
    if act is not None and "protected" in what:
        act(repo)
    elif act is written_to:
        act(branch)
    elif act is not None:
        in_database(act)
    dry = "only shown" in what
    with DAG("expiring", schedule=None) as dag:
        given = {"only_show": dry, "abandoned_after_days": "7" if what == "young" else "0"}
        LakeopsExpireRefsOperator(task_id="expire", repo="one", **given)
    (expired,) = known(dag).test().get_task_instances()
    assert str(expired.state) == "success"
    told = expired.xcom_pull(task_ids="expire")
    assert branches("one") == ({"main"} if end == GONE and not dry else {"main", name})
    assert {key: [ref["id"] for ref in refs] for key, refs in told.items()} == {
        GONE: [name] if end == GONE else [],
        STAYS: [name] if end == STAYS else [],
    }
    if end == STAYS:
        (kept,) = told["kept"]
        assert ("protected" if "protected" in what else "knows no DAG 'leaving'") in kept["kept"]


@pytest.mark.parametrize("name", ["leaving:publish:mine", "leaving:publish:manual__mine", "no:such:dag"])
def test_a_persons_branch_stays_whatever_it_is_called(lake, lakeops_gc, leaving, name):
    repo = lake.create_repository("one")
    repo.create_branch(name).put("mine", b"1")
    lakeops_gc.test(run_conf={"dry_run": False, "abandoned_after_days": 0})
    assert branches("one") == {"main", name}
