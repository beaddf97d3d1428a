"""Checks, every week."""

from lakeops.airflow.dags import fsck_dag

lakeops_fsck = fsck_dag()
