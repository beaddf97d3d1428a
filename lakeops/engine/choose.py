"""The choice of an engine: in process, or on Spark when there is one and it promises half the time.

The estimate follows measurements of Spark: the time of a task, of a job, and of its start. A cluster is asked for its
cores before it is chosen, where the work is worth the time of the question.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from lakeops.engine.base import Engine, LocalEngine
from lakeops.settings import Settings

if TYPE_CHECKING:
    from lakeops.engine.spark.engine import SparkEngine

_WORTH_ASKING = 0.8
"""Seconds of work. For less nobody asks whether there is a Spark: a job takes half of that."""
_ADVANTAGE = 2.0
"""Spark has to promise half the time, for an estimate is not certain."""

_log = logging.getLogger(__name__)


class ChoosingEngine(LocalEngine):
    """Runs work in process, and says where there is a Spark that is quicker for it.

    Args:
        make_spark: makes the other engine. Called once there is work that it might be quicker for.
        threads: as for ``LocalEngine``.
    """

    def __init__(self, make_spark: Callable[[], SparkEngine], threads: int | None = None) -> None:
        super().__init__(threads)
        self._make_spark = make_spark

    def for_work(self, seconds: float) -> Engine:
        """The engine for work that one core would take so long for. The reason goes to the log.

        A session is started to ask for its cores only where the largest cluster would be chosen, start and all.
        """
        here = seconds / self.threads
        if here <= _WORTH_ASKING or (self._spark.master is None and not self._spark.ready):
            return self
        best = self._spark.estimate(seconds, self.threads)
        if not self._spark.ready and here > _ADVANTAGE * best:
            self._spark.ask()
            best = self._spark.estimate(seconds, self.threads)
        chosen = self._spark if here > _ADVANTAGE * best else self
        _log.info("%s: %.1f s of work on %d cores here, %.1f s on Spark", chosen.name, here, self.threads, best)
        return chosen

    def close(self) -> None:
        """Give back what Spark holds."""
        if "_spark" in self.__dict__:
            self._spark.close()

    @cached_property
    def _spark(self) -> SparkEngine:
        return self._make_spark()


def open_engine(settings: Settings) -> Engine:
    """The engine that the settings ask for. Touches nothing yet."""

    def spark() -> SparkEngine:
        from lakeops.engine.spark.engine import SparkEngine

        return SparkEngine(settings.spark_master)

    if settings.engine == "local":
        return LocalEngine()
    return spark() if settings.engine == "spark" else ChoosingEngine(spark)
