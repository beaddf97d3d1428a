"""Numbers that come and go between numpy and Arrow."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeops.model.schema import arrow, numbers, text


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64, np.uint8, np.uint32, np.uint64, np.float64])
def test_numbers(kind):
    values = np.arange(20, dtype=kind)
    for some in (values, values[:0], values[3:], values[::3]):
        assert arrow(some).equals(pa.array(some))
        assert arrow(some).type == pa.from_numpy_dtype(kind)
        assert numbers(pa.array(some)).tolist() == some.tolist()
        assert numbers(pa.array(some)).dtype == kind
    assert numbers(pa.array(values).slice(5, 3)).tolist() == [5, 6, 7]


@given(st.lists(st.booleans(), max_size=70))
def test_truth_values(values):
    assert arrow(np.array(values, np.bool_)).equals(pa.array(values, pa.bool_()))


def test_numbers_are_not_copied():
    values = np.arange(9)
    assert arrow(values).buffers()[1].address == values.ctypes.data
    assert np.shares_memory(numbers(arrow(values)), values)


@given(st.text())
def test_a_text(value):
    assert text(value).equals(pa.scalar(value))


def test_pandas_is_left_alone():
    code = (
        "import sys; import numpy as np; from lakeops.model.schema import arrow, numbers, text\n"
        "numbers(arrow(np.arange(3))); arrow(np.ones(3, bool)); text('a'); sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
