"""Whose storage namespace is this? The claim file in it tells, and replication brings the source's along.

Nothing wrong is ever shown for want of it: what is promoted is proved by digests. It turns an endless wait for objects
that will never come into an error that says why.
"""

from __future__ import annotations

import json
from typing import Any

from lakeops.model.errors import NotAReplica, ObjectNotFound
from lakeops.model.records import Repository
from lakeops.ops.claim import claim_of
from lakeops.store import layout
from lakeops.store.base import ObjectStore


def check_claim(store: ObjectStore, source: Repository) -> None:
    """Refuse a namespace that another repository has claimed. One without a claim may be a replica that is on its way.

    Raises:
        NotAReplica: the claim in it is not the source's.
    """
    try:
        found = json.loads(store.get(layout.CLAIM))
    except ObjectNotFound:
        return
    except ValueError:
        found = {}
    expected = claim_of(source)
    if not _agree(found, expected):
        other = found.get("repository") if isinstance(found, dict) else None
        whose = f"repository {other!r}" if other is not None else "something else"
        raise NotAReplica(
            f"storage namespace {store.url!r} belongs to {whose}, and is no replica of {source.id!r}: "
            "replicate the source's namespace there, or choose another one"
        )


def _agree(found: Any, expected: dict[str, Any]) -> bool:  # noqa: ANN401 - whatever the file holds
    """Whether two claims can be of one repository; what either leaves out is no difference."""
    return isinstance(found, dict) and all(
        found[name] == value for name, value in expected.items() if found.get(name) is not None and value is not None
    )
