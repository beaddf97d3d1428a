"""What a shell offers for the word that is being typed: repositories, refs and paths of ``lakefs://`` URIs.

Somebody waits for it. So it says nothing where there is no lake, where anything fails, and where the answer takes more
than two seconds. To import what answers takes up to one on a busy machine.
"""

from __future__ import annotations

from itertools import chain, islice
from threading import Thread

SCHEME = "lakefs:"
MOST = 100
"""Words that are offered at most."""
PATIENCE = 2.0
"""Seconds that an answer may take."""


def complete(incomplete: str) -> list[str]:
    """The URIs that a word may become. Bash ends words at colons, and then neither word nor answer has the scheme."""
    bare = incomplete.startswith("//")
    text = SCHEME + incomplete if bare else incomplete
    found: list[str] = []
    looking = Thread(target=lambda: found.extend(_complete_or_nothing(text)), daemon=True)
    looking.start()
    looking.join(PATIENCE)
    words = [word for word in list(found) if "\n" not in word]  # shells take the answer line by line
    return [word.removeprefix(SCHEME) if bare else word for word in words]


def _complete_or_nothing(text: str) -> list[str]:
    try:
        return _offers(text)
    except Exception:  # noqa: BLE001 - whatever it is, a shell is no place to tell
        return []


def _offers(text: str) -> list[str]:
    from lakeops.lake import Lake  # late: --help and commands need none of it

    start = f"{SCHEME}//"
    if not text.startswith(start):
        if not start.startswith(text):
            return []
        text = start
    repository, *rest = text.removeprefix(start).split("/", 2)
    with Lake.open(must_exist=True) as lake:
        if not rest:
            return [f"{start}{one.id}" for one in islice(lake.repositories(prefix=repository), MOST)]
        if len(rest) == 1:
            repo = lake.repository(repository)
            refs = chain(repo.branches(prefix=rest[0]), repo.tags(prefix=rest[0]))
            return [f"{start}{repository}/{ref.id}" for ref in islice(refs, MOST)]
        listed = lake.repository(repository).ref(rest[0]).list(rest[1], delimiter="/")
        return [f"{start}{repository}/{rest[0]}/{item.path}" for item in islice(listed, MOST)]
