"""DAGs that are ready to run.

A file in Airflow's DAG folder needs one line to have them:

    from lakeops.airflow.dags import lakeops_gc, lakeops_mirror

Airflow takes each DAG that is among a file's names, so name those that you want. ``lakeops_gc`` collects garbage,
``lakeops_mirror`` keeps mirrors up to date and ``lakeops_fsck`` checks repositories. The others are forms for people.

Each has a function that makes it anew; ``admin_dags`` makes all forms. They take arguments of Airflow's ``DAG``, and
``connection`` and ``repository`` (or ``mirror``), with which the form begins. ``parallel`` is the number of
repositories that are worked on at a time:

    from lakeops.airflow.dags import admin_dags, gc_dag

    nightly = gc_dag("nightly_gc", schedule="0 3 * * *", connection="production", default_args={"owner": "data"})
    forms = admin_dags("production_", connection="production")
"""

from __future__ import annotations

from airflow.sdk import DAG

from lakeops.airflow.dags.admin import (
    admin_dags,
    branch_dag,
    import_dag,
    merge_dag,
    reset_dag,
    revert_dag,
    sweep_dag,
    tag_dag,
)
from lakeops.airflow.dags.upkeep import create_mirror_dag, fsck_dag, gc_dag, mirror_dag

__all__ = [
    "admin_dags",
    "branch_dag",
    "create_mirror_dag",
    "fsck_dag",
    "gc_dag",
    "import_dag",
    "merge_dag",
    "mirror_dag",
    "reset_dag",
    "revert_dag",
    "sweep_dag",
    "tag_dag",
]
__all__ += [f"lakeops_{name.removesuffix('_dag')}" for name in __all__ if name.endswith("_dag")]


def __getattr__(name: str) -> DAG:
    # A DAG is made when it is asked for: Airflow registers each one that comes into being while it reads a file, so
    # making all of them here would give a file DAGs that it never named.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: DAG = globals()[f"{name.removeprefix('lakeops_')}_dag"]()
    globals()[name] = value
    return value
