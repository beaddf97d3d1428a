#!/usr/bin/env python3
"""Whether programs see complete types: ``pyright --verifytypes``, with pyright from npm, installed where it is missing.

Fails when it names anything that is not explained here. All that is explained comes from base classes elsewhere.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "1.1.414"
PLACE = Path(__file__).parents[2] / "build" / f"pyright-{VERSION}"

EXPLAINED = {
    "lakeops.airflow": "operators, sensors, triggers and the plugin derive from Airflow's classes, whose metaclass and "
    "attributes have no complete types",
    "lakeops.catalog.models": "tables derive from SQLModel, whose metaclass has no complete type",
    "lakeops.catalog.columns": "column types override attributes that SQLAlchemy leaves to be inferred",
    "lakeops.fs": "the filesystem derives from fsspec's, which has no types",
    "lakeops.iceberg": "the catalog derives from pyiceberg's, and its files from fsspec's",
}
"""Whose complaints are known, and why they stay."""


def main() -> int:
    """Say what is not explained; 1 when there is such a thing."""
    program = PLACE / "node_modules" / "pyright" / "index.js"
    if not program.exists():
        npm = shutil.which("npm")
        if npm is None:
            sys.exit("install Node.js with npm first")
        PLACE.mkdir(parents=True, exist_ok=True)
        options = ["--ignore-scripts", "--no-audit", "--no-fund", "--silent", "--prefix", str(PLACE)]
        subprocess.run([npm, "install", *options, f"pyright@{VERSION}"], check=True)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = ["node", str(program), "--verifytypes", "lakeops", "--ignoreexternal", "--outputjson"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    told = json.loads(done.stdout)["typeCompleteness"]
    unknown = []
    for symbol in told["symbols"]:
        wrong = [one["message"] for one in symbol["diagnostics"] if one["severity"] == "error"]
        if wrong and not any(symbol["name"].startswith(f"{place}.") for place in EXPLAINED):
            unknown.append(f"{symbol['name']}: {wrong[0]}")
    print(*unknown, sep="\n")
    counts = told["exportedSymbolCounts"]
    print(f"{counts['withKnownType']:,} of {sum(counts.values()):,} exported symbols have complete types")
    return 1 if unknown or not counts["withKnownType"] else 0


if __name__ == "__main__":
    sys.exit(main())
