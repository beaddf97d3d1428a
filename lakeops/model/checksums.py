"""What a recorded checksum can prove: some are digests of the contents, others only tell versions apart.

``put`` records a SHA-256. An output directory in a bucket has the store's ETag, which is the MD5 of the contents for
objects that came in one request. ETags of several parts (``...-7``) and the change marks of imported files are no
digest of the contents.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

SOURCE_ETAG = "source_etag_is_md5"
"""Under which of a mirror's capabilities it is kept whether plain ETags are MD5 at its source."""

_DIGESTS = {"sha256": re.compile(r"[0-9a-f]{64}"), "md5": re.compile(r"[0-9a-f]{32}")}


def algorithm_of(checksum: str) -> str | None:
    """The name of the digest that a checksum looks like, as ``hashlib`` knows it; None when it is no digest."""
    return next((name for name, pattern in _DIGESTS.items() if pattern.fullmatch(checksum)), None)


def etags_are_md5(capabilities: Mapping[str, Any]) -> bool:
    """Whether plain ETags of a repository's objects are MD5: here, and where a mirror's objects come from."""
    return capabilities.get("etag_is_md5") is True and capabilities.get(SOURCE_ETAG, True) is True
