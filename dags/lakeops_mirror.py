"""Mirrors, every minute."""

from lakeops.airflow.dags import mirror_dag

lakeops_mirror = mirror_dag()
