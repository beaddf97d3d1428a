"""One call of an S3 store for each request that S3 knows, to see how each of them fails."""

import io

from lakeops.store.base import MIN_PART_BYTES

CALLS = {
    "GetObject": lambda store: store.get("k"),
    "HeadObject": lambda store: store.head("k"),
    "PutObject": lambda store: store.put("k", b"x"),
    "ListObjectsV2": lambda store: list(store.list()),
    "DeleteObjects": lambda store: store.delete(["k"]),
    "CreateMultipartUpload": lambda store: store.put("k", io.BytesIO(bytes(MIN_PART_BYTES + 1))),
}
