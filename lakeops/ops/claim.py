"""The claim: the file that says which repository a storage namespace is of.

It is written before the catalog has the repository's row, so a row stands for a namespace that was this repository's
from the beginning, and no two lakes ever write to one. A crash before the row leaves a claim without a repository:
the same catalog takes it up again when the repository is created once more. Replication brings the claim along.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from lakeops.model.errors import AlreadyExists, NamespaceTaken, ObjectNotFound
from lakeops.model.owner import Identity
from lakeops.model.records import Repository
from lakeops.model.text import excerpt
from lakeops.store import layout
from lakeops.store.base import ObjectStore

FORMAT = 1
"""The version of the namespace's layout and file formats."""

CLAIM_ID = "claim_id"
"""Under which of a repository's capabilities its claim's id is kept: replicas of its namespace are known by it."""

CATALOG = "catalog"
"""Under which key a claim says which catalog made it."""


def claim_of(repository: Repository) -> dict[str, Any]:
    """What the claim file in the repository's namespace, and in every replica of it, says."""
    return {
        "format": FORMAT,
        "repository": repository.id,
        "split": asdict(repository.split),
        "id": repository.capabilities.get(CLAIM_ID),
    }


def claim_text(repository: Repository, identity: Identity) -> bytes:
    """The claim as this catalog writes it."""
    return json.dumps({**claim_of(repository), CATALOG: identity.catalog}, indent=2).encode()


def claim(store: ObjectStore, repository: Repository, identity: Identity) -> None:
    """Claim the namespace for a repository, unless it has this very claim. Raises ``NamespaceTaken``."""
    with suppress(AlreadyExists):
        if read_claim(store) is None:
            store.put(layout.CLAIM, claim_text(repository, identity), if_absent=True, content_type="application/json")
    # Read again: where a server ignores the condition, a later claim is in place of this one.
    check_claim(store, repository)


def check_claim(store: ObjectStore, repository: Repository) -> None:
    """Refuse a namespace that says that it is another repository's. Raises ``NamespaceTaken``."""
    found = read_claim(store)
    if found is not None and not is_claim_of(found, repository):
        raise NamespaceTaken(
            f"storage namespace {store.url!r} was taken by another repository, {excerpt(found.get('repository'))}: "
            "choose an empty location"
        )


def read_claim(store: ObjectStore) -> dict[str, Any] | None:
    """What the claim in a namespace says; None when there is none, empty when it cannot be read."""
    try:
        found = json.loads(store.get(layout.CLAIM))
    except ObjectNotFound:
        return None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def is_claim_of(found: dict[str, Any], repository: Repository) -> bool:
    """Whether a claim is this repository's. A replica keeps its source's, whose name may be another."""
    expected = claim_of(repository)
    name = "repository" if None in (found.get("id"), expected["id"]) else "id"
    return bool(found.get(name) == expected[name])
