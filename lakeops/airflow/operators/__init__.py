"""Operators: one verb of the core each, safe to retry, to kill and to clear.

Errors that would come again (a conflict, bad input, a protected branch) fail the task at once, whatever its
``retries``; only errors that may pass are retried.
"""

from lakeops.airflow.operators.base import LakeopsOperator, TaskKilled
from lakeops.airflow.operators.branch import LakeopsCreateBranchOperator, LakeopsDeleteBranchOperator
from lakeops.airflow.operators.commit import LakeopsCommitOperator, OnEmpty
from lakeops.airflow.operators.failing import failing_at_once
from lakeops.airflow.operators.merge import LakeopsMergeOperator

__all__ = [
    "LakeopsCommitOperator",
    "LakeopsCreateBranchOperator",
    "LakeopsDeleteBranchOperator",
    "LakeopsMergeOperator",
    "LakeopsOperator",
    "OnEmpty",
    "TaskKilled",
    "failing_at_once",
]
