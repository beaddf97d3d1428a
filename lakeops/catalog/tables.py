"""The catalog's tables as statements use them: what the SQLModel classes of ``models`` come to.

Importing what maps classes, and mapping them, takes a quarter of a short command's time, and nothing here maps a row.
So the tables are kept beside the bytecode, as bytecode is: made of the classes, and made again once the classes or
SQLAlchemy have changed. Whoever could write there could write bytecode.
"""

from __future__ import annotations

import os
import pickle
import sys
from contextlib import suppress
from hashlib import sha256
from importlib.util import cache_from_source
from pathlib import Path

import sqlalchemy
from sqlalchemy import MetaData

PREFIX = "lakeops_"
VERSION_TABLE = "lakeops_version"
"""Where alembic keeps the revision: not ``alembic_version``, which a neighbour may own."""

_CLASSES = Path(__file__).with_name("models.py")


def load(classes: Path = _CLASSES) -> MetaData:
    """The tables, as they were kept or of the classes.

    Args:
        classes: the source of the classes; what is kept goes where its bytecode does.
    """
    try:
        file = Path(cache_from_source(str(classes))).with_suffix(".tables")
        origin = classes.read_bytes() + sqlalchemy.__version__.encode()
    except (OSError, NotImplementedError):  # no such file, as in a zipped package; no bytecode
        return _made()
    with suppress(OSError):
        kept = file.read_bytes()
        if kept[:32] == sha256(origin + kept[32:]).digest():
            found: MetaData = pickle.loads(kept[32:])  # noqa: S301 - as trustworthy as the bytecode beside it
            return found
    metadata = _made()
    if not sys.dont_write_bytecode:
        with suppress(OSError):
            _keep(file, origin, pickle.dumps(metadata))
    return metadata


def _made() -> MetaData:
    from lakeops.catalog.models import METADATA

    return METADATA


def _keep(file: Path, origin: bytes, tables: bytes) -> None:
    part = file.with_name(f"{file.name}.{os.getpid()}")  # several processes may be at it
    file.parent.mkdir(exist_ok=True)
    part.write_bytes(sha256(origin + tables).digest() + tables)
    part.replace(file)


METADATA = load()

REPOSITORY = METADATA.tables["lakeops_repository"]
CATALOG = METADATA.tables["lakeops_catalog"]
OWNER = METADATA.tables["lakeops_owner"]
COMMIT = METADATA.tables["lakeops_commit"]
BRANCH = METADATA.tables["lakeops_branch"]
TAG = METADATA.tables["lakeops_tag"]
PROTECTION = METADATA.tables["lakeops_branch_protection"]
STAGED = METADATA.tables["lakeops_staged"]
RETIRED = METADATA.tables["lakeops_retired_token"]
REFLOG = METADATA.tables["lakeops_reflog"]
KEY = METADATA.tables["lakeops_idempotency_key"]
QUEUE = METADATA.tables["lakeops_queue"]
UPLOAD = METADATA.tables["lakeops_upload"]
RETENTION = METADATA.tables["lakeops_retention"]
MIRROR_NEED = METADATA.tables["lakeops_mirror_need"]
MARK = METADATA.tables["lakeops_mark"]
CLOCK = METADATA.tables["lakeops_clock"]
MIRROR = METADATA.tables["lakeops_mirror"]
MIRROR_REF = METADATA.tables["lakeops_mirror_ref"]
MIRROR_ARRIVAL = METADATA.tables["lakeops_mirror_arrival"]
TALLY = METADATA.tables["lakeops_tally"]
STAGED_TALLY = METADATA.tables["lakeops_staged_tally"]
