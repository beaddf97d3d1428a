"""Numbers that come and go between numpy and Arrow."""

import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeops.model.arrow import (
    ENTRY_SCHEMA,
    RANGE_SCHEMA,
    STAGED_SCHEMA,
    array,
    from_numpy,
    no_rows,
    scalar,
    text,
    to_numpy,
)


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64, np.uint8, np.uint32, np.uint64, np.float64])
def test_numbers(kind):
    values = np.arange(20, dtype=kind)
    for some in (values, values[:0], values[3:], values[::3]):
        plain = pa.array(some)
        assert from_numpy(some).equals(plain)
        assert from_numpy(some).type == pa.from_numpy_dtype(kind)
        assert to_numpy(plain).tolist() == some.tolist()
        assert to_numpy(plain).dtype == kind
        assert to_numpy(pa.chunked_array([plain, plain])).tolist() == 2 * some.tolist()
        assert to_numpy(pa.chunked_array([], plain.type)).tolist() == []
    assert to_numpy(pa.array(values).slice(5, 3)).tolist() == [5, 6, 7]


@given(st.lists(st.booleans(), max_size=70), st.integers(0, 70), st.integers(0, 70))
def test_truth_values(values, start, size):
    plain = pa.array(values, pa.bool_())
    assert from_numpy(np.array(values, np.bool_)).equals(plain)
    some = plain.slice(min(start, len(values)), size)
    assert to_numpy(some).tolist() == some.to_pylist()
    assert to_numpy(some).dtype == np.bool_
    assert to_numpy(pa.chunked_array([some, plain])).tolist() == [*some.to_pylist(), *values]


@given(st.lists(st.tuples(st.integers(-9, 9), st.booleans()), max_size=70))
def test_missing_numbers_are_null(pairs):
    values, missing = [value for value, _ in pairs], [lost for _, lost in pairs]
    found = from_numpy(np.array(values, np.int64), np.array(missing, np.bool_))
    assert found.equals(pa.array([None if lost else value for value, lost in pairs], pa.int64()))


def test_nulls_are_no_numbers():
    for values in ([1, None], [True, None]):
        with pytest.raises(pa.ArrowTypeError):
            to_numpy(pa.array(values))


def test_numbers_are_not_copied():
    values = np.arange(9)
    array_ = from_numpy(values)
    assert array_.buffers()[1].address == values.ctypes.data
    assert np.shares_memory(to_numpy(array_), values)
    assert np.shares_memory(to_numpy(pa.chunked_array([array_])), values)


KINDS = {
    pa.string(): st.text(),
    pa.large_string(): st.text(),
    pa.binary(): st.binary(max_size=9),
    pa.large_binary(): st.binary(max_size=9),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    pa.int8(): st.integers(-128, 127),
    pa.bool_(): st.booleans(),
}
STRANGE = st.sampled_from(
    [0, 1, 300, 1 << 63, -1.5, "1", "\ud800", b"", b"12", b"1234", True, None, np.int64(7), [], "é"]
)


@given(st.data(), st.sampled_from(list(KINDS)))
def test_values_of_python(data, kind):
    """Arrow's array or Arrow's error comes back, whatever the values are."""
    values = data.draw(st.lists(st.one_of(KINDS[kind], st.none(), *([STRANGE] if data.draw(st.booleans()) else []))))
    try:
        expected = pa.array(values, kind)
    except Exception as error:
        with pytest.raises(type(error)):
            array(values, kind)
        return
    found = array(values, kind)
    found.validate(full=True)
    assert found.equals(expected)
    assert found.type == kind
    assert [scalar(value, kind) for value in values] == [pa.scalar(value, kind) for value in values]


def test_bytes_of_another_width_are_refused():
    for value in (b"", b"12", b"1234"):
        with pytest.raises(pa.ArrowInvalid):
            array([value, None], pa.binary(3))


def test_many_values_of_python(monkeypatch):
    monkeypatch.setattr("lakeops.model.arrow._MANY", 3)
    for values in (["a", None, "b"], ["a", None, "b", "c"]):
        assert array(values, pa.string()).equals(pa.array(values, pa.string()))


@pytest.mark.parametrize("schema", [ENTRY_SCHEMA, RANGE_SCHEMA, STAGED_SCHEMA])
def test_a_table_without_rows(schema):
    found = no_rows(schema)
    assert (found.schema, found.num_rows) == (schema, 0)
    assert [column.num_chunks for column in found.columns] == [1] * len(schema)
    found.validate(full=True)


@given(st.text())
def test_a_text(value):
    assert text(value).equals(pa.scalar(value))


def test_pandas_is_left_alone():
    """Where pyarrow itself imports it for the same: without that there would be nothing to avoid."""
    code = (
        "import sys; import numpy as np; import pyarrow as pa\n"
        "from lakeops.model.arrow import array, from_numpy, no_rows, scalar, text, to_numpy\n"
        "to_numpy(from_numpy(np.arange(3))); to_numpy(from_numpy(np.ones(3, bool))); text('a')\n"
        "array(['a', None], pa.string()); array([], pa.string()); array([1, None], pa.int64()); scalar(0, pa.int32())\n"
        "array(['a'] * 50_000, pa.string()); array([1] * 50_000, pa.int64())\n"
        "no_rows(pa.schema([('a', pa.map_(pa.string(), pa.string()))])); to_numpy(pa.chunked_array([], pa.int8()))\n"
        "early = 'pandas' in sys.modules; pa.array([1]); sys.exit(2 * early + ('pandas' not in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- which pool Arrow takes memory from in a process that imports lakeops ---

POOL = "ARROW_DEFAULT_MEMORY_POOL"
USED = "import pyarrow; print(pyarrow.default_memory_pool().backend_name)"


def pool_of_new_process(code, **environment):
    plain = {name: value for name, value in os.environ.items() if name != POOL}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=plain | environment, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="Arrow's packages for other systems may lack jemalloc")
def test_arrow_takes_memory_by_small_pages():
    assert pool_of_new_process(f"import lakeops; {USED}") == "jemalloc"


def test_who_chose_a_pool_keeps_it():
    assert pool_of_new_process(f"import lakeops; {USED}", **{POOL: "system"}) == "system"


def test_a_process_that_loaded_arrow_first_passes_nothing_on():
    code = f"import os, pyarrow, lakeops; print(os.environ.get({POOL!r}))"
    assert pool_of_new_process(code) == "None"
