"""Forms for people: Airflow shows them in its *Trigger* dialog."""

from lakeops.airflow.dags import (
    lakeops_branch,
    lakeops_import,
    lakeops_merge,
    lakeops_reset,
    lakeops_revert,
    lakeops_tag,
)
