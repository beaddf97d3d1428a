"""Shows lakeops' pages in Airflow's web server. This file is the one registration; the plugin is in the package."""

from lakeops.airflow.plugin import LakeopsPlugin

__all__ = ["LakeopsPlugin"]
