"""Garbage collection, every day."""

from lakeops.airflow.dags import gc_dag

lakeops_gc = gc_dag()
