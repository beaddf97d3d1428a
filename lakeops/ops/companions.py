"""Threads of one process that publish to one branch, in one chain.

Each plans in its turn, on the commit of the one before, which need not be published yet. Files travel meanwhile, and so
does the publish transaction of those who planned before. Whoever gets to publish next takes everybody along who has
planned by then, in one transaction. So nobody waits for company, and nobody plans in vain because another thread of the
same process was first.

Where a transaction publishes nothing, nothing of what was planned on it is published either. Each of these goes alone,
as if it had lost a race. That costs time and nothing else: the publish transaction decides, as it does for everyone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

from lakeops.catalog.records import Publish
from lakeops.model.errors import BranchMoved, CatalogError, CatalogUnavailable, HooksChanged
from lakeops.model.records import Commit

if TYPE_CHECKING:
    from lakeops.catalog.open import Catalog
    from lakeops.store.base import ObjectStore
    from lakeops.store.nearby import Travelling

INTERRUPTED = "the thread that published this commit with others was interrupted; look whether it is there"


class GoAlone(Exception):
    """Nothing was published. The caller tries without companions.

    Attributes:
        after: what the plan was made behind. Once it is done, its commit is published or never will be.
    """

    def __init__(self, after: Future[Commit] | None = None) -> None:
        super().__init__()
        self.after = after


@dataclass(frozen=True)
class Ahead:
    """What a plan builds on.

    Attributes:
        head: the commit to follow. None where it is the branch's head.
        coming: commits that this process is going to publish before, ``head`` the last of them.
        store: where the plan reads and writes. What it writes travels in the background.
    """

    head: Commit | None
    coming: tuple[Commit, ...]
    store: ObjectStore


Planned = Callable[[Ahead], Publish]


class Companions:
    """The chains of a process, by storage namespace and branch. Threads share it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._lines: dict[tuple[str, str], _Line] = {}

    def busy(self, place: tuple[str, str]) -> bool:
        """Whether somebody is publishing to the branch, so that there is time until one's turn comes."""
        with self._lock:
            line = self._lines.get(place)
        return line is not None and line.turn.taken

    def publish(self, catalog: Catalog, place: tuple[str, str], store: ObjectStore, plan: Planned) -> Commit:
        """Publish what ``plan`` asks for, perhaps with others. ``place`` is the storage namespace and the branch.

        Raises:
            GoAlone: nothing was published, because of others or because ``plan`` said so.
            BranchMoved: others moved the branch.
            Anything that ``plan`` raises on a head that is published, and that ``Catalog.publish`` raises.
        """
        with self._lock:
            line = self._lines.setdefault(place, _Line())
        try:
            with line.turn:
                chain = line.join(store)
                try:
                    mine = chain.plan(plan)
                except BaseException:
                    line.leave(chain)
                    raise
        except GoAlone as error:
            if error.after is not None:
                error.after.exception()  # alone means: on what is published
            raise
        try:
            return chain.publish(catalog, mine)
        finally:
            chain.give_up(mine)
            line.leave(chain)


class _Turn:
    """A lock that serves threads in the order in which they came.

    Attributes:
        taken: somebody holds it.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: deque[Lock] = deque()
        self.taken = False

    def __enter__(self) -> None:
        with self._lock:
            if not self.taken:
                self.taken = True
                return
            mine = Lock()
            mine.acquire()
            self._waiting.append(mine)
        try:
            mine.acquire()
        except BaseException:  # the thread was interrupted, perhaps when its turn had come already
            with self._lock:
                came = mine not in self._waiting
                if not came:
                    self._waiting.remove(mine)
            if came:
                self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self.taken = False


class _Line:
    """Those who publish to one branch, and the chain that they build on."""

    def __init__(self) -> None:
        self.turn = _Turn()
        self._lock = Lock()
        self._chain: _Chain | None = None

    def join(self, store: ObjectStore) -> _Chain:
        """The chain that is under way, or a new one."""
        from lakeops.store.nearby import Travelling

        with self._lock:
            if self._chain is None or self._chain.broken:
                self._chain = _Chain(Travelling(store))
            self._chain.members += 1
            return self._chain

    def leave(self, chain: _Chain) -> None:
        """One fewer needs the chain. The last one ends it."""
        with self._lock:
            chain.members -= 1
            ended = not chain.members
            if ended and self._chain is chain:
                self._chain = None
        if ended:
            chain.store.close()


@dataclass(frozen=True, eq=False)
class _Member:
    """What a thread wants published, and the files that it takes."""

    asked: Publish
    files: list[Future[object]]
    done: Future[Commit] = field(default_factory=Future)


class _Chain:
    """Commits that are planned one on the other.

    Attributes:
        members: threads that plan on it or wait for it.
        broken: one of its transactions published nothing.
    """

    def __init__(self, store: Travelling) -> None:
        self.store = store
        self.members = 0
        self.broken = False
        self._lock = Lock()
        self._publishing = Lock()
        self._waiting: list[_Member] = []
        self._coming: list[Commit] = []
        self._last: Future[Commit] | None = None

    def plan(self, plan: Planned) -> _Member:
        """Plan behind all that is coming. The caller's turn has come."""
        from lakeops.store.nearby import as_store

        with self._lock:
            coming, last = tuple(self._coming), self._last
        try:
            asked = plan(Ahead(coming[-1] if coming else None, coming, as_store(self.store)))
        except Exception as error:
            if coming:  # a conflict with a commit that nobody may ever see, for one
                raise GoAlone(last) from error
            raise
        mine = _Member(asked, self.store.taken())
        with self._lock:
            if self.broken:
                raise GoAlone
            self._waiting.append(mine)
            self._last = mine.done
            self._coming.append(asked.commit)
        return mine

    def publish(self, catalog: Catalog, mine: _Member) -> Commit:
        """The commit, once a transaction has published it."""
        with self._publishing:
            if not mine.done.done():
                self._publish_planned(catalog)
        return mine.done.result()

    def give_up(self, mine: _Member) -> None:
        """See that nobody waits for a commit whose thread was interrupted before any transaction took it."""
        with self._lock:
            waits = mine in self._waiting
            if waits:
                self._waiting.remove(mine)
        if waits:
            self._break([mine], GoAlone())

    def _publish_planned(self, catalog: Catalog) -> None:
        """Publish what has been planned by now."""
        with self._lock:
            together, self._waiting = self._waiting, []
        try:
            for member in together:
                for file in member.files:
                    file.result()
            commits = _published(catalog, [member.asked for member in together])
        except BaseException as error:
            self._break(together, error)
            if not isinstance(error, Exception):
                raise
            return
        with self._lock:
            del self._coming[: len(together)]
        for member, commit in zip(together, commits, strict=True):
            member.done.set_result(commit)
        if commits[-1].id != together[-1].asked.commit.id:  # an earlier call under its key had published it
            self._break([], BranchMoved("a commit was published before"))

    def _break(self, together: list[_Member], error: BaseException) -> None:
        """Tell those who wait that nothing of theirs was published."""
        with self._lock:
            self.broken = True
            behind, self._waiting, self._coming = self._waiting, [], []
        # A transaction that began to commit may have happened, and nobody can tell.
        unknown = not isinstance(error, Exception) or isinstance(error, CatalogError | CatalogUnavailable)
        for member in together:
            if not isinstance(error, Exception):
                member.done.set_exception(CatalogUnavailable(INTERRUPTED))
            elif unknown or (len(together) == 1 and not isinstance(error, HooksChanged)):
                member.done.set_exception(error)
            else:
                member.done.set_exception(_nothing_of(error))
        for member in behind:
            member.done.set_exception(_nothing_of(error))


def _published(catalog: Catalog, asked: list[Publish]) -> list[Commit]:
    return [catalog.publish(asked[0])] if len(asked) == 1 else catalog.publish_together(asked)


def _nothing_of(error: BaseException) -> Exception:
    """What a thread is told whose commit was not published because of another one's."""
    return BranchMoved(error.message) if isinstance(error, BranchMoved) else GoAlone()
