"""Words for people, as a terminal shows them."""

from lakeops.model.words import counted, human_size, moment, safe, seconds, span

__all__ = ["counted", "human_size", "moment", "safe", "seconds", "span"]
