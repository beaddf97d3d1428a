"""The testing kit: for pipelines that use lakeops, and for lakeops' own tests.

* ``Faults`` and ``FaultyStore``: a store that fails, stalls or dies at a chosen call, and counts what was called.
* ``ManualClock``: a clock that stands still until a test moves it.
* ``lakeops.testing.fixtures``: pytest fixtures, above all a lake in a temporary directory.

No other room of the package imports this one.
"""

from lakeops.testing.clock import ManualClock
from lakeops.testing.faults import EFFECTS, Call, Crash, Faults, FaultyStore, open_faulty

__all__ = ["EFFECTS", "Call", "Crash", "Faults", "FaultyStore", "ManualClock", "open_faulty"]
