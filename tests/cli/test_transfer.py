"""Moving many files at a time: order, failures, and nothing that goes on after one."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest

from lakeops.cli.fs import transfer
from lakeops.cli.output import Printer
from lakeops.model.errors import InvalidInput, StoreUnavailable
from lakeops.model.records import ByteCounter


@pytest.fixture
def reports():
    return []


@pytest.fixture
def counter(reports):
    return ByteCounter(lambda *report: reports.append(report), "Moving", 100)


def test_results_come_in_order(counter):
    assert transfer(Printer(False), range(50), lambda item: item * 2, counter, 7) == [item * 2 for item in range(50)]
    assert transfer(Printer(False), [], lambda item: item, counter, 7) == []


def test_a_failure_stops_what_is_under_way(counter, capsys):
    begun = Event()

    def move(name):
        if name == "bad":
            begun.wait()
            raise InvalidInput("bad file")
        with Path("/dev/zero").open("rb") as endless:
            counted = counter.counting(endless)
            while counted.read(1):
                begun.set()

    with pytest.raises(InvalidInput, match="bad file"):
        transfer(Printer(False), ["endless", "bad", *["never begun"] * 100], move, counter, 2)
    assert capsys.readouterr().err == "Stopped after 0 files of 102.\n"


def test_what_passes_is_worth_another_run(counter, capsys):
    def move(_item):
        raise StoreUnavailable("no answer")

    with pytest.raises(StoreUnavailable):
        transfer(Printer(False), ["a", "b"], move, counter, 1)
    assert capsys.readouterr().err == "Stopped after 0 files of 2; run it again to go on.\n"


def test_progress_adds_up(counter, reports, tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 25)

    def move(_item):
        with (tmp_path / "file").open("rb") as file:
            counted = counter.counting(file)
            while counted.read(10):
                pass

    transfer(Printer(True), range(4), move, counter, 4)
    assert reports[-1] == ("Moving", 100, 100)
    assert [done for _, done, _ in reports] == sorted(done for _, done, _ in reports)
