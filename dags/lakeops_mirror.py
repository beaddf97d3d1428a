"""Mirrors, whenever one has something to do."""

from lakeops.airflow.dags import mirror_dag

lakeops_mirror = mirror_dag()
