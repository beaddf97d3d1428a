"""Listings: in partitions of a bucket's names, page by page the same; and many objects looked for at once."""

from bisect import insort
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.listed import Bucket, Named, scanned

from lakeops.store import listing
from lakeops.store.listing import present, split_points

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

    def change(names):
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


@given(st.lists(NAMES, min_size=1, unique=True), NAMES | st.none(), st.integers(0, 20))
def test_split_points_lie_behind_the_page_and_ascend(names, until, count):
    names = sorted(names)
    found = split_points(names, until, start=0, count=count)
    assert len(found) <= count
    assert [names[-1], *found] == sorted({names[-1], *found})
    assert until is None or all(end < until for end in found)


# --- many objects looked for ---

SHORT = st.text(st.sampled_from("ab/é\U0001f600z"), min_size=1, max_size=4)
SOUGHT = st.builds("{}{}".format, st.sampled_from(["data/1/", "data/2/", "data/", ""]), SHORT)


@given(st.sets(SOUGHT, max_size=60), st.sets(SOUGHT, max_size=60), st.integers(1, 12), st.integers(0, 5))
def test_objects_sought_are_those_that_asking_for_each_gives(there, asked, list_from, shown):
    store = Named(there)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "LIST_FROM", list_from)
        patch.setattr(listing, "SHOWN_FOR_ASKED", shown)
        found = present(store, [*asked, *asked])  # type: ignore[arg-type]
    assert found.keys() == there & asked
    assert all(item.key == key and item.size_bytes == len(key) for key, item in found.items())
