"""Several requests under way: in order, never more than asked for, and in threads only where that gains something."""

import threading

import pytest

from lakeops.store.in_flight import in_flight, read_ahead


@pytest.mark.parametrize("window", [0, 1, 2, 8])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 30])
def test_everything_comes_in_order(window, count):
    assert list(read_ahead(str, range(count), window)) == [str(number) for number in range(count)]


@pytest.mark.parametrize(("count", "window", "threads"), [(1, 8, False), (2, 8, False), (3, 8, True), (30, 0, False)])
def test_threads_are_started_where_they_can_gain_something(count, window, threads):
    here = threading.current_thread()
    used = set(read_ahead(lambda _: threading.current_thread(), range(count), window))
    assert (used != {here}) == threads


def test_no_more_is_begun_than_the_window_lets():
    begun = []
    results = read_ahead(lambda number: begun.append(number) or number, range(100), most=4)
    for number in range(10):
        assert next(results) == number
        assert len(begun) <= number + 1 + 4
    results.close()
    assert len(begun) < 20


def test_closing_waits_for_nothing_under_way():
    go_on, over = threading.Event(), []
    results = read_ahead(lambda number: number < 3 or (go_on.wait(20), over.append(number)), range(100), most=4)
    assert [next(results) for _ in range(3)] == [True] * 3
    results.close()
    assert over == []
    go_on.set()


@pytest.mark.parametrize("make", [in_flight, read_ahead])
def test_results_may_be_dropped_in_a_thread_of_their_own(make):
    """Python's garbage collection may run in any thread."""
    held, dropped = [], [threading.Event(), threading.Event()]

    def work(number):
        if number == 3:
            dropped[0].wait(20)
            held.clear()
            dropped[1].set()

    held.append(make(work, range(100), 4))
    for _ in range(3):
        next(held[0])
    dropped[0].set()
    assert dropped[1].wait(20)


def test_an_error_comes_where_its_item_would_have_come():
    results = read_ahead(lambda number: 1 // (3 - number), range(10), most=4)
    assert [next(results) for _ in range(3)] == [0, 0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


@pytest.mark.parametrize("at_once", [1, 2, 8])
@pytest.mark.parametrize("count", [0, 1, 2, 30])
def test_what_is_in_flight_comes_in_order(at_once, count):
    assert list(in_flight(str, range(count), at_once)) == [str(number) for number in range(count)]


def test_the_first_are_begun_by_the_call_and_the_rest_as_results_are_taken():
    begun, taken = threading.Semaphore(0), []

    def items():
        for number in range(100):
            taken.append(number)
            yield number

    results = in_flight(lambda _: begun.release(), items(), 4)
    for _ in range(4):
        assert begun.acquire(timeout=60)
    assert taken == [0, 1, 2, 3]
    next(results)
    assert taken == [0, 1, 2, 3, 4]
    results.close()
    assert len(taken) == 5


def test_nothing_is_under_way_any_more_when_an_error_comes_out():
    failed, ended = threading.Event(), []

    def work(number):
        if number == 0:
            failed.set()
            raise KeyError(number)
        failed.wait(60)
        ended.append(number)

    with pytest.raises(KeyError):
        list(in_flight(work, range(100), 3))
    assert set(ended) <= {1, 2, 3}
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("in-flight")]


@pytest.mark.parametrize("good", [0, 2, 9])
def test_items_that_cannot_be_had_end_it_as_well(good):
    def items():
        yield from range(good)
        raise KeyError("items")

    with pytest.raises(KeyError):
        list(in_flight(str, items(), 4))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("in-flight")]
