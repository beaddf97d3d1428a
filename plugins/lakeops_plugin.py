"""Shows lakeops' pages in Airflow's web server where lakeops is on the path without being installed.

An installed lakeops registers the plugin by itself. Then this file registers nothing: of two plugins with one name,
Airflow reports the second as an error, and some of its processes drop all plugins behind it.
"""

from importlib.metadata import entry_points

if not entry_points(group="airflow.plugins", name="lakeops"):
    from lakeops.airflow.plugin import LakeopsPlugin

    __all__ = ["LakeopsPlugin"]
