"""A store that fails, stalls and counts on demand.

``Faults`` is the script of a test and its tally. ``FaultyStore`` plays the script around any store. Several stores may
share one script, so that the n-th effect means the n-th of the whole operation: ``open_faulty`` opens a lake with all
its stores around one script.

Crash enumeration: run the operation once and read ``faults.effects``. Then, for every n and for both ``when``, set
``faults.crash(at=n, when=...)``, run the operation into ``Crash``, call ``revive()``, and check what is left.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from lakeops.model.clock import Clock, pause
from lakeops.model.errors import StoreUnavailable
from lakeops.store.base import DeleteFailure, ObjectStore, Opened, StoredObject

if TYPE_CHECKING:
    from lakeops.lake import Lake
    from lakeops.settings import Settings

When = Literal["before", "after"]

EFFECTS = ("put", "swap", "delete", "copy_from")
"""The operations that change a store."""

READS = ("get", "get_range", "open", "open_checked")


class Crash(BaseException):
    """The end of the process, as seen from inside: passes every ``except Exception``."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call: the operation, the key (or the prefix, or the first of many keys) and the store's URL."""

    operation: str
    key: str
    url: str


@dataclass(slots=True)
class _Rule:
    operations: tuple[str, ...]
    prefix: str
    at: int | None
    when: When
    action: Callable[[Call], None]
    met: int = 0

    def concerns(self, call: Call) -> bool:
        return (not self.operations or call.operation in self.operations) and call.key.startswith(self.prefix)


class Faults:
    """The faults that a test wants, and a tally of the calls so far. Threads may share it.

    Attributes:
        calls: every call so far, in the order they began.
        counts: how many calls there were, by operation (``put``, ``get``, ``list`` ...).
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.counts: Counter[str] = Counter()
        self._rules: list[_Rule] = []
        self._lock = threading.Lock()
        self._dead = False

    # --- the script ---

    def fail(
        self,
        *operations: str,
        at: int | None = 1,
        when: When = "before",
        prefix: str = "",
        error: BaseException | None = None,
    ) -> None:
        """Let the ``at``-th matching call raise ``error``. Every matching call when ``at`` is None.

        No operations means all of them. ``after`` means that the call has its effect and only the answer is lost.
        """
        self.hook(*operations, at=at, when=when, prefix=prefix, action=lambda call: _raise(error, call))

    def delay(self, *operations: str, seconds: float, at: int | None = None, prefix: str = "") -> None:
        """Hold matching calls up before they start."""
        self.hook(*operations, at=at, prefix=prefix, action=lambda _: pause(seconds))

    def crash(self, *, at: int, when: When = "before", operations: tuple[str, ...] = EFFECTS, prefix: str = "") -> None:
        """Let the process die at the ``at``-th effect: from then on every call raises ``Crash``, until ``revive``."""
        self.hook(*operations, at=at, when=when, prefix=prefix, action=self._die)

    def hook(
        self,
        *operations: str,
        action: Callable[[Call], None],
        at: int | None = 1,
        when: When = "before",
        prefix: str = "",
    ) -> None:
        """Call ``action`` at the ``at``-th matching call, to let something happen at that very moment."""
        with self._lock:
            self._rules.append(_Rule(operations, prefix, at, when, action))

    def revive(self) -> None:
        """Act a new process: forget all rules and counts."""
        with self._lock:
            self._dead = False
            self._rules.clear()
            self.calls.clear()
            self.counts.clear()

    # --- the tally ---

    @property
    def effects(self) -> int:
        """Count the calls so far that change a store."""
        return sum(self.counts[name] for name in EFFECTS)

    def opened(self, prefix: str = "") -> int:
        """Count the calls that read, or began to read, an object whose key starts with ``prefix``."""
        return sum(call.operation in READS and call.key.startswith(prefix) for call in list(self.calls))

    def keys_opened(self, prefix: str = "") -> set[str]:
        """The keys that were read."""
        return {call.key for call in list(self.calls) if call.operation in READS and call.key.startswith(prefix)}

    def around(self, store: ObjectStore) -> ObjectStore:
        """Wrap a store in this script. ``Stores(wrap=...)`` takes this method."""
        return cast("ObjectStore", FaultyStore(store, self))

    # --- what FaultyStore calls ---

    @contextmanager
    def during(self, operation: str, key: str, url: str) -> Iterator[None]:
        """Count a call, and run the rules that are due before and after it."""
        call = Call(operation, key, url)
        with self._lock:
            self.calls.append(call)
            self.counts[operation] += 1
            due = [rule for rule in self._rules if rule.concerns(call) and self._is_due(rule)]
        self._run_rules(due, "before", call)
        yield
        self._run_rules(due, "after", call)

    def _is_due(self, rule: _Rule) -> bool:
        rule.met += 1
        return rule.at is None or rule.met == rule.at

    def _run_rules(self, due: list[_Rule], when: When, call: Call) -> None:
        if self._dead:
            raise Crash(f"the process is dead: {call.operation} {call.key}")
        for rule in due:
            if rule.when == when:
                rule.action(call)

    def _die(self, call: Call) -> None:
        self._dead = True
        raise Crash(f"killed at {call.operation} {call.key}")


class FaultyStore:
    """A wrapper of any store, with a script of faults."""

    def __init__(self, inner: ObjectStore, faults: Faults | None = None) -> None:
        self.inner = inner
        self.faults: Faults = faults or Faults()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the inner store has
        """An attribute of the inner store. A call of a method is counted, under the key that it is about."""
        found = getattr(self.inner, name)
        if not callable(found):
            return found

        def call(*args: Any, **options: Any) -> Any:  # noqa: ANN401
            first = args[0] if args else options.get("under", "")
            key = first if isinstance(first, str) else getattr(first, "key", "")
            with self.faults.during(name, key, self.url):
                return found(*args, **options)

        return call

    def open_checked(self, item: StoredObject) -> Opened:
        with ExitStack() as unless_it_fails:
            with self.faults.during("open_checked", item.key, self.url):
                opened = self.inner.open_checked(item)
                unless_it_fails.callback(opened.file.close)
            unless_it_fails.pop_all()
        return opened

    def copy_from(self, source: ObjectStore, item: StoredObject) -> bool:
        # No effect where the server cannot.
        inner = source.inner if isinstance(source, FaultyStore) else source
        with self.faults.during("copy_from", item.key, self.url):
            return self.inner.copy_from(inner, item)

    def delete(self, keys: Iterable[str]) -> list[DeleteFailure]:
        # One call, whatever the number of keys.
        doomed = [*keys]
        with self.faults.during("delete", doomed[0] if doomed else "", self.url):
            return self.inner.delete(doomed)


def open_faulty(settings: Settings, faults: Faults, *, clock: Clock | None = None) -> Lake:
    """Open a lake whose stores all play the script of ``faults``. Its catalog has no faults."""
    from lakeops.lake import Lake
    from lakeops.store.open import Stores

    lake = Lake.open(settings=settings, clock=clock)
    lake._stores = Stores(lake.store_settings, wrap=faults.around)  # noqa: SLF001 - before it opens its own
    return lake


def _raise(error: BaseException | None, call: Call) -> None:
    raise error or StoreUnavailable(f"{call.url}/{call.key}: {call.operation} was made to fail")
