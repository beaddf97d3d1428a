"""Mirrors, every minute."""

from lakeops.airflow.dags import lakeops_mirror
