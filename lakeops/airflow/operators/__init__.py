"""Operators: one verb of the core each, safe to retry, to kill and to clear.

Errors that a retry cannot change (a conflict, bad input, a protected branch) fail the task at once, whatever its
``retries`` are. Only errors that may pass are retried.
"""

from lakeops.airflow.operators.branch import (
    LakeopsCreateBranchOperator,
    LakeopsCreateRepositoryOperator,
    LakeopsCreateTagOperator,
    LakeopsDeleteBranchOperator,
    LakeopsDeleteRepositoryOperator,
    LakeopsDeleteTagOperator,
    LakeopsMoveBranchOperator,
    LakeopsMoveTagOperator,
    LakeopsProtectBranchOperator,
    LakeopsResetBranchOperator,
)
from lakeops.airflow.operators.commit import (
    LakeopsCherryPickOperator,
    LakeopsCommitOperator,
    LakeopsImportOperator,
    LakeopsMergeOperator,
    LakeopsPublishOperator,
    LakeopsRevertOperator,
    OnEmpty,
    OnEmptyCommit,
    OnNewer,
)
from lakeops.airflow.operators.objects import (
    LakeopsDeleteObjectsOperator,
    LakeopsDiffOperator,
    LakeopsSqlCheckOperator,
    LakeopsUploadOperator,
)
from lakeops.airflow.operators.upkeep import (
    FailOn,
    LakeopsCreateMirrorOperator,
    LakeopsExpireRefsOperator,
    LakeopsFsckOperator,
    LakeopsGcMarkOperator,
    LakeopsGcSweepOperator,
    LakeopsMirrorDiscoverOperator,
    LakeopsMirrorPromoteOperator,
)
from lakeops.airflow.task import LakeopsOperator, TaskKilled, failing_at_once

__all__ = [
    "FailOn",
    "LakeopsCherryPickOperator",
    "LakeopsCommitOperator",
    "LakeopsCreateBranchOperator",
    "LakeopsCreateMirrorOperator",
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
    "LakeopsMoveBranchOperator",
    "LakeopsMoveTagOperator",
    "LakeopsOperator",
    "LakeopsProtectBranchOperator",
    "LakeopsPublishOperator",
    "LakeopsResetBranchOperator",
    "LakeopsRevertOperator",
    "LakeopsSqlCheckOperator",
    "LakeopsUploadOperator",
    "OnEmpty",
    "OnEmptyCommit",
    "OnNewer",
    "TaskKilled",
    "failing_at_once",
]
