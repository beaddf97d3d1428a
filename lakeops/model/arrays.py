"""Numbers between numpy and Arrow.

``pyarrow.array`` and ``to_numpy`` ask whether pandas has a part in it, and import pandas to find out where it is
installed: a quarter of a second and 40 MB, once in every process. Numbers and truth values need nothing of that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def arrow(values: npt.NDArray[Any]) -> pa.Array:
    """Numbers or truth values as an Arrow array without nulls; numbers are not copied."""
    if values.dtype == np.bool_:
        bits = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits)])
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def numbers(values: pa.Array) -> npt.NDArray[Any]:
    """The numbers of an Arrow array without nulls; they are not copied and cannot be changed."""
    return np.from_dlpack(values)
