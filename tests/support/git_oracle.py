"""Git itself, as the judge of what merge bases, ref expressions, logs, names and merges should be."""

import hashlib
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

EPOCH = 1_600_000_000
"""Added to every date: Git keeps dates as Unix seconds and is happiest with real ones."""

Tree = Mapping[str, str]
"""Path to content. Paths as Git takes them: no empty, ``.`` or ``..`` segment, no ``.git``."""


@dataclass(frozen=True)
class Node:
    """A commit to make: parents as indexes of earlier nodes, a date in seconds, the files of its tree."""

    parents: tuple[int, ...]
    date: int = 0
    files: Tree = field(default_factory=dict)


@dataclass(frozen=True)
class GitMerge:
    """The result of Git's merge: the paths that merged cleanly, and those that conflict."""

    merged: dict[str, str]
    conflicts: set[str]


class GitOracle:
    """A bare repository in ``directory``, shielded from the machine's and the user's configuration.

    Paths are merged whole, and on their own: Git is given a digest of path and content in a content's place. So no
    two paths look alike, and no renames are seen (Git 2.39 cannot switch them off), nor two versions merged by line.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._contents: dict[str, str] = {}
        self._imports = 0
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "LC_ALL": "C",
        }
        directory.mkdir(parents=True, exist_ok=True)
        self._git("init", "--quiet", "--bare", "--initial-branch=main")
        self._git("config", "core.ignoreCase", "false")

    def import_dag(self, nodes: Sequence[Node]) -> list[str]:
        """Make the commits; their ids in the same order."""
        return self.import_dags([nodes])[0]

    def import_dags(self, dags: Sequence[Sequence[Node]]) -> list[list[str]]:
        """Make the commits of many graphs in one go; their ids in the same order."""
        self._imports += 1
        marks = self._directory / f"marks-{self._imports}"
        stream = bytearray()
        first = 1
        for dag in dags:
            for index, node in enumerate(dag):
                stream += self._commit_command(first, index, node)
            first += len(dag)
        self._git("fast-import", "--quiet", "--force", f"--export-marks={marks}", stdin=bytes(stream))
        ids = dict(line.split() for line in marks.read_text().splitlines())
        result, first = [], 1
        for dag in dags:
            result.append([ids[f":{first + index}"] for index in range(len(dag))])
            first += len(dag)
        return result

    def rev_parse(self, expressions: Iterable[str]) -> list[str | None]:
        """The commit that each expression means, None for those that mean nothing."""
        lines = self._git("cat-file", "--batch-check", stdin="".join(f"{e}\n" for e in expressions).encode())
        return [line.split()[0] if " commit " in line else None for line in lines.decode().splitlines()]

    def merge_base_all(self, left: str, right: str) -> set[str]:
        """Every best common ancestor."""
        return set(self._git("merge-base", "--all", left, right, accept=(0, 1)).decode().split())

    def is_ancestor(self, ancestor: str, descendant: str) -> bool:
        """Whether the descendant can reach the ancestor."""
        result = self._run("merge-base", "--is-ancestor", ancestor, descendant)
        assert result.returncode in (0, 1), result.stderr
        return result.returncode == 0

    def first_parents(self, start: str) -> list[str]:
        """``git log --first-parent``, as ids."""
        return self._git("rev-list", "--first-parent", start).decode().split()

    def date_order(self, start: str) -> list[str]:
        """``git log --date-order``, as ids."""
        return self._git("rev-list", "--date-order", start).decode().split()

    def accepts_branch_name(self, name: str) -> bool:
        """``git check-ref-format --branch``."""
        result = self._run("check-ref-format", "--branch", name)
        return result.returncode == 0 and result.stdout == name.encode() + b"\n"

    def merge_trees(self, base: Tree, ours: Tree, theirs: Tree) -> GitMerge:
        """The three-way merge of two trees."""
        return self.merge_all([(base, ours, theirs)])[0]

    def merge_all(self, cases: Sequence[tuple[Tree, Tree, Tree]]) -> list[GitMerge]:
        """Many three-way merges (base, ours, theirs), in two Git processes and one more for each merge."""
        dags = [(Node((), 0, base), Node((0,), 1, ours), Node((0,), 2, theirs)) for base, ours, theirs in cases]
        return self.merge_commits((ours, theirs) for _, ours, theirs in self.import_dags(dags))

    def merge_commits(self, pairs: Iterable[tuple[str, str]]) -> list[GitMerge]:
        """Merges of commits over whatever history they have, criss-crosses too, in one Git process and one for each."""
        lines = [f"{ours} {theirs}\n" for ours, theirs in pairs]
        fields = iter(
            self._git("merge-tree", "--write-tree", "--stdin", "-z", "--name-only", "--no-messages",
                      stdin="".join(lines).encode()).split(b"\0")
        )  # fmt: skip
        merges = []
        for _ in lines:
            clean, tree = next(fields) == b"1", next(fields).decode()
            conflicts = {path.decode() for path in iter(lambda: next(fields), b"")}
            assert clean == (not conflicts)
            merges.append(GitMerge(self._files(tree, conflicts), conflicts))
        return merges

    def _files(self, tree: str, without: set[str]) -> dict[str, str]:
        listing = self._git("ls-tree", "-r", "-z", tree).decode()
        rows = (row.partition("\t") for row in listing.split("\0") if row)
        return {path: self._contents[attributes.split()[2]] for attributes, _, path in rows if path not in without}

    def _commit_command(self, first: int, index: int, node: Node) -> bytes:
        # The mark is in the message, so that two commits that are alike in all else stay two.
        mark = f"{self._imports}.{first + index}"
        lines = [] if node.parents else ["reset refs/heads/work\n\n"]
        lines += [
            "commit refs/heads/work\n",
            f"mark :{first + index}\n",
            f"committer t <t@t> {EPOCH + node.date} +0000\n",
            f"data {len(mark)}\n{mark}\n",
        ]
        for position, parent in enumerate(node.parents):
            lines.append(f"{'merge' if position else 'from'} :{first + parent}\n")
        lines.append("deleteall\n")
        for path, content in node.files.items():
            quoted = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            blob = hashlib.sha256(f"{path}\0{content}".encode()).hexdigest()
            self._contents[_blob_id(blob)] = content
            lines.append(f'M 100644 inline "{quoted}"\ndata {len(blob)}\n{blob}\n')
        return "".join(lines).encode()

    def _git(self, *arguments: str, stdin: bytes = b"", accept: tuple[int, ...] = (0,)) -> bytes:
        result = self._run(*arguments, stdin=stdin)
        assert result.returncode in accept, result.stderr.decode()
        return result.stdout

    def _run(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = ["git", f"--git-dir={self._directory}", *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, env=self._environment, check=False)


def _blob_id(blob: str) -> str:
    data = blob.encode()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
