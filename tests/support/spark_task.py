"""A task as Airflow runs it, in a process of its own: a commit on the engine that connection ``mine`` names.

Usage: python -m support.spark_task held|free. Held, the work says that it began and waits on Spark's workers. Prints
the commit's id.
"""

import signal
import sys
from types import SimpleNamespace
from typing import Any

from airflow.sdk.execution_time.context import OutletEventAccessors
from services.spark import SPARK_CONF
from support.spark_work import held_rewrite

from lakeops.airflow.operators import LakeopsCommitOperator
from lakeops.engine.spark import session
from lakeops.ranges import apply


def main() -> None:
    session._ALWAYS.update(SPARK_CONF)
    if sys.argv[1] == "held":
        apply.run_task = held_rewrite
    task = LakeopsCommitOperator(
        task_id="commit", repo="repo", branch="main", message="on spark", lakeops_conn_id="mine"
    )
    signal.signal(signal.SIGTERM, lambda *_: task.on_kill())  # what Airflow's task runner does
    instance = SimpleNamespace(dag_id="dag", run_id="run", task_id="commit", map_index=-1, try_number=1)
    context: Any = {"ti": instance, "task": task, "outlet_events": OutletEventAccessors()}
    print(task.execute(context)["id"])


if __name__ == "__main__":
    main()
