"""The store of clouds on what obstore itself offers in place of a server: the same operations, the same conditions."""

from obstore.store import MemoryStore

from lakeops.store.cloud import CloudStore

_memory = MemoryStore()


class InMemory(CloudStore):
    """All of a process share one bucket, which ends with it."""

    @property
    def _client(self) -> MemoryStore:  # type: ignore[override]
        return _memory
