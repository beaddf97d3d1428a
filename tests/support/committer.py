"""One of several processes that put and commit to one branch.

Usage: python -m support.committer HOME DATABASE_URL NAME ROUNDS  (DATABASE_URL empty: SQLite under HOME)

Prints the id of the commit that each round ended in, or ``taken`` when another process had committed its put before.
"""

import sys

from lakeops import Lake, Settings
from lakeops.model.errors import NoChanges


def main() -> None:
    home, url, name, rounds = sys.argv[1:]
    settings = Settings.load(home=home, database_url=url or None, fsync=False, committer=name)
    with Lake.open(settings=settings) as lake:
        branch = lake.repository("repo").branch("main")
        for number in range(int(rounds)):
            branch.put(f"{name}/{number:03}", f"{name} {number}".encode())
            try:
                print(branch.commit(f"{name} {number}", idempotency_key=f"{name}-{number}").id, flush=True)
            except NoChanges:
                print("taken", flush=True)


if __name__ == "__main__":
    main()
