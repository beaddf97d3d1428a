"""``airflow lakeops connections check``: from this machine, with this environment."""

from __future__ import annotations

import sys
from argparse import Namespace

from lakeops.airflow.hook import LakeopsHook


def check_connection(args: Namespace) -> None:
    """Print what a test of the connection finds; leave with exit code 1 when it does not work."""
    works, message = LakeopsHook(args.conn_id).test_connection()
    print(message, file=sys.stdout if works else sys.stderr)
    if not works:
        raise SystemExit(1)
