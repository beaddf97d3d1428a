"""Forms for people: Airflow shows them in its *Trigger* dialog."""

from lakeops.airflow.dags import admin_dags

forms = admin_dags()
