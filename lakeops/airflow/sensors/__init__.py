"""Sensors: tasks that wait for something in a repository. None of them keeps state between two questions."""

from lakeops.airflow.sensors.objects import (
    LakeopsCommitSensor,
    LakeopsObjectSensor,
    LakeopsPrefixSensor,
    LakeopsReplicationSensor,
    LakeopsTagSensor,
    LakeopsUncommittedSensor,
)

__all__ = [
    "LakeopsCommitSensor",
    "LakeopsObjectSensor",
    "LakeopsPrefixSensor",
    "LakeopsReplicationSensor",
    "LakeopsTagSensor",
    "LakeopsUncommittedSensor",
]
