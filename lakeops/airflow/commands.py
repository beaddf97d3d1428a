"""``airflow lakeops ...``: commands that need Airflow's connections, which the ``lakeops`` command does not know.

Every ``airflow`` command reads this module, so it imports nothing of lakeops before a command runs.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace

from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand, lazy_load_command


def get_cli_commands() -> list[GroupCommand]:
    """The commands, as Airflow's command line describes its own."""
    connection = Arg(  # type: ignore[no-untyped-call]
        ("conn_id",),
        nargs="?",
        default="lakeops_default",
        help="the connection; lakeops_default when left out",
    )
    return [
        GroupCommand(
            name="lakeops",
            help="Look at lakeops",
            subcommands=[
                GroupCommand(
                    name="connections",
                    help="Look at connections of type lakeops",
                    subcommands=[
                        ActionCommand(
                            name="check",
                            help="Open a connection's lake and try its store, as the form's Test button does",
                            func=lazy_load_command("lakeops.airflow.commands.check_connection"),
                            args=(connection,),
                        )
                    ],
                )
            ],
        )
    ]


def check_connection(args: Namespace) -> None:
    """Print what a test of the connection finds. Exit with 1 when the connection does not work."""
    # As Airflow's own commands on connections do: without it, those of Airflow's database are not looked for.
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"

    from lakeops.airflow.hook import LakeopsHook

    works, message = LakeopsHook(args.conn_id).test_connection()
    print(message, file=sys.stdout if works else sys.stderr)
    if not works:
        raise SystemExit(1)
