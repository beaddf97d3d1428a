"""Triggers: waiting in Airflow's triggerer, for deferred tasks and for assets.

They run in a process that serves hundreds of them, so nothing here blocks its loop, and nothing keeps state that a
restart of the triggerer would lose. Reading a DAG imports this room; it imports no lake.
"""

from lakeops.airflow.triggers.base import LakeopsConditionTrigger
from lakeops.airflow.triggers.commits import LakeopsCommitTrigger

__all__ = ["LakeopsCommitTrigger", "LakeopsConditionTrigger"]
