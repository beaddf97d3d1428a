"""Where things lie in a storage namespace. The one place that knows these names.

::

    data/<partition>/<id>                                  objects
    _lakefs/repository.json                                the claim: format and repository of this namespace
    _lakefs/ranges/<range id>-<attempt>.parquet
    _lakefs/metaranges/<metarange id>-<attempt>.parquet
    _lakefs/retention/gc/<run id>/...                      garbage collection's marks and reports

Partitions sort by time (the UTC hour), so that listings can be cut by age and parallelised.
"""

from __future__ import annotations

from datetime import datetime

from lakeops.model.clock import Ids

DATA = "data/"
CLAIM = "_lakefs/repository.json"
RANGES = "_lakefs/ranges/"
METARANGES = "_lakefs/metaranges/"
GC = "_lakefs/retention/gc/"


def partition(moment: datetime) -> str:
    """The partition that objects written at this moment go to: the UTC hour, ``YYYYMMDDHH``."""
    return moment.strftime("%Y%m%d%H")


def object_key(moment: datetime, ids: Ids) -> str:
    """A fresh key for one object."""
    return f"{DATA}{partition(moment)}/{ids.new()}"


def output_prefix(moment: datetime, ids: Ids) -> str:
    """A fresh directory for the files that an engine writes; ends with a slash."""
    return f"{DATA}{partition(moment)}/{ids.new()}/"


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
    return "://" in address


def absolute(namespace: str, address: str) -> str:
    """The address as a full URL."""
    return address if is_absolute(address) else f"{namespace}/{address}"


def relative(namespace: str, address: str) -> str:
    """The address as it is stored: relative when it lies in the namespace, unchanged otherwise."""
    root = namespace + "/"
    return address[len(root) :] if address.startswith(root) else address
