"""Trying again when others moved a branch meanwhile."""

from __future__ import annotations

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt

from lakeops.model.clock import pause
from lakeops.model.errors import BranchMoved
from lakeops.ops.context import Context

FIRST_WAIT = 0.02
LONGEST_WAIT = 2.0


def when_moved(ctx: Context) -> Retrying:
    """Calls a function again after ``BranchMoved``: bounded, with random delays that keep several processes apart."""

    def wait(state: RetryCallState) -> float:
        return ctx.ids.jitter(min(LONGEST_WAIT, FIRST_WAIT * 2**state.attempt_number))

    return Retrying(
        retry=retry_if_exception_type(BranchMoved),
        stop=stop_after_attempt(ctx.settings.publish_tries),
        wait=wait,
        sleep=pause,
        reraise=True,
    )
