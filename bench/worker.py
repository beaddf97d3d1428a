"""The process that lakeops runs in: reads a row's name and a number from stdin, prints what a run took.

Usage: python -m bench.worker FOLDER ENTRIES
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.dataset import DataSet
from bench.lake_side import LakeSide
from bench.rows import ROWS, settle


def main() -> None:
    side = LakeSide(Path(sys.argv[1]), DataSet(int(sys.argv[2])))
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request["row"] is None:
            answer = side.settle()
            settle(side)
        else:
            answer = ROWS[request["row"]].lake(side, request["again"]).plain()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
