"""A queue for each branch of the staged rows of one process. It checks the branch once and links rows together.

A put asks its branch's queue whether the branch takes changes, uploads, and joins the queue with its row. While one
thread's transaction runs, others join. The next one links all rows that wait, in one transaction. So a single put is as
quick as alone, and many at once share a transaction. Rows of a ``Batch`` wait until they are many, or somebody needs
them on the branch (``StageQueue.flush_pending``). Rows keep their order: of one path the last row wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from threading import Lock

from lakeops.catalog.open import Catalog
from lakeops.catalog.records import Staged
from lakeops.model.errors import AttemptExpired, Transient
from lakeops.model.names import HeldRepository

MOST_OBJECTS, MOST_BYTES = 500, 64 << 20
"""Rows of one transaction at most; and the bytes of objects whose rows a batch lets wait."""


FRESH = timedelta(milliseconds=100)
"""How long the answer to a check is reused."""


INTERRUPTED = (
    "the thread that staged this change with others was interrupted; look whether it is there, or put it again"
)


@dataclass(frozen=True, eq=False)
class _Pending:
    """A row that waits to be linked, and when its upload started. No thread waits for a row with an owner."""

    row: Staged
    started: datetime
    owner: object = None
    done: Future[None] = field(default_factory=Future)


class StageQueue:
    """The rows that wait for one branch. The threads of an open lake share it."""

    def __init__(self, catalog: Catalog, repository: HeldRepository, branch: str) -> None:
        self._catalog = catalog
        self._repository = repository
        self._branch = branch
        self._checking = Lock()
        self._checked: tuple[datetime, datetime] | None = None
        self._turn = Lock()  # held while rows are linked; taken before ``_lock``
        self._lock = Lock()
        self._pending: list[_Pending] = []

    def check(self) -> datetime:
        """Give the catalog's time when the branch may be staged to: the answer is at most a tenth of a second old.

        Threads that ask while one asks the catalog wait for its answer. The transaction that links decides again: an
        early answer spares an upload in vain. An error is not kept. Raises as ``catalog.staging.staging_time``.
        """
        found = self._fresh()
        if found is None:
            with self._checking:
                found = self._fresh()  # whoever had the turn before may have asked
                if found is None:
                    asked = self._catalog.clock.now()
                    found = self._catalog.staging.staging_time(self._repository, self._branch)
                    self._checked = asked, found
        return found

    def _fresh(self) -> datetime | None:
        checked = self._checked
        return None if checked is None or abs(self._catalog.clock.now() - checked[0]) >= FRESH else checked[1]

    def stage(self, row: Staged, started: datetime) -> None:
        """Link a row, with all that wait. Raises as ``catalog.staging.put_staged``."""
        mine = _Pending(row, started)
        with self._lock:
            self._pending.append(mine)
        with self._turn:
            while not mine.done.done():
                try:
                    self._link_some()
                except BaseException:
                    self._drop(lambda one: one is mine)
                    raise
        mine.done.result()

    def hold(self, row: Staged, started: datetime, owner: object, note: Callable[[Future[None]], object]) -> None:
        """Let a row wait for its owner, until rows are many. Raises as ``stage``; then it waits on.

        ``note`` is called once it is linked, or came too late.
        """
        mine = _Pending(row, started, owner)
        mine.done.add_done_callback(note)
        with self._lock:
            self._pending.append(mine)
        if self._is_due():
            with self._turn:
                if self._is_due():  # or the thread that had the turn took it
                    self._link_some()

    def flush_pending(self) -> None:
        """Link all rows that wait now, before a change that has to come after them. Raises as ``stage``.

        After an error the caller's change must not go on: an older row would cover it. Rows with an owner wait on.
        """
        with self._turn:
            for _ in range(0, len(self._pending), MOST_OBJECTS):
                self._link_some()

    def leave(self, owner: object) -> None:
        """Forget the rows of an owner that are not linked yet."""
        with self._turn:
            self._drop(lambda one: one.owner is owner)

    def _drop(self, gone: Callable[[_Pending], bool]) -> None:
        with self._lock:
            self._pending = [one for one in self._pending if not gone(one)]

    def _is_due(self) -> bool:
        with self._lock:
            sizes = [one.row.entry.size_bytes for one in self._pending if one.row.entry is not None]
            return len(self._pending) >= MOST_OBJECTS or sum(sizes) >= MOST_BYTES

    def _link_some(self) -> None:
        """Link the rows that have waited longest. The caller has the turn.

        After a failure nobody knows whether they are there, and newer ones may have been put. So nobody tries again for
        threads that wait. Rows with an owner go back to where they were.
        """
        with self._lock:
            some, self._pending = self._pending[:MOST_OBJECTS], self._pending[MOST_OBJECTS:]
        try:
            if some:
                self._link_or_refuse(some)
        except BaseException as error:
            failure = error if isinstance(error, Exception) else Transient(INTERRUPTED, kind="catalog_unavailable")
            rest = [one for one in some if not one.done.done()]
            with self._lock:
                self._pending[:0] = [one for one in rest if one.owner is not None]
            for one in rest:
                if one.owner is None:
                    one.done.set_exception(failure)
            raise

    def _link_or_refuse(self, some: Sequence[_Pending]) -> None:
        """Link rows together, or one by one when the oldest is too old: each that is too old is refused alone."""
        with suppress(AttemptExpired):
            self._put_staged(some)
            for one in some:
                one.done.set_result(None)
            return
        for one in some:
            try:
                self._put_staged([one])
            except AttemptExpired as error:
                one.done.set_exception(error)
            else:
                one.done.set_result(None)

    def _put_staged(self, some: Sequence[_Pending]) -> None:
        rows = {one.row.path: one.row for one in some}  # of one path the last one stays: none has been read yet
        started = min(one.started for one in some)
        self._catalog.staging.put_staged(self._repository, self._branch, list(rows.values()), started=started)
