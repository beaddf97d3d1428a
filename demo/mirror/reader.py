"""A reader at the mirror: opens every table of every head that it sees, until the input ends.

It knows nothing of replication. It takes the commit that the branch shows, reads all its files, and compares the rows
of each table with what the commit says of itself. A line of JSON for each head.

Usage: python reader.py HOME
"""

from __future__ import annotations

import io
import json
import sys
from collections import Counter
from select import select

import pyarrow.parquet as pq

from lakeops import Lake, Repository
from lakeops.model.errors import LakeopsError
from lakeops.model.records import Commit

PAUSE = 0.2


def main() -> None:
    """Look for new heads and check them."""
    seen: set[str] = set()
    with Lake.open(home=sys.argv[1]) as lake:
        repo = lake.repository("flights")
        ended = False
        while not ended:
            ended = bool(select([sys.stdin], [], [], PAUSE)[0])
            head = repo.ref("main").commit
            if head.id not in seen and head.parents:
                seen.add(head.id)
                print(json.dumps(check(repo, head)), flush=True)


def check(repo: Repository, head: Commit) -> dict[str, object]:
    """What a head holds, and what is wrong with it; empty when nothing is."""
    rows: Counter[str] = Counter()
    files, wrong = 0, ""
    try:
        handle = repo.ref(head.id)
        for item in handle.list():
            files += 1
            # The bytes are here already. Without reading ahead, no thread of pyarrow still holds a Python object
            # when the interpreter ends, which can abort the process.
            file = pq.ParquetFile(io.BytesIO(handle.read(item.path)), pre_buffer=False)
            table = file.read(use_threads=False)
            rows[item.path.partition("/")[0]] += table.num_rows
    except (LakeopsError, OSError, ValueError) as error:
        wrong = f"{type(error).__name__}: {error}"
    promised = {name.removeprefix("rows."): int(count) for name, count in head.metadata.items()}
    if not wrong and rows != promised:
        wrong = f"{dict(rows)} rows instead of {promised}"
    return {"head": head.id, "files": files, "tables": len(rows), "rows": sum(rows.values()), "wrong": wrong}


if __name__ == "__main__":
    main()
