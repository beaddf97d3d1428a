"""DAGs that a test builds, run by Airflow's own ``dag.test``: every task in this process, one after another."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def known(dag: Any) -> Any:
    """The DAG, written to Airflow's database."""
    bag = _bag(os.devnull, collect_dags=False)
    bag.bag_dag(dag)
    _store(bag)
    return dag


def known_file(path: Path) -> dict[str, Any]:
    """The DAGs of a file by their ids, written to Airflow's database."""
    bag = _bag(str(path))
    assert bag.import_errors == {}
    _store(bag)
    return dict(bag.dags)


def _bag(folder: str, **options: Any) -> Any:
    from lakeops.airflow.compat import KNOWN

    if KNOWN < (3, 2):
        from airflow.models.dagbag import DagBag

        return DagBag(dag_folder=folder, **options)
    from airflow.dag_processing.dagbag import DagBag

    return DagBag(dag_folder=folder, bundle_name="dags-folder", **options)


def _store(bag: Any) -> None:
    from lakeops.airflow.compat import KNOWN

    if KNOWN < (3, 2):
        from airflow.models.dagbag import sync_bag_to_db
    else:
        from airflow.dag_processing.dagbag import sync_bag_to_db
    sync_bag_to_db(bag, "dags-folder", None)


def states(run: Any) -> dict[str, str]:
    """The state of each task of a run, by its id; mapped ones by id and index."""
    return {
        task.task_id if task.map_index < 0 else f"{task.task_id}[{task.map_index}]": str(task.state)
        for task in run.get_task_instances()
    }


def tries(run: Any) -> Mapping[str, int]:
    """How often each task of a run was tried."""
    return {task.task_id: task.try_number for task in run.get_task_instances()}
