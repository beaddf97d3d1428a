"""The functions that make the ready-made DAGs: what can be chosen, and what stays as it is."""

import json
from datetime import timedelta

import pytest
from airflow.sdk import Param
from support.dags import known, states

from lakeops.airflow.dags import admin_dags, branch_dag, fsck_dag, gc_dag, merge_dag, mirror_dag, reset_dag
from lakeops.model.errors import InvalidInput

pytestmark = pytest.mark.usefixtures("airflow_database")


@pytest.mark.parametrize("make", [gc_dag, mirror_dag, fsck_dag])
def test_a_dag_is_made_as_its_owner_wants_it(make):
    default = make()
    made = make(
        "ours",
        schedule="0 3 * * *",
        connection="production",
        tags=["ours"],
        default_args={"owner": "data", "retries": 7},
        max_active_runs=2,
    )
    assert (made.dag_id, str(made.schedule), made.tags, made.max_active_runs) == ("ours", "0 3 * * *", {"ours"}, 2)
    assert (made.params["connection"], default.params["connection"]) == ("production", "lakeops_default")
    tasks = [task for task in made.task_dict.values() if "discover" not in task.task_id]
    assert {(task.owner, task.retries) for task in tasks} == {("data", 7)}
    assert made.default_args["retry_delay"] == default.default_args["retry_delay"] != timedelta(0)
    assert made.doc_md.startswith(made.description)
    assert "Args:" not in made.doc_md


def test_fields_may_begin_with_other_values():
    made = gc_dag("large", repository="flights", params={"ask_above_gib": 100, "more": Param(1, type="integer")})
    assert (made.params["repository"], made.params["ask_above_gib"], made.params["more"]) == ("flights", 100, 1)
    assert made.params.get_param("ask_above_gib").schema["minimum"] == 0, "the field is still the same"
    assert gc_dag("small").params["ask_above_gib"] is None


@pytest.mark.parametrize(("gib", "limit"), [(None, ""), (0, "0"), (0.5, "536870912"), (100, "107374182400")])
def test_macros_of_an_owner_leave_the_limit_of_a_question(gib, limit):
    approve = gc_dag("asks", user_defined_macros={"ours": len}).get_task("collect.approve")
    assert approve.render_template(approve.above_bytes, {"params": {"ask_above_gib": gib}}) == limit


@pytest.mark.parametrize("make", [gc_dag, reset_dag])
def test_a_misspelt_field_is_refused(make):
    with pytest.raises(InvalidInput, match=r"'ask_above_gb'.*'repository'"):
        make(params={"ask_above_gb": 100})


def test_every_form_has_a_text_of_its_own_and_shows_first():
    forms = admin_dags("production_", connection="production", repository="flights", tags=["ours"])
    assert [form.dag_id for form in forms] == [
        f"production_{name}" for name in ("branch", "merge", "revert", "tag", "reset", "sweep", "import")
    ]
    assert len({form.description for form in forms}) == len({form.doc_md for form in forms}) == len(forms)
    for form in (*forms, gc_dag("collect")):
        assert form.params["dry_run"] is True, form.dag_id
    for form in forms:
        assert (form.params["connection"], form.params["repository"]) == ("production", "flights")
        assert form.tags == {"ours"}


def test_repositories_are_checked_each_by_its_name(lake, flights):
    lake.create_repository("other")
    run = known(fsck_dag("checks")).test()
    tasks = {task.map_index: task for task in run.get_task_instances() if task.task_id == "fsck"}
    assert {str(task.state) for task in tasks.values()} == {"success"}
    assert [tasks[index].rendered_map_index for index in sorted(tasks)] == ["flights", "other"]


def test_a_form_takes_the_connections_default_repository(flights, home, monkeypatch):
    connection = {"conn_type": "lakeops", "host": str(home), "extra": {"default_repository": "flights"}}
    monkeypatch.setenv("AIRFLOW_CONN_MINE", json.dumps(connection))
    flights.create_branch("dev").put("a", b"1")
    flights.branch("dev").commit("load")
    form = known(merge_dag("merges", connection="mine"))
    assert states(form.test(run_conf={"source": "dev", "dry_run": False}))["merge"] == "success"
    assert flights.ref("main").exists("a")
    unfilled = known(branch_dag("unfilled"))
    ended = states(unfilled.test(run_conf={"branch": "new", "dry_run": False}))
    assert (ended["preview"], ended["create"]) == ("failed", "upstream_failed")
