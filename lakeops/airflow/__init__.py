"""The Airflow provider: lakeops as a connection type, a hook, operators, sensors, triggers and assets.

An operator is thin. It calls one verb of the core with an idempotency key made of the DAG run and the task, so a task
that is retried, killed or cleared does its work once. Only a running task or trigger opens a lake, so reading a DAG
file stays cheap. Every process of Airflow reads this module to learn about the provider, so it imports nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.cli.cli_config import GroupCommand


def get_provider_info() -> dict[str, Any]:
    """The description of this provider for Airflow: plain data, in the form of ``provider_info.schema.json``."""
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
        "filesystems": ["lakeops.airflow.hook"],
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
            "lakeops.airflow.task.LakeopsBranchLink",
            "lakeops.airflow.task.LakeopsCommitLink",
            "lakeops.airflow.task.LakeopsDiffLink",
            "lakeops.airflow.task.LakeopsPageLink",
        ],
        "cli": ["lakeops.airflow.get_cli_commands"],
        "connection-types": [
            {
                "connection-type": "lakeops",
                "hook-class-name": "lakeops.airflow.hook.LakeopsHook",
                "hook-name": "lakeops",
                "ui-field-behaviour": {
                    "hidden-fields": ["port", "schema"],
                    "relabeling": {"host": "Home directory", "login": "Database user", "password": "Database password"},
                    "placeholders": {
                        "host": "/data/lakeops (embedded SQLite catalog; leave empty with a database URL)",
                        "login": "unless the database URL names one",
                    },
                },
                "conn-fields": {
                    "database_url": _field(
                        "Database URL", "The catalog, without its password: postgresql+psycopg://host/lakeops"
                    ),
                    "s3_endpoint_url": _field("S3 endpoint URL", "For S3-compatible stores."),
                    "s3_region": _field("S3 region", "The region, if boto3's chain has none."),
                    "aws_conn_id": _field(
                        "AWS connection", "Its keys open the stores. Empty: boto3's chain on the worker."
                    ),
                    "committer": _field("Committer", "The committer's name in commits."),
                    "default_repository": _field("Default repository", "The repository of operators that name none."),
                    "engine": _field(
                        "Engine",
                        "Where large commits and merges run.",
                        type="string",
                        enum=["auto", "local", "spark"],
                        default="auto",
                    ),
                    "spark_master": _field(
                        "Spark master", "spark://host:port, local[N], yarn, k8s://..., or sc://host:port for Connect."
                    ),
                    "create": _field("Create", "Create the lake if there is none.", type="boolean", default=False),
                },
            }
        ],
    }


def _field(label: str, description: str, **schema: Any) -> dict[str, Any]:
    """A field of the connection's form; a text that may be empty, unless ``schema`` says otherwise."""
    return {"label": label, "description": description, "schema": schema or {"type": ["string", "null"]}}


def get_cli_commands() -> list[GroupCommand]:
    """The commands ``airflow lakeops ...``, for what needs Airflow's connections, which ``lakeops`` does not know.

    Every ``airflow`` command asks for them, so nothing of lakeops is imported before a command runs.
    """
    from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand, lazy_load_command

    connection = Arg(  # type: ignore[no-untyped-call]
        ("conn_id",), nargs="?", default="lakeops_default", help="the connection; lakeops_default when left out"
    )
    test = ActionCommand(
        name="test",
        help="Open a connection's lake and try its store, as the form's Test button does",
        func=lazy_load_command("lakeops.airflow.hook.check_connection"),
        args=(connection,),
    )
    connections = GroupCommand(name="connections", help="Look at connections of type lakeops", subcommands=[test])
    named: list[Any] = [
        Arg(("mirror",), help="its name"),  # type: ignore[no-untyped-call]
        Arg(("storage_namespace",), help="where the source's objects are replicated to"),  # type: ignore[no-untyped-call]
        Arg(("--source",), required=True, help="airflow:CONNECTION#REPO, or another address"),  # type: ignore[no-untyped-call]
        Arg(("--conn-id",), default="lakeops_default", help="the mirror's connection"),  # type: ignore[no-untyped-call]
        Arg(("--branch",), action="append", help="a pattern of branches"),  # type: ignore[no-untyped-call]
        Arg(("--tag",), action="append", help="a pattern of tags"),  # type: ignore[no-untyped-call]
    ]
    create = ActionCommand(
        name="create",
        help="Create a mirror of a connection's repository",
        func=lazy_load_command("lakeops.airflow.hook.create_mirror"),
        args=named,
    )
    mirrors = GroupCommand(name="mirrors", help="Make mirrors", subcommands=[create])
    return [GroupCommand(name="lakeops", help="Look after lakeops", subcommands=[connections, mirrors])]
