"""A check in SQL reads the files of a table that Spark would read, and no other ones."""

import gzip
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakeops.airflow.compat import LakeopsFailure
from lakeops.airflow.operators import LakeopsSqlCheckOperator


def parquet(*numbers):
    out = io.BytesIO()
    pq.write_table(pa.table({"n": numbers}), out)
    return out.getvalue()


def csv(*numbers):
    return "\n".join(["n", *map(str, numbers), ""]).encode()


TABLES = {
    "hidden-folders": ({"a.parquet": parquet(1), "_temporary/b.parquet": parquet(2), ".x/c.parquet": parquet(3)}, [1]),
    "hidden-files": ({"a.parquet": parquet(1), "_b.parquet": parquet(2), ".c.parquet": parquet(3)}, [1]),
    "hidden-first": ({"_metadata/a.csv": csv(2), "b.parquet": parquet(1)}, [1]),
    "upper-case": ({"a.parquet": parquet(1), "b.PARQUET": parquet(2)}, [1, 2]),
    "compressed": ({"a.csv.gz": gzip.compress(csv(1, 2)), "b.csv": csv(3)}, [1, 2, 3]),
    "columns": ({"day=1/a.parquet": parquet(1), "day=2/b.parquet": parquet(2)}, [1, 2]),
    "deep": ({"x/y/a.json": b'{"n": 1}\n{"n": 2}\n', "b.json": b'{"n": 3}\n'}, [1, 2, 3]),
    "patterns": ({"a[1].parquet": parquet(1), "a1.parquet": parquet(2), "b*?.parquet": parquet(3)}, [1, 2, 3]),
    "quotes": ({"a'b c%20d.parquet": parquet(1)}, [1]),
    "neighbours": ({"a.parquet": parquet(1), "../t-old/b.parquet": parquet(2), "../t2/c.csv": csv(3)}, [1]),
}  # fmt: skip
"""Files by their paths below the table's folder, and the numbers that the table has."""

REFUSED = {
    "stream": ({"_spark_metadata/0": b"v1", "a.parquet": parquet(1)}, "stream"),
    "delta": ({"_delta_log/00000000000000000000.json": b"{}", "a.parquet": parquet(1)}, "Delta"),
    "formats": ({"a.parquet": parquet(1), "b.csv": csv(2)}, "name a folder or file of one format"),
    "pictures": ({"a.jpg": b"1"}, "no Parquet, CSV or JSON"),
}


@pytest.fixture
def check(flights, run):
    """Commit files below ``t/`` to main, and return a function that runs a check of them."""

    def check(files, sql, **tables):
        main = flights.branch("main")
        for path, data in files.items():
            main.put(f"t/{path}".replace("t/../", ""), data)
        if files:
            main.commit("load")
        return run(LakeopsSqlCheckOperator(task_id="t", repo="flights", ref="main", sql=sql, **tables))

    return check


@pytest.mark.parametrize(
    "tables", [{}, {"tables": {"t": "t"}}, {"tables": {"t": "t/"}}], ids=["all", "folder", "slash"]
)
@pytest.mark.parametrize(("files", "numbers"), TABLES.values(), ids=TABLES)
def test_a_view_has_the_rows_of_the_tables_files(check, files, numbers, tables):
    with pytest.raises(LakeopsFailure, match="not published: ") as raised:
        check(files, "SELECT list(n ORDER BY n) AS n FROM t", **tables)
    assert str(raised.value).endswith(f"n={numbers}")


@pytest.mark.parametrize("files", [{}, {"a.jpg": b"1"}], ids=["nothing", "pictures"])
def test_a_folder_without_a_table_is_not_found(check, files):
    with pytest.raises(LakeopsFailure, match="object_not_found: tables: no Parquet"):
        check(files, "SELECT 1 WHERE false", tables={"t": "t/"})


@pytest.mark.parametrize(("files", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_query_of_other_folders_goes_on_beside_a_folder_that_is_no_plain_table(check, files, reason):
    others = {"../sales/a.parquet": parquet(1)}
    check({**files, **others}, "SELECT n FROM sales WHERE n < 0")
    for tables in ({}, {"tables": {"t": "t/"}}):
        with pytest.raises(LakeopsFailure, match=reason):
            check({}, "SELECT n FROM t", **tables)


NO_QUERY = {
    "two": "SELECT n FROM t; SELECT 2 WHERE false",
    "query-last": "SET threads = 1; SELECT n FROM t WHERE false",
    "query-first": "SELECT n FROM t; SET threads = 1",
    "setting": "SET threads = 1",
    "write": "CREATE TABLE bad AS SELECT n FROM t",
    "explain": "EXPLAIN SELECT n FROM t",
    "comments": "-- SELECT n FROM t",
    "nothing": ";",
}
"""Texts whose rows, if they give any, are not those of one query."""


@pytest.mark.parametrize("sql", NO_QUERY.values(), ids=NO_QUERY)
def test_a_text_that_is_not_one_query_is_refused(check, sql):
    with pytest.raises(LakeopsFailure, match="sql: give exactly one SELECT") as raised:
        check({"a.parquet": parquet(1)}, sql)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT n FROM t;",
        "-- bad rows; all of them\nSELECT n FROM t; -- the end",
        "WITH bad AS (FROM t) SELECT n FROM bad",
        "FROM t",
        "(SELECT n FROM t WHERE ';' = ';') UNION SELECT n FROM t",
    ],
)
def test_each_way_to_write_one_query_finds_its_rows(check, sql):
    with pytest.raises(LakeopsFailure, match=r"not published: n=1$"):
        check({"a.parquet": parquet(1)}, sql)
