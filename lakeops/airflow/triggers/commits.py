"""Watching a branch on behalf of an asset: an event whenever its head has moved."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.triggers.base import TriggerEvent

from lakeops.airflow.events import describe
from lakeops.airflow.hook import DEFAULT_CONN_ID
from lakeops.airflow.run import made_by_airflow
from lakeops.airflow.triggers.base import RepositoryTrigger, Tick
from lakeops.model.errors import LakeopsError, RefNotFound

if TYPE_CHECKING:
    from lakeops.lake import Repository

CURSOR = "lakeops_head"
NO_BRANCH = ""
"""The cursor of a branch that does not exist: when it appears, that is a move."""


class Move(NamedTuple):
    """Where a branch's head is, and the event that its move there makes, if it makes one."""

    head: str
    event: dict[str, Any] | None


@dataclass(frozen=True)
class HeadSince:
    """Where did the head of ``branch`` move since it was at ``cursor``? None: nobody looked before."""

    branch: str
    cursor: str | None
    every: bool

    def met(self, repository: Repository) -> Move:
        """The head now, and an event when there are commits to tell of."""
        try:
            head = repository.branch(self.branch).commit_id
        except RefNotFound:
            return Move(NO_BRANCH, None)
        if self.cursor is None or head == self.cursor or not (self.every or self._outside(repository, head)):
            return Move(head, None)
        return Move(head, describe(repository, self.branch, head, since=self.cursor or None))

    def _outside(self, repository: Repository, head: str) -> bool:
        """Whether any commit on the way from the cursor to the head was made outside Airflow."""
        for commit in repository.log(head, first_parent=True):
            if commit.id == self.cursor:
                return False
            if not made_by_airflow(commit.metadata):
                return True
        return True


class LakeopsCommitTrigger(RepositoryTrigger):
    """Fires whenever a branch's head has moved by commits that were not made by Airflow's own operators.

    Those say themselves what they publish (``lakeops.airflow.events``). Commits between two looks make one event, which
    tells the range. The cursor is kept in Airflow's asset state store: a restart neither repeats nor loses an event,
    but for one that fired in the moment of the restart, which may come twice.

    Args:
        repo: the repository.
        branch: the branch. One that does not exist yet is waited for.
        asset: the asset's name. Two assets with equal triggers would share one cursor, which Airflow refuses.
        every: tell of Airflow's commits as well: for branches that another Airflow commits to.
        lakeops_conn_id: the connection.
        poll_interval: seconds between two looks.
    """

    def __init__(
        self,
        *,
        repo: str,
        branch: str,
        asset: str,
        every: bool = False,
        lakeops_conn_id: str = DEFAULT_CONN_ID,
        poll_interval: float = 10,
    ) -> None:
        super().__init__(repo=repo, lakeops_conn_id=lakeops_conn_id, poll_interval=poll_interval)
        self.branch = branch
        self.asset = asset
        self.every = every

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Where the class is, and its arguments as plain data."""
        path, kwargs = super().serialize()
        return path, {**kwargs, "branch": self.branch, "asset": self.asset, "every": self.every}

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Tick]) -> AsyncGenerator[TriggerEvent]:
        """An event for every move, for ever. Whatever goes wrong is logged and asked again."""
        cursor = await self._load()
        async for tick in shared_stream:
            if not tick.due(self.poll_interval):
                continue
            try:
                move = await tick.ask(HeadSince(self.branch, cursor, self.every))
            except (LakeopsError, AirflowNotFoundException) as error:
                self.log.warning("Cannot watch lakefs://%s/%s now: %s", self.repo, self.branch, error)
                continue
            if move.head == cursor:
                continue
            cursor = move.head
            tick.after_persisted(partial(self._save, cursor))
            if move.event is not None:
                yield TriggerEvent(move.event)  # type: ignore[no-untyped-call]

    async def _load(self) -> str | None:
        if self.asset_state_store is None:
            return None
        found = await self.asset_state_store.aget(CURSOR)
        return None if found is None else str(found)

    async def _save(self, head: str) -> None:
        if self.asset_state_store is not None:
            await self.asset_state_store.aset(CURSOR, head)
