"""How errors of the core end a task: what would come again fails at once, what may pass is left to the retries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException

from lakeops.model.errors import AttemptExpired, LakeopsError, MergeConflict, SweepIncomplete, Transient


@contextmanager
def failing_at_once() -> Iterator[None]:
    """Turn errors that would come again into a failure without retry; let those that may pass be retried.

    A conflict's message lists every conflicting path, one a line.
    """
    try:
        yield
    except (Transient, AttemptExpired, SweepIncomplete):
        raise
    except MergeConflict as conflict:
        paths = "\n".join(conflict.conflicts)
        raise AirflowFailException(f"{conflict.message}\nAll conflicting paths:\n{paths}") from conflict
    except AirflowNotFoundException as error:
        raise AirflowFailException(str(error)) from error
    except LakeopsError as error:
        raise AirflowFailException(f"{error.kind}: {error.message}") from error
