"""Attributes that are computed when they are first asked for."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from lakeops.model.caching import cached_property


class Meeting:
    def __init__(self, barrier):
        self.barrier, self.computed = barrier, 0

    @cached_property
    def value(self):
        """Both threads have to be here at once."""
        self.barrier.wait(timeout=30)
        self.computed += 1
        return object()


def test_two_objects_compute_at_the_same_time_and_each_once():
    both = [Meeting(Barrier(2)) for _ in range(2)]
    both[1].barrier = both[0].barrier
    with ThreadPoolExecutor(2) as pool:
        values = [*pool.map(lambda one: one.value, both)]
    assert [one.value for one in both] == values
    assert [one.computed for one in both] == [1, 1]
    assert isinstance(Meeting.value, cached_property)
    assert Meeting.value.__doc__
