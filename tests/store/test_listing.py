"""A bucket listed in partitions of its names: the same as one page after another, in fewer rounds."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from random import Random
from threading import Lock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.far import Requests

from lakeops.store.listing import split_points
from lakeops.store.s3.scan import scan

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


class Bucket:
    """What S3 answers to a listing, from names in memory.

    Args:
        names: what is there.
        page: how many names and folders a page has.
        asking: entered around each request.
        before: called before each request, to change what is there.
    """

    def __init__(
        self,
        names: list[str],
        page: int,
        asking: Callable[[], AbstractContextManager[None]] = nullcontext,
        before: Callable[[list[str]], None] = lambda _: None,
    ) -> None:
        self.names = sorted(names)
        self.requests = 0
        self._page, self._asking, self._before = page, asking, before
        self._lock = Lock()

    def list_objects_v2(self, **asked: str) -> dict:
        with self._asking(), self._lock:
            self.requests += 1
            self._before(self.names)
            after = asked.get("ContinuationToken") or asked.get("StartAfter", "")
            return self._answer(asked["Prefix"], asked.get("Delimiter", ""), after)

    def _answer(self, prefix: str, delimiter: str, after: str) -> dict:
        objects, folders, last = [], [], after
        for name in self.names[bisect_right(self.names, after) :]:
            if not name.startswith(prefix) or (folders and name.startswith(folders[-1])):
                continue
            if delimiter and after.endswith(delimiter) and name.startswith(after):
                continue  # the page before ended with this folder
            if len(objects) + len(folders) == self._page:
                break
            end = name.find(delimiter, len(prefix)) + 1 if delimiter else 0
            if end:
                folders.append(name[:end])
            else:
                objects.append({"Key": name, "Size": len(name), "LastModified": MOMENT, "ETag": '"e"'})
            last = name[:end] or name
        else:
            return {"Contents": objects, "CommonPrefixes": [{"Prefix": one} for one in folders], "IsTruncated": False}
        return {
            "Contents": objects,
            "CommonPrefixes": [{"Prefix": one} for one in folders],
            "IsTruncated": True,
            "NextContinuationToken": last,
        }


def scanned(bucket: Bucket, root: str = "", **options: bool) -> list[str]:
    listings = scan(bucket, "bucket", root, **{"skip_special": False, **options})
    return [key for listing in listings for key in listing.keys]


PARTS = st.sampled_from(["", "a", "b", "0", "1", "9", "10", "é", "\U0001f600", "\ufffc", "~", " ", "part-", "-"])
NAMES = st.lists(PARTS, min_size=1, max_size=6).map("".join).filter(bool)
KEYS = st.lists(st.tuples(NAMES, NAMES).map("/".join) | NAMES, max_size=60, unique=True)


@given(KEYS, st.integers(1, 7), st.integers(0, 300), st.sampled_from(["", "flat/", "a/"]))
@example(["a"], 1, 300, "flat/")
@example(["\U0001f600/x", "\U0001f600/y"], 1, 37, "a/")
def test_it_lists_what_is_there_in_order(keys, page, numbered, root):
    keys = {*keys, *(f"n-{number:04}" for number in range(numbered))}
    bucket = Bucket([*{*(root + key for key in keys), "zz", " "}], page)
    expected = sorted(name[len(root) :] for name in bucket.names if name.startswith(root))
    assert scanned(bucket, root) == expected


@given(st.integers(0, 2**32), st.integers(1, 9))
def test_what_is_there_all_the_time_is_listed_once_while_others_come_and_go(seed, page):
    random = Random(seed)
    lasting = {f"{random.choice('ab')}/{random.randrange(10**6):06}" for _ in range(random.randrange(200))}
    lasting |= {f"{random.randrange(10**4)}" for _ in range(random.randrange(100))}
    ever = set(lasting)

    def change(names: list[str]) -> None:
        coming = f"{random.choice(['', 'a/', 'b/', 'new/'])}{random.randrange(10**6):06}"
        if coming not in names:
            insort(names, coming)
            ever.add(coming)
        going = random.choice(names)
        if going not in lasting:
            names.remove(going)

    found = scanned(Bucket(list(lasting), page, before=change), moving=True)
    assert found == sorted(set(found))
    assert lasting <= set(found) <= ever


NUMBERED = {
    "numbers": lambda number, _: f"part-{number:05}.parquet",
    "numbers without zeros": lambda number, _: f"f{number}.csv",
    "random hex": lambda _, random: f"{random.getrandbits(128):032x}",
    "stamps": lambda number, _: f"2026-{number // 600 + 1:02}-{number // 20 % 30 + 1:02}T{number % 20:02}:00.json",
    "UUIDs behind numbers": lambda number, random: f"part-{number:05}-{random.getrandbits(64):016x}-c000.parquet",
}


@pytest.mark.parametrize("root", ["", "table/"])
@pytest.mark.parametrize("name", NUMBERED.values(), ids=NUMBERED)
def test_a_flat_folder_of_many_pages_takes_few_rounds(name, root):
    """One page after another would be 40 rounds. What is asked for in vain is bounded, too."""
    random, requests = Random(1), Requests(0.03)
    names = [root + name(number, random) for number in range(2_000)]
    bucket = Bucket(names, 50, asking=lambda: requests.one("list", ""))
    assert scanned(bucket) == sorted(names)
    assert len(requests.rounds) <= 12
    assert bucket.requests <= 110


def test_a_folder_of_a_page_is_a_request():
    bucket = Bucket([f"{number}" for number in range(50)], 50)
    scanned(bucket)
    assert bucket.requests == 1


@given(st.lists(NAMES, min_size=1, unique=True), NAMES | st.none(), st.integers(0, 20))
def test_split_points_lie_behind_the_page_and_ascend(names, until, count):
    names = sorted(names)
    found = split_points(names, until, start=0, count=count)
    assert len(found) <= count
    assert [names[-1], *found] == sorted({names[-1], *found})
    assert until is None or all(end < until for end in found)
