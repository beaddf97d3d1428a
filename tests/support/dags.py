"""DAGs that a test builds, run by Airflow's own ``dag.test``: every task in this process, one after another."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any


def known(dag: Any) -> Any:
    """The DAG, written to Airflow's database."""
    from lakeops.airflow.compat import KNOWN

    if KNOWN < (3, 2):
        from airflow.models.dagbag import DagBag, sync_bag_to_db

        bag = DagBag(dag_folder=os.devnull, collect_dags=False)
    else:
        from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

        bag = DagBag(dag_folder=os.devnull, collect_dags=False, bundle_name="dags-folder")
    bag.bag_dag(dag)
    sync_bag_to_db(bag, "dags-folder", None)
    return dag


def states(run: Any) -> dict[str, str]:
    """The state of each task of a run, by its id; mapped ones by id and index."""
    return {
        task.task_id if task.map_index < 0 else f"{task.task_id}[{task.map_index}]": str(task.state)
        for task in run.get_task_instances()
    }


def tries(run: Any) -> Mapping[str, int]:
    """How often each task of a run was tried."""
    return {task.task_id: task.try_number for task in run.get_task_instances()}
