#!/usr/bin/env python3
"""Whether programs see complete types: ``pyright --verifytypes``, with pyright from npm, installed where it is missing.

Fails when it names anything but what comes from base classes of other packages.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "1.1.414"
PLACE = Path(__file__).parents[2] / "build" / f"pyright-{VERSION}"

OF_BASES = ("Type of metaclass unknown", "Type of base class ", 'Type argument 1 for class "declared_attr" ')
"""How complaints begin about what classes take from bases in other packages, which no annotation here completes:
Airflow's classes and SQLModel's have a metaclass without complete types, fsspec's filesystem has no types at all."""


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
        wrong = [message for message in wrong if not message.startswith(OF_BASES)]
        if wrong:
            unknown.append(f"{symbol['name']}: {wrong[0]}")
    print(*unknown, sep="\n")
    counts = told["exportedSymbolCounts"]
    print(f"{counts['withKnownType']:,} of {sum(counts.values()):,} exported symbols have complete types")
    return 1 if unknown or not counts["withKnownType"] else 0


if __name__ == "__main__":
    sys.exit(main())
