"""The Airflow provider: lakeops as a connection type, a hook, operators, sensors, triggers and assets.

An operator is thin. It calls one verb of the core with an idempotency key made of the DAG run and the task, so a task
that is retried, killed or cleared does its work once. Only a running task or trigger opens a lake, so reading a DAG
file stays cheap. Every process of Airflow reads this module to learn about the provider, so it imports nothing.
"""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """What Airflow shows and loads of this provider: plain data, in the form of ``provider_info.schema.json``."""
    return {
        "package-name": "lakeops",
        "name": "lakeops",
        "description": "Git for an object store, without a server: branches, atomic commits and merges for data.",
        "integrations": [{"integration-name": "lakeops", "tags": ["service"]}],
        "operators": [
            {"integration-name": "lakeops", "python-modules": ["lakeops.airflow.operators", "lakeops.airflow.approval"]}
        ],
        "sensors": [{"integration-name": "lakeops", "python-modules": ["lakeops.airflow.sensors"]}],
        "triggers": [{"integration-name": "lakeops", "python-modules": ["lakeops.airflow.triggers"]}],
        "filesystems": ["lakeops.airflow.files"],
        "hooks": [{"integration-name": "lakeops", "python-modules": ["lakeops.airflow.hook"]}],
        "asset-uris": [
            {
                "schemes": ["lakefs"],
                "handler": "lakeops.airflow.assets.sanitize_uri",
                "factory": "lakeops.airflow.assets.create_asset",
                "to_openlineage_converter": "lakeops.airflow.assets.to_openlineage",
            }
        ],
        "extra-links": [
            "lakeops.airflow.links.LakeopsBranchLink",
            "lakeops.airflow.links.LakeopsCommitLink",
            "lakeops.airflow.links.LakeopsDiffLink",
            "lakeops.airflow.links.LakeopsPageLink",
        ],
        "cli": ["lakeops.airflow.commands.get_cli_commands"],
        "connection-types": [
            {
                "connection-type": "lakeops",
                "hook-class-name": "lakeops.airflow.hook.LakeopsHook",
                "hook-name": "lakeops",
                "ui-field-behaviour": {
                    "hidden-fields": ["port", "schema"],
                    "relabeling": {
                        "host": "Home directory",
                        "login": "Database user",
                        "password": "Database password",
                    },
                    "placeholders": {
                        "host": "/data/lakeops (embedded SQLite catalog; leave empty with a database URL)",
                        "login": "unless the database URL names one",
                    },
                },
                "conn-fields": {
                    "database_url": {
                        "label": "Database URL",
                        "description": "The catalog, without its password: postgresql+psycopg://host/lakeops",
                        "schema": {"type": ["string", "null"]},
                    },
                    "s3_endpoint_url": {
                        "label": "S3 endpoint URL",
                        "description": "For S3-compatible stores.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "s3_region": {
                        "label": "S3 region",
                        "description": "Where boto3's chain has none.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "aws_conn_id": {
                        "label": "AWS connection",
                        "description": "Whose keys open the stores. Empty: boto3's chain on the worker.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "committer": {
                        "label": "Committer",
                        "description": "Who commits are recorded as made by.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "default_repository": {
                        "label": "Default repository",
                        "description": "What operators work on when they name none.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "engine": {
                        "label": "Engine",
                        "description": "Where big changes are worked out.",
                        "schema": {"type": "string", "enum": ["auto", "local", "spark"], "default": "auto"},
                    },
                    "spark_master": {
                        "label": "Spark master",
                        "description": "spark://host:port, local[N], yarn, k8s://..., or sc://host:port for Connect.",
                        "schema": {"type": ["string", "null"]},
                    },
                },
            }
        ],
    }
