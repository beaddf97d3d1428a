"""Writers of every edge on one branch, killed at random, and the judge of what they leave."""

import json
from dataclasses import replace
from random import Random

import pytest
from support.mixed import ICEBERG, REPOSITORY, iceberg_catalog, play, read_log, rows, working
from support.mixing import EACH, FEW, Mixed, evaluate_checks, iceberg_closed, wrong_commits

from lakeops import Repository


@pytest.mark.timeout(300)
def test_nothing_is_lost_on_sqlite(tmp_path):
    killed_often(Mixed(tmp_path, "", groups=FEW), kills=3)


@pytest.mark.timeout(300)
def test_nothing_is_lost_on_postgresql(tmp_path, empty_postgres_url):
    killed_often(Mixed(tmp_path, empty_postgres_url, groups=FEW), kills=3)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("postgres", [False, True])
def test_nothing_is_lost_in_a_hundred_kills(tmp_path, empty_postgres_url, postgres):
    killed_often(Mixed(tmp_path, empty_postgres_url if postgres else "", groups=EACH), kills=100)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_lost_beside_spark(tmp_path):
    killed_often(Mixed(tmp_path, "", groups=[*FEW, ["spark"]]), kills=8)


def killed_often(busy, *, kills):
    busy.prepare()
    busy.run(Random(kills), kills)
    busy.check()


# --- the judge ---
@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A lake, the log of one worker that has played each writer and that nobody killed, and the problems so far."""
    busy = Mixed(tmp_path_factory.mktemp("played"), "", groups=[[name for group in EACH for name in group]])
    busy.prepare()
    gateway = busy.start(1)
    with busy.open() as lake, iceberg_closed():
        try:
            with working(lake.settings, busy.port, "w0", busy.log(0), busy.stop) as worker:
                play(worker, busy.groups[0], rounds=2)
        finally:
            busy.end(gateway, 1)
        assert evaluate_checks(lake, busy.logs) == []
        yield lake, busy.log(0), []


def newest(log, writer):
    return [each for each in read_log(log) if each.writer == writer and each.outcome == "done"][-1]


def path_of(log, writer):
    return next(path for path, text in newest(log, writer).what["paths"].items() if text is not None)


def new_problems(played, log, change):
    lake, own, known = played
    change()
    problems = evaluate_checks(lake, [log])
    new = [problem for problem in problems if problem not in known]
    if log == own:
        known[:] = problems
    return new


def test_lost_writes_of_every_writer_are_named(played):
    lake, log, _ = played
    main = lake.repository(REPOSITORY).branch("main")
    writers = ("put", "upload", "copy", "replace", "append", "fsspec", "rename", "merge", "local")
    written = {path_of(log, writer): newest(log, writer) for writer in writers}
    lost = new_problems(played, log, lambda: [main.delete(path) for path in written])
    for path, note in written.items():  # once before the last commit, and once in what that commit shows
        assert [one.startswith(f"{path}: {note.intent} left") for one in lost].count(True) == 2
    assert len(lost) == 2 * len(written) == 2 * len(writers)
    assert len(new_problems(played, log, lambda: [main.put(path, b"another text") for path in written])) == len(lost)
    texts = {path: note.what["paths"][path].encode() for path, note in written.items()}
    assert new_problems(played, log, lambda: [main.put(path, text) for path, text in texts.items()]) == []


def test_an_object_that_nobody_wrote_is_named(played):
    main = played[0].repository(REPOSITORY).branch("main")
    strange = new_problems(played, played[1], lambda: main.put("strange", b"1"))
    assert [problem.partition(":")[0] for problem in strange] == ["strange", "strange"]


def intent(text, **what):
    return [json.dumps(["intent", text, "forged", what])]


def done(text, **answer):
    return [json.dumps(["done", text, answer])]


@pytest.mark.parametrize("table", ["delta", "iceberg"])
def test_lost_doubled_and_unwanted_rows_are_named(played, tmp_path, table):
    row = newest(played[1], table).intent
    value = newest(played[1], table).what["row"]
    refused = json.dumps(["refused", row, {}])
    assert forged(played, tmp_path, [refused]) == [f"{table} has 3 rows of {value}, and should have one of [0]"]
    lost = [*intent("lost", table=table, row="lost"), *done("lost")]
    assert forged(played, tmp_path, lost) == [f"{table} has 0 rows of lost, and should have one of [3]"]
    assert forged(played, tmp_path, intent("open", table=table, row="open")) == []


def test_rows_that_are_there_twice_are_named(played):
    value = newest(played[1], "iceberg").what["row"]
    again = iceberg_catalog(played[0].settings).load_table(ICEBERG)
    doubled = new_problems(played, played[1], lambda: again.append(rows(value)))
    assert doubled == [f"iceberg has 6 rows of {value}, and should have one of [3]"]


def test_a_write_without_an_answer_is_there_whole_or_not_at_all(played, tmp_path):
    lake, log, _ = played
    path = path_of(log, "append")
    text = newest(log, "append").what["paths"][path]
    assert forged(played, tmp_path, intent("whole", paths={path: text})) == []
    assert forged(played, tmp_path, intent("none", paths={"one": "1", "other": "2"})) == []
    assert forged(played, tmp_path, ['["intent", "cut o']) == []
    main = lake.repository(REPOSITORY).branch("main")
    assert len(new_problems(played, log, lambda: main.put("part/1", b"1"))) == 2
    in_part = forged(played, tmp_path, intent("part", paths={"part/1": "1", "part/2": "2"}))
    assert len(in_part) == 2
    assert all(problem.startswith("part got no answer, and is there in part") for problem in in_part)


def test_lost_and_doubled_commits_are_named(played, tmp_path):
    lost = [*intent("lost", commit="lost", paths={}), *done("lost", id="f" * 64)]
    problems = forged(played, tmp_path, lost)
    assert problems == [
        f"lost made {'f' * 64}, which is not in history",
        "the message lost is 0 times in history, and should be one of [1]",
    ]
    repo: Repository = played[0].repository(REPOSITORY)
    notes, chain = read_log(played[1]), [*repo.log("main", first_parent=True)]
    assert wrong_commits(notes, chain) == []
    key = newest(played[1], "merge").what["commit"]
    place = next(number for number, one in enumerate(chain) if one.message == key)
    assert any("comes after" in problem for problem in wrong_commits(notes, chain[:place] + chain[place + 1 :]))
    twice = [*chain, replace(chain[place], id="another")]
    assert f"the message {key} is 2 times in history, and should be one of [1]" in wrong_commits(notes, twice)
    assert any("2 times in history" in problem for problem in wrong_commits(notes, [*chain, chain[place]]))


def forged(played, tmp_path, lines):
    """Problems that are new when lines are added to the log."""
    log = tmp_path / "log"
    log.write_text(played[1].read_text())

    def add():
        with log.open("a") as out:
            out.write("".join(f"{line}\n" for line in lines))

    return new_problems(played, log, add)
