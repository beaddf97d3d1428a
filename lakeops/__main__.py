"""``python -m lakeops`` is the command line."""

from lakeops.cli import main

main()
