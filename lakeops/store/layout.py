"""The layout of a storage namespace. The one place that knows these names.

::

    data/<partition>/<minute, second><id>                  objects, and directories of objects
    data/tables/<id>/...                                   files of one table, which engines write
    _lakefs/repository.json                                the claim: format and repository of this namespace
    _lakefs/owner/<digest of the namespace's URL>.json     which catalog may delete here
    _lakefs/ranges/<range id>-<attempt>.parquet
    _lakefs/metaranges/<metarange id>-<attempt>.parquet
    _lakefs/refs/<digest of the namespace's URL>/...       dumps of the catalog's records
    _lakefs/retention/gc/<mark id>/...                     garbage collection's marks and reports
    _lakefs/tasks/<run id>/...                             what tasks carry to workers, removed again
    _lakefs/probe/<id>                                     a probe's objects, removed again

Partitions sort by time (the UTC hour), so that listings can be cut by age and parallelised. Every name of an object,
of an attempt and of a mark says in which second what wrote it began, by the catalog's clock: garbage collection takes
a file's age from there and not from the store, whose clock is another one. A table's directory is written to for years,
so the age of a file in it is the store's word.
"""

from __future__ import annotations

import re
from datetime import datetime
from hashlib import sha256
from urllib.parse import quote, unquote

from lakeops.model.clock import Ids

DATA = "data/"
METADATA = "_lakefs/"
CLAIM = "_lakefs/repository.json"
OWNER = "_lakefs/owner/"
REFS = "_lakefs/refs/"
RANGES = "_lakefs/ranges/"
METARANGES = "_lakefs/metaranges/"
GC = "_lakefs/retention/gc/"
TASKS = "_lakefs/tasks/"
PROBE = "_lakefs/probe/"
MANAGED = ("data", "_lakefs")
"""The folders of a namespace that its repository writes and deletes in."""

TABLES = "data/tables/"
OBJECT_NAME = r"^data/(\d{10}/(\d{4})?[0-9a-v]{20}|tables/[0-9a-v]{20})(/|$)"
"""Names of objects, as a regular expression: anything else below ``data/`` is somebody else's."""

PLAIN = r"[A-Za-z0-9._~/=-]*"
"""Keys that are spelled alike in a URL, as a regular expression."""

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://")


def partition(moment: datetime) -> str:
    """The partition that objects written at this moment go to: the UTC hour, ``YYYYMMDDHH``."""
    return moment.strftime("%Y%m%d%H")


def object_key(moment: datetime, ids: Ids) -> str:
    """A fresh key for one object, or a directory of objects, of an attempt that began at this moment, to the second."""
    return f"{DATA}{partition(moment)}/{moment:%M%S}{ids.new()}"


def attempt(moment: datetime, ids: Ids) -> str:
    """A fresh name for an attempt that began at this moment: the second, and what tells it from others.

    Metadata files carry it, so that their age is known from their names.
    """
    return f"{moment:%Y%m%d%H%M%S}{ids.new()}"


def owner_key(namespace: str) -> str:
    """The key of the record that says which catalog may delete in a namespace, given the namespace's URL.

    The URL is in the name, so a record that replication brings along from another namespace takes no other's place.
    """
    return f"{OWNER}{_digest(namespace)}.json"


def dump_folder(namespace: str) -> str:
    """The folder of the dumps of a namespace, given its URL. Like owner records, they overwrite no other's."""
    return f"{REFS}{_digest(namespace)}/"


def _digest(namespace: str) -> str:
    return sha256(namespace.encode()).hexdigest()[:32]


def range_key(file: str) -> str:
    """The key of a range file, given its name (``<range id>-<attempt>.parquet``)."""
    return RANGES + file


def metarange_key(file: str) -> str:
    """The key of a metarange file, given its name (``<metarange id>-<attempt>.parquet``)."""
    return METARANGES + file


def attempt_file(content_id: str, attempt: str) -> str:
    """The name of a metadata file: what it holds, and which attempt wrote it, so that no name is used twice."""
    return f"{content_id}-{attempt}.parquet"


def is_absolute(address: str) -> bool:
    """Whether a physical address points outside the namespace (an imported object)."""
    return _SCHEME.match(address) is not None


def absolute(namespace: str, address: str) -> str:
    """The address as a full URL."""
    if is_absolute(address):
        return address
    if namespace.startswith("file://") and not re.fullmatch(PLAIN, address):
        address = quote_path(address)
    return f"{namespace}/{address}"


def relative(namespace: str, address: str) -> str:
    """The address as it is stored: relative when it lies in the namespace, unchanged otherwise."""
    root = namespace + "/"
    if not address.startswith(root):
        return address
    key = address[len(root) :]
    return unquote(key) if namespace.startswith("file://") else key


def quote_path(path: str) -> str:
    """A path as it stands in a ``file://`` URL: only what a URL cannot hold is percent-encoded."""
    return quote(path, safe="/:@!$&'()*+,;=~")
