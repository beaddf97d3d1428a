"""Failures as people read them: a user's mistake is one line of the task's log, without a traceback.

Airflow's task runner logs every exception with a traceback, and no exception of its own leaves it out. Its log goes
through structlog, though, whose processors are public and may be added to. So the failures of this module put a
processor in front of Airflow's: it writes their message, and drops their traceback. The task fails as it would without
it, and callbacks, listeners and mails get the exception. Where Airflow logs otherwise one day, tracebacks are back, and
nothing else changes (``docs/adr/0063-mistakes-are-one-line.md``).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

from lakeops.airflow.compat import AirflowFailException, AirflowNotFoundException, AirflowSensorTimeout
from lakeops.airflow.links import running_links
from lakeops.model.errors import (
    AttemptExpired,
    InvalidInput,
    LakeopsError,
    MergeConflict,
    NotFound,
    PreconditionFailed,
    SweepIncomplete,
    Transient,
)


class _Plain:
    """A failure whose message says all that there is to say."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        _write_plainly()


class LakeopsFailure(_Plain, AirflowFailException):
    """Fails the task without retry. The log has its message in place of a traceback."""


class LakeopsTimeout(_Plain, AirflowSensorTimeout):
    """Fails a sensor that has waited too long. The log has its message in place of a traceback."""


def _write_plainly() -> None:
    """Put the processor in front of those that write the log of this process, once.

    The list is changed in place, because Airflow's loggers hold on to it. structlog's ``capture_logs`` does so, too.
    """
    import structlog

    processors = structlog.get_config()["processors"]
    if isinstance(processors, list) and without_traceback not in processors:
        processors.insert(0, without_traceback)


def without_traceback(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:  # noqa: ANN401, ARG001 - structlog's
    """A processor of structlog's: an event about a plain failure says its message, and has no traceback."""
    given = event.get("exc_info")
    failure = given if isinstance(given, BaseException) else sys.exc_info()[1]
    if given and isinstance(failure, (LakeopsFailure, LakeopsTimeout)):
        del event["exc_info"]
        event["event"] = f"{event['event']}: {failure}"
    return event


@contextmanager
def failing_at_once(arguments: Mapping[str, object] | None = None) -> Iterator[None]:
    """Make errors that would come again fail the task without retry. Errors that may pass are retried.

    The message of a merge conflict lists every conflicting path, one a line. A user's mistake is a ``LakeopsFailure``,
    which names the page to look at where the task has one.

    Args:
        arguments: the task's, by name. The message of a mistake begins with the argument whose value it quotes.
    """
    try:
        yield
    except (Transient, AttemptExpired, SweepIncomplete):
        raise
    except MergeConflict as conflict:
        paths = "\n".join(conflict.conflicts)
        raise LakeopsFailure(f"{conflict.message}{running_links()}\nAll conflicting paths:\n{paths}") from None
    except AirflowNotFoundException as error:
        raise LakeopsFailure(str(error)) from None
    except (InvalidInput, NotFound, PreconditionFailed) as error:  # a user's mistake: its message says it all
        field = _field_of(error.message, arguments or {})
        raise LakeopsFailure(f"{error.kind}: {field}{error.message}{running_links()}") from None
    except LakeopsError as error:  # damage, say: where it was met is worth showing
        raise AirflowFailException(f"{error.kind}: {error.message}") from error


def _field_of(message: str, arguments: Mapping[str, object]) -> str:
    """The arguments whose values a message quotes, as its beginning; nothing when it says their names itself."""
    quoted = [name for name, value in arguments.items() if value and isinstance(value, str) and repr(value) in message]
    names = [name for name in quoted if name not in {"repo", "lakeops_conn_id"}]  # these say where, in any message
    if not names or any(re.search(rf"\b{name.replace('_', '[_ ]')}\b", message) for name in names):
        return ""
    return f"{' or '.join(names)}: "
