"""``airflow lakeops ...``: what is easier asked where Airflow's connections are than with the ``lakeops`` command.

Every ``airflow`` command reads this module, so it describes the commands and no more.
"""

from __future__ import annotations

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
                            func=lazy_load_command("lakeops.airflow.check.check_connection"),
                            args=(connection,),
                        )
                    ],
                )
            ],
        )
    ]
