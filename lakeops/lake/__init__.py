"""The composition root: settings -> Lake -> Repository -> Branch and Ref handles.

Handles are cheap, hold no state of their own and may be used from several threads; each method is one verb of
``lakeops.ops``.
"""

from lakeops.lake.lake import Lake
from lakeops.lake.mirror import Mirror
from lakeops.lake.refs import Branch, Ref
from lakeops.lake.repository import GarbageCollection, Repository

__all__ = ["Branch", "GarbageCollection", "Lake", "Mirror", "Ref", "Repository"]
