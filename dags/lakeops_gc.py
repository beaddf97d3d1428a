"""Garbage collection, every day."""

from lakeops.airflow.dags import lakeops_gc
