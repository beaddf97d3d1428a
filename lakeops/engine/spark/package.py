"""Bringing this code along to executors of other machines, so that both sides always run the same version.

What the code needs (Python, pyarrow, numpy, boto3 for buckets) must be there already.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import lakeops

_PARTS = ("model", "store", "ranges", "engine")
"""What workers run. The rest stays at home: a worker has no catalog and no way to publish."""


def write_package(folder: Path) -> Path:
    """A zip file in ``folder`` with the parts of lakeops that workers run."""
    root = Path(lakeops.__file__).parent
    target = folder / "lakeops-workers.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        sources = [root / "__init__.py", root / "version.py"]
        sources += [file for part in _PARTS for file in sorted((root / part).rglob("*.py"))]
        for file in sources:
            archive.write(file, Path("lakeops") / file.relative_to(root))
    return target
