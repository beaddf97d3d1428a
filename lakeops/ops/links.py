"""Putting small changes of several threads on a branch in one transaction.

While one thread's transaction runs, others get in line. The next one to go takes all of them along. So nobody waits for
company, a single change is as quick as without this, and many at once share a transaction and its write to the disk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

from lakeops.catalog.records import Staged
from lakeops.model.errors import AttemptExpired, CatalogUnavailable
from lakeops.model.names import HeldRepository

if TYPE_CHECKING:
    from lakeops.catalog.open import Catalog

MOST = 200
"""Changes that share a transaction, at most."""

INTERRUPTED = (
    "the thread that staged this change with others was interrupted; look whether it is there, or put it again"
)


@dataclass(frozen=True)
class _Link:
    """A change that waits to be staged, and since when its object has been there."""

    row: Staged
    started: datetime
    done: Future[None] = field(default_factory=Future)


class Links:
    """The changes that wait, by storage namespace and branch. Threads share it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._turns: defaultdict[tuple[str, str], Lock] = defaultdict(Lock)
        self._waiting: defaultdict[tuple[str, str], list[_Link]] = defaultdict(list)

    def stage(self, catalog: Catalog, repository: HeldRepository, branch: str, row: Staged, started: datetime) -> None:
        """Stage a change, perhaps with those of other threads. Raises what ``Catalog.put_staged`` raises for it."""
        mine, place = _Link(row, started), (repository.namespace, branch)
        stage = partial(_stage, catalog, repository, branch)
        with self._lock:
            self._waiting[place].append(mine)
            turn = self._turns[place]
        with turn:
            while not mine.done.done():
                self._stage_waiting(stage, place)
        mine.done.result()

    def _stage_waiting(self, stage: Callable[[list[_Link]], None], place: tuple[str, str]) -> None:
        """Stage the changes that have waited longest."""
        with self._lock:
            links = self._waiting[place][:MOST]
            del self._waiting[place][:MOST]
        try:
            stage(links)
        except AttemptExpired:
            # The oldest one decides, and only it may be too old. Nothing was staged.
            for link in links:
                _settle(link, partial(stage, [link]))
        except BaseException as error:
            # Nobody may try again for the others: whether their changes were staged is not known.
            failure = error if isinstance(error, Exception) else CatalogUnavailable(INTERRUPTED)
            for link in links:
                link.done.set_exception(failure)
            if failure is not error:
                raise
        else:
            for link in links:
                link.done.set_result(None)


def _settle(link: _Link, stage: Callable[[], None]) -> None:
    try:
        stage()
    except Exception as error:  # noqa: BLE001 - it belongs to the thread whose change it is
        link.done.set_exception(error)
    else:
        link.done.set_result(None)


def _stage(catalog: Catalog, repository: HeldRepository, branch: str, links: list[_Link]) -> None:
    # Of one path the last one stays: it got in line after the others, and none of them has been acknowledged yet.
    rows = {link.row.path: link.row for link in links}
    catalog.put_staged(repository, branch, list(rows.values()), started=min(link.started for link in links))
