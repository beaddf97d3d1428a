"""Loading ahead: in order, never further than asked, and in threads only where that can gain something."""

import threading

import pytest

from lakeops.ranges.read import prefetched


@pytest.mark.parametrize("window", [0, 1, 2, 8])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 30])
def test_everything_comes_in_order(window, count):
    assert list(prefetched(str, range(count), window)) == [str(number) for number in range(count)]


@pytest.mark.parametrize(("count", "window", "threads"), [(1, 8, False), (2, 8, False), (3, 8, True), (30, 0, False)])
def test_threads_are_started_where_they_can_gain_something(count, window, threads):
    here = threading.current_thread()
    used = set(prefetched(lambda _: threading.current_thread(), range(count), window))
    assert (used != {here}) == threads


def test_no_more_is_begun_than_the_window_lets():
    begun = []
    results = prefetched(lambda number: begun.append(number) or number, range(100), window=4)
    for number in range(10):
        assert next(results) == number
        assert len(begun) <= number + 1 + 4
    results.close()
    assert len(begun) < 20


def test_an_error_comes_where_its_item_would_have_come():
    results = prefetched(lambda number: 1 // (3 - number), range(10), window=4)
    assert [next(results) for _ in range(3)] == [0, 0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)
