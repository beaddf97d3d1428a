"""Reading small JSON files of a namespace, which whoever may write to the bucket may have replaced.

What is longer than such a file can be is not read to its end, and what is nested too deeply is no more than text that
cannot be parsed. So a file of gigabytes takes no memory and no record is believed that a parser fell over.
"""

from __future__ import annotations

import json
from typing import Any

from lakeops.model.errors import Corrupted
from lakeops.store.base import ObjectStore

MOST_BYTES = 64 << 10
"""Of claims and owner records, which take less than 2 KiB."""


def read_small(store: ObjectStore, key: str, at_most: int = MOST_BYTES) -> bytes:
    """An object's contents. Raises ``ObjectNotFound``, and ``Corrupted`` for one that is longer than ``at_most``."""
    found = store.get_range(key, 0, at_most + 1)
    if len(found) > at_most:
        raise Corrupted(f"{store.url}/{key} is longer than {at_most:,} bytes, so it is not what lakeops writes there")
    return found


def parse_json(text: bytes | str) -> Any:  # noqa: ANN401 - JSON is anything
    """What a JSON text says. Raises ``ValueError`` also for one that is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
