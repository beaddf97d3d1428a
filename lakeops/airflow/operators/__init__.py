"""Operators: one verb of the core each, safe to retry, to kill and to clear.

Errors that would come again (a conflict, bad input, a protected branch) fail the task at once, whatever its
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

__all__ = ["FailOn", "LakeopsCherryPickOperator", "LakeopsCommitOperator", "LakeopsCreateBranchOperator"]
__all__ += ["LakeopsCreateMirrorOperator", "LakeopsCreateRepositoryOperator", "LakeopsCreateTagOperator"]
__all__ += ["LakeopsDeleteBranchOperator", "LakeopsDeleteObjectsOperator", "LakeopsDeleteRepositoryOperator"]
__all__ += ["LakeopsDeleteTagOperator", "LakeopsDiffOperator", "LakeopsExpireRefsOperator", "LakeopsFsckOperator"]
__all__ += ["LakeopsGcMarkOperator", "LakeopsGcSweepOperator", "LakeopsImportOperator", "LakeopsMergeOperator"]
__all__ += ["LakeopsMirrorDiscoverOperator", "LakeopsMirrorPromoteOperator", "LakeopsMoveBranchOperator"]
__all__ += ["LakeopsMoveTagOperator", "LakeopsOperator", "LakeopsProtectBranchOperator", "LakeopsPublishOperator"]
__all__ += ["LakeopsResetBranchOperator", "LakeopsRevertOperator", "LakeopsSqlCheckOperator", "LakeopsUploadOperator"]
__all__ += ["OnEmpty", "OnEmptyCommit", "OnNewer", "TaskKilled", "failing_at_once"]
