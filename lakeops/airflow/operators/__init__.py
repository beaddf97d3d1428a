"""Operators: one verb of the core each, safe to retry, to kill and to clear.

Errors that would come again (a conflict, bad input, a protected branch) fail the task at once, whatever its
``retries``; only errors that may pass are retried.
"""

from lakeops.airflow.operators.base import LakeopsOperator, TaskKilled
from lakeops.airflow.operators.branch import (
    LakeopsCreateBranchOperator,
    LakeopsDeleteBranchOperator,
    LakeopsProtectBranchOperator,
    LakeopsResetBranchOperator,
)
from lakeops.airflow.operators.commit import (
    LakeopsCherryPickOperator,
    LakeopsCommitOperator,
    LakeopsImportOperator,
    LakeopsPublishOperator,
    LakeopsRevertOperator,
    OnEmpty,
    OnEmptyCommit,
)
from lakeops.airflow.operators.diff import LakeopsDiffOperator
from lakeops.airflow.operators.failing import failing_at_once
from lakeops.airflow.operators.fsck import FailOn, LakeopsFsckOperator
from lakeops.airflow.operators.gc import (
    LakeopsExpireRefsOperator,
    LakeopsGcMarkOperator,
    LakeopsGcSweepOperator,
)
from lakeops.airflow.operators.merge import LakeopsMergeOperator
from lakeops.airflow.operators.mirror import LakeopsMirrorDiscoverOperator, LakeopsMirrorPromoteOperator
from lakeops.airflow.operators.objects import LakeopsDeleteObjectsOperator, LakeopsUploadOperator
from lakeops.airflow.operators.repository import LakeopsCreateRepositoryOperator, LakeopsDeleteRepositoryOperator
from lakeops.airflow.operators.tag import LakeopsCreateTagOperator, LakeopsDeleteTagOperator

__all__ = [
    "FailOn",
    "LakeopsCherryPickOperator",
    "LakeopsCommitOperator",
    "LakeopsCreateBranchOperator",
    "LakeopsCreateRepositoryOperator",
    "LakeopsCreateTagOperator",
    "LakeopsDeleteBranchOperator",
    "LakeopsDeleteObjectsOperator",
    "LakeopsDeleteRepositoryOperator",
    "LakeopsDeleteTagOperator",
    "LakeopsDiffOperator",
    "LakeopsExpireRefsOperator",
    "LakeopsFsckOperator",
    "LakeopsGcMarkOperator",
    "LakeopsGcSweepOperator",
    "LakeopsImportOperator",
    "LakeopsMergeOperator",
    "LakeopsMirrorDiscoverOperator",
    "LakeopsMirrorPromoteOperator",
    "LakeopsOperator",
    "LakeopsProtectBranchOperator",
    "LakeopsPublishOperator",
    "LakeopsResetBranchOperator",
    "LakeopsRevertOperator",
    "LakeopsUploadOperator",
    "OnEmpty",
    "OnEmptyCommit",
    "TaskKilled",
    "failing_at_once",
]
