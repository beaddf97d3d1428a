"""How much memory a process needs to read what is staged on PostgreSQL."""

from __future__ import annotations

import subprocess
import sys

import psycopg
from support.catalogs import REPO, create

ROWS = 200_000
EXTRA = 390 << 20
"""Bytes of address space beyond what is taken before. With all of the text in memory it takes 446 MiB, else 335."""

FILL = """
INSERT INTO lakeops_staged (repository_id, token, path, tombstone, physical_address, checksum, size_bytes, mtime,
content_type, metadata, changes) SELECT 'repo', %s, 'folder/' || lpad(n::text, 80, '0'), false,
'data/' || lpad(n::text, 60, '0'), repeat('a', 64), n, n, 'application/octet-stream', NULL, 1
FROM generate_series(1, %s) AS n
"""
READ = """
import resource, sys
import psutil, pyarrow.compute, pyarrow.csv
from lakeops.catalog.open import open_catalog
from lakeops.testing import ManualClock
catalog = open_catalog(sys.argv[1], clock=ManualClock())
catalog.staging.staged_table("repo", "main", prefix="zzz")
most = psutil.Process().memory_info().vms + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (most, most))
print(catalog.staging.staged_table("repo", "main")[1].num_rows)
"""


def test_staged_rows_are_read_without_their_text_beside_them(postgres_url, opened):
    catalog = opened(postgres_url)
    create(catalog)
    with psycopg.connect(postgres_url.replace("+psycopg", "")) as conn:
        conn.execute(FILL, [catalog.refs.branch(REPO, "main").staging_token, ROWS])
    ran = subprocess.run(
        [sys.executable, "-c", READ, postgres_url, str(EXTRA)], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, f"{ROWS}\n"), ran.stderr
