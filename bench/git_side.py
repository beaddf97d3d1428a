"""Git's side: the plumbing that does the same to the same paths, each call a process, as everybody uses it.

Trees without blobs, no renames, everything packed before it is measured. Files are forced to the disk where the row
says so, and nowhere else.
"""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

import pyarrow.compute as pc

from bench.candidates import measured
from bench.dataset import BLOBS, Changes, DataSet, blob
from bench.sample import Sample

PATIENCE = 120
"""Seconds after which a git process is stopped; its row then shows no more than that."""

_QUICK = ("-c", "core.fsync=none")
_DURABLE = ("-c", "core.fsync=committed,-loose-object,reference", "-c", "fastimport.unpackLimit=1")
_WHO = "committer bench <bench@example.org> %d +0000\n"


class GitSide:
    """A bare repository with the data set as one commit, ``main``."""

    def __init__(self, folder: Path, data: DataSet) -> None:
        self.data = data
        self._folder = folder
        self._index_info = folder.parent / "index-info"
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder.parent),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_DIR": str(folder),
            "LC_ALL": "C",
        } | {f"GIT_{who}_{what}": "bench@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        self._made = 0
        with self._index_info.open("wb") as file:
            for which in data.batches():
                columns = data.git_ids(which), data.paths(which)
                lines = pc.binary_join_element_wise("100644 ", columns[0], " 0\t", columns[1], "\n", "")
                file.write(lines.buffers()[2][: lines.nbytes - (len(lines) + 1) * 4])

    # --- rows ---

    def import_sorted(self, again: int) -> Sample:
        """All entries: ``update-index --index-info``, then ``write-tree``."""
        self._start_over()
        with self._index_info.open("rb") as lines:
            index = self._timed(_QUICK, "update-index", "--index-info", stdin=lines)
        return index + self._timed(_QUICK, "write-tree", "--missing-ok")

    def commit(self, changes: Changes, *, durable: bool) -> Sample:
        """The changes on top of main: ``fast-import``."""
        return self._fast_import(self._commit_commands("refs/heads/work", changes), durable=durable)

    def diff(self, left: str, right: str) -> Sample:
        """``diff-tree -r``."""
        return self._timed(_QUICK, "diff-tree", "-r", "--no-renames", left, right)

    def merge(self, left: str, right: str, *, durable: bool) -> Sample:
        """``merge-tree``; and when it is published ``commit-tree`` and ``update-ref``."""
        how = _DURABLE if durable else _QUICK
        sample = self._timed(
            (*how, "-c", "merge.renameLimit=1", "-c", "diff.renameLimit=1"), "merge-tree", "--write-tree", left, right
        )
        if durable:
            tree = sample.output.split()[0].decode()
            commit = self._timed(how, "commit-tree", tree, "-p", left, "-p", right, "-m", "merge")
            sample += commit
            sample += self._timed(how, "update-ref", "refs/heads/merged", commit.output.strip().decode())
        return sample

    def branch(self, again: int) -> Sample:
        """``update-ref``, forced to the disk."""
        return self._timed(_DURABLE, "update-ref", f"refs/heads/new-{again}", "main")

    def stat(self, paths: list[str]) -> Sample:
        """One ``ls-tree`` for one path."""
        return self._timed(_QUICK, "ls-tree", "main", paths[0])

    def stat_warm(self, paths: list[str]) -> Sample:
        """Many paths in one ``cat-file --batch-check``."""
        lines = "".join(f"main:{path}\n" for path in paths).encode()
        return self._timed(_QUICK, "cat-file", "--batch-check", stdin=lines) / len(paths)

    def page(self, folder: str) -> Sample:
        """A folder of 1,300 by ``ls-tree``, which knows no pages."""
        return self._timed(_QUICK, "ls-tree", "main", folder)

    def log(self, amount: int) -> Sample:
        """``rev-list`` with everything that a commit says."""
        return self._timed(_QUICK, "rev-list", f"--max-count={amount}", "--pretty=raw", "history")

    def branch_list(self) -> Sample:
        """``git branch``."""
        return self._timed((), "branch", "--list")

    def candidates(self) -> Sample:
        """Not git's work: DuckDB stands in."""
        return measured("duckdb", self._folder.parent / "candidates", self.data.size)

    # --- what rows stand on ---

    def settle(self) -> None:
        """Commit the tree that was imported as main, packed, with the blobs that changes refer to."""
        tree = self._git("write-tree", "--missing-ok").strip().decode()
        commit = self._git("commit-tree", tree, "-m", "base").strip().decode()
        self._git("update-ref", "refs/heads/main", commit)
        (self._folder / "index").unlink()
        trees = [line.split()[2] for line in self._git("ls-tree", "-r", "-d", "main").splitlines()]
        names = b"\n".join([*trees, tree.encode(), commit.encode()])
        self._git("pack-objects", "--quiet", str(self._folder / "objects/pack/pack"), stdin=names + b"\n")
        self._git("prune-packed")
        self._fast_import(b"".join(b"blob\ndata %d\n%s\n" % (len(blob(n)), blob(n)) for n in range(BLOBS)))

    def pack_bytes(self) -> int:
        """The size of what ``settle`` packed."""
        return max(file.stat().st_size for file in (self._folder / "objects/pack").glob("*.pack"))

    def branch_off(self, name: str, changes: Changes) -> None:
        """A branch with these changes on top of main."""
        self._fast_import(self._commit_commands(f"refs/heads/{name}", changes))

    def make_history(self, amount: int) -> None:
        """A branch with so many commits."""
        commits = [b"reset refs/heads/history\nfrom refs/heads/main^0\n\n"]
        for number in range(amount):
            commits.append(b"commit refs/heads/history\n" + (_WHO % (1_700_000_000 + number)).encode())
            commits.append(b"data 8\nday %04d\n" % (number % 10_000))
        self._fast_import(b"".join(commits))

    def _commit_commands(self, ref: str, changes: Changes) -> bytes:
        self._made += 1
        head = f"commit {ref}\n{_WHO % (1_600_000_000 + self._made)}data 4\nwork\nfrom refs/heads/main^0\n"
        return head.encode() + changes.commands()

    def _fast_import(self, commands: bytes, *, durable: bool = False) -> Sample:
        return self._timed(_DURABLE if durable else _QUICK, "fast-import", "--quiet", "--force", stdin=commands)

    def _start_over(self) -> None:
        if self._folder.exists():
            subprocess.run(["rm", "-rf", str(self._folder)], check=True)
        self._folder.mkdir(parents=True)
        self._git("init", "--quiet", "--bare", "--initial-branch=main")
        self._git("config", "gc.auto", "0")

    def _git(self, *arguments: str, stdin: bytes = b"") -> bytes:
        done = subprocess.run(
            ["git", *_QUICK, *arguments], input=stdin, capture_output=True, env=self._environment, check=False
        )
        if done.returncode:
            raise RuntimeError(f"git {arguments[0]}: {done.stderr.decode()}")
        return done.stdout

    def _timed(self, options: Iterable[str], *arguments: str, stdin: object = b"") -> Sample:
        """Wall, CPU and peak memory of one git process and its children."""
        source = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(
            ["git", *options, *arguments],
            capture_output=True,
            env=self._environment,
            check=False,
            timeout=PATIENCE,
            **source,
        )
        wall = time.perf_counter() - begun
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise RuntimeError(f"git {arguments[0]}: {done.stderr.decode()}")
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Sample(wall=wall, cpu=cpu, output=done.stdout)
