"""What lakeops takes, beside others."""

import lakeops  # noqa: F401 - before anything that loads Arrow, whose memory it chooses
