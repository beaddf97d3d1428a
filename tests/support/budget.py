"""How many examples hypothesis tries: few in the default run, ``LAKEOPS_TEST_EXAMPLES`` times as many."""

import os

TIMES = int(os.environ.get("LAKEOPS_TEST_EXAMPLES", "1"))


def examples(number: int) -> int:
    """How many examples are tried where the default run tries ``number``."""
    return number * TIMES
