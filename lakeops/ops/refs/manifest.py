"""The manifest of a dump: which files make it up. It is the one file that is ever replaced.

A dump is a whole part and any number of later ones. Parts are written first, each under a fresh name. The manifest that
names them takes the place of the one before in one step, so whoever is killed leaves the dump as it was. Whatever is
read here may be damaged or somebody else's, so sizes are bounded before anything is decoded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Any

from lakeops.catalog.records import Cut, Since
from lakeops.model.errors import ObjectNotFound
from lakeops.model.ids import LATEST
from lakeops.store.base import ObjectStore
from lakeops.store.layout import REFS, dump_folder
from lakeops.store.small import parse_json, read_small

FORMAT = 1
MAX_BYTES = 4 << 20
_PART = re.compile(r"\d{14}[0-9a-v]{20}\.jsonl\.gz")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MANIFEST = "manifest.json"
_MOST = 1 << 63
_LATEST = LATEST * 1_000_000


@dataclass(frozen=True, slots=True)
class DumpFile:
    """A file of records: gzip, one JSON document a line.

    Attributes:
        file: its name.
        sha256: the digest of its bytes.
        size_bytes: its size.
        records: how many lines it has.
    """

    file: str
    sha256: str
    size_bytes: int
    records: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a dump is made of.

    Attributes:
        repository: the repository's name.
        namespace: the storage namespace that it was made in.
        cut: when it was made, and up to which numbers of its catalog it is whole.
        parts: its files, the whole one first.
        retired: files of the dump before, which the next whole one removes.
    """

    repository: str
    namespace: str
    cut: Cut
    parts: tuple[DumpFile, ...]
    retired: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """The bytes of all files of the dump."""
        return sum(part.size_bytes for part in self.parts)

    def followed_by(self, cut: Cut, part: DumpFile) -> Manifest:
        """This manifest with one more file."""
        return replace(self, cut=cut, parts=(*self.parts, part))

    def to_text(self) -> str:
        """The manifest as it is written, with its own digest."""
        values = {"format": FORMAT, **asdict(self)}
        return json.dumps({**values, "digest": _digest_of(values)}, sort_keys=True)


def key_of(folder: str, name: str = _MANIFEST) -> str:
    """The key of a file of the dump in a folder; of its manifest when no name is given."""
    return folder + name


def read_text(store: ObjectStore, folder: str) -> str | None:
    """A folder's manifest as it is. None when there is none. Raises ``Corrupted`` for one that is too long."""
    try:
        return read_small(store, key_of(folder), MAX_BYTES).decode("utf-8", "replace")
    except ObjectNotFound:
        return None


def parse(text: str) -> Manifest | None:
    """The manifest that a text holds. None when it is none, or not as it was written."""
    try:
        values = parse_json(text)
        if values["format"] != FORMAT or values.pop("digest") != _digest_of(values):
            return None
        cut, since = values["cut"], values["cut"]["since"]
        numbers = (cut["at"], since["moves"], since["records"], since["digest"])
        parts = tuple(_part(one) for one in values["parts"])
        retired = tuple(values["retired"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    texts = (values["repository"], values["namespace"], *retired)
    fine = all(type(number) is int and 0 <= number < _MOST for number in numbers) and cut["at"] <= _LATEST
    fine = fine and all(type(one) is str for one in texts)
    if not fine or not parts or not all(_PART.fullmatch(name) for name in (*retired, *(one.file for one in parts))):
        return None
    return Manifest(texts[0], texts[1], Cut(numbers[0], Since(*numbers[1:])), parts, retired)


def own(store: ObjectStore) -> str:
    """The folder of the dump that this namespace's own catalog writes."""
    return dump_folder(store.url)


def folders(store: ObjectStore) -> list[str]:
    """The folders of all dumps in a namespace: its own, and those that replication brought along."""
    keys = (item.key.removeprefix(REFS) for item in store.list(REFS))
    return sorted({f"{REFS}{key.partition('/')[0]}/" for key in keys if key.endswith("/" + _MANIFEST)})


def _part(values: Mapping[str, Any]) -> DumpFile:
    part = DumpFile(values["file"], values["sha256"], values["size_bytes"], values["records"])
    if not _DIGEST.fullmatch(part.sha256) or type(part.size_bytes) is not int or type(part.records) is not int:
        raise ValueError("no part")
    return part


def _digest_of(values: Mapping[str, Any]) -> str:
    return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
