"""Airflow's streams that triggers share, or what stands for them before Airflow 3.3, where each trigger has its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome, SharedStreamProducer
else:
    try:
        from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome, SharedStreamProducer
    except ImportError:  # before Airflow 3.3
        from typing import Any, NamedTuple

        class AdvanceOutcome(NamedTuple):
            """How many triggers have stored their events, and how many could not."""

            acked: int
            failed: int

        class AdvanceItem(NamedTuple):
            """One tick, and what became of the events that triggers made at it."""

            broker_payload: Any
            outcome: AdvanceOutcome

        class SharedStreamProducer:
            """What makes ticks."""


__all__ = ["AdvanceItem", "AdvanceOutcome", "SharedStreamProducer"]
