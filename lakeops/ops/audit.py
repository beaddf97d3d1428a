"""Who changed what, and when: the records of every transition, also of repositories that are gone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice

from lakeops.catalog.open import Catalog
from lakeops.model.clock import unix_seconds
from lakeops.model.errors import InvalidInput
from lakeops.model.records import AuditRecord
from lakeops.model.requests import check_amount, check_asked
from lakeops.model.text import excerpt

_PAGE = 1000


def audit(
    catalog: Catalog,
    repository_id: str | None = None,
    *,
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    actor: str | None = None,
    amount: int | None = None,
) -> Iterator[AuditRecord]:
    """The records of transitions, newest first, read a page at a time.

    Args:
        catalog: the lake's catalog.
        repository_id: only those of one repository. It may be deleted.
        since: not those before this moment. A text is ISO 8601. Without a zone it is UTC.
        until: not those at this moment or later.
        actor: only those of this user or database login.
        amount: at most so many.

    Raises:
        InvalidInput: a moment or amount makes no sense.
    """
    left = None if amount is None else check_amount(amount, "the amount")
    first, last = (None if moment is None else unix_seconds(_parse_time(moment)) for moment in (since, until))
    if actor is not None:
        check_asked(actor, "an actor")
    if repository_id is not None:
        check_asked(repository_id, "a repository")

    def every() -> Iterator[AuditRecord]:
        below: tuple[int, int] | None = None
        size = _PAGE if left is None else min(_PAGE, left)
        while True:
            page = catalog.audit(repository_id, since=first, until=last, actor=actor, below=below, limit=size)
            yield from page
            if len(page) < size or not page:
                return
            below = (page[-1].at, page[-1].sequence)

    return islice(every(), left)


def _parse_time(given: datetime | str) -> datetime:
    try:
        moment = datetime.fromisoformat(given) if isinstance(given, str) else given
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    except (ValueError, AttributeError):
        raise InvalidInput(f"{excerpt(given)} is no moment; give one such as 2026-01-31 or 2026-01-31T12:00") from None
