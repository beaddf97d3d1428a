"""Sensors: tasks that wait for something in a repository. None of them keeps state between two questions."""

from lakeops.airflow.sensors.commits import LakeopsCommitSensor, LakeopsUncommittedSensor
from lakeops.airflow.sensors.mirrors import LakeopsReplicationSensor
from lakeops.airflow.sensors.objects import LakeopsObjectSensor, LakeopsPrefixSensor
from lakeops.airflow.sensors.tags import LakeopsTagSensor

__all__ = [
    "LakeopsCommitSensor",
    "LakeopsObjectSensor",
    "LakeopsPrefixSensor",
    "LakeopsReplicationSensor",
    "LakeopsTagSensor",
    "LakeopsUncommittedSensor",
]
