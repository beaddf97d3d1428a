"""The claim: the file that tells other lakes whose namespace this is."""

from __future__ import annotations

import json
from collections.abc import Iterator

from lakeops.model.errors import LakeopsError, ObjectNotFound
from lakeops.model.findings import Finding, found
from lakeops.model.records import Repository
from lakeops.model.text import excerpt
from lakeops.ops.claim import claim_of, is_claim_of
from lakeops.store.base import ObjectStore
from lakeops.store.layout import CLAIM


def check_claim(store: ObjectStore, repository: Repository) -> Iterator[Finding]:
    """Whether the namespace says that it is this repository's, with the ranges cut as the catalog says."""
    try:
        claim = json.loads(store.get(CLAIM))
    except ObjectNotFound:
        yield found("claim_missing", CLAIM, "the file is not there")
        return
    except (LakeopsError, ValueError) as error:
        yield found("claim_mismatch", CLAIM, f"the file cannot be read: {' '.join(str(error).split())}")
        return
    expected = claim_of(repository)
    if not isinstance(claim, dict) or not is_claim_of(claim, repository):
        other = excerpt(claim.get("repository")) if isinstance(claim, dict) else "nothing"
        yield found("claim_mismatch", CLAIM, f"the namespace belongs to {other}, by this file")
    elif claim.get("split") != expected["split"]:
        yield found("claim_mismatch", CLAIM, "it was created with ranges cut in another way than the catalog says")
