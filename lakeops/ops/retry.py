"""Staging again when others moved a branch meanwhile."""

from __future__ import annotations

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_delay

from lakeops.model.clock import pause
from lakeops.model.errors import BranchMoved
from lakeops.ops.context import Context

FIRST_WAIT = 0.02
LONGEST_WAIT = 2.0


def when_moved(ctx: Context) -> Retrying:
    """Calls a function again after ``BranchMoved``, with random delays, for as long as the settings say."""

    def wait(state: RetryCallState) -> float:
        return ctx.ids.jitter(min(LONGEST_WAIT, FIRST_WAIT * 2**state.attempt_number))

    return Retrying(
        retry=retry_if_exception_type(BranchMoved),
        stop=stop_after_delay(ctx.settings.publish_minutes * 60),
        wait=wait,
        sleep=pause,
        reraise=True,
    )
