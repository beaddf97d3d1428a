"""The form that makes a mirror."""

from lakeops.airflow.dags import create_mirror_dag

lakeops_create_mirror = create_mirror_dag()
