"""Operators on objects: upload and delete them, list what changed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from lakeops.airflow import task
from lakeops.airflow.compat import LakeopsFailure
from lakeops.airflow.previews import LISTED, DiffSummary
from lakeops.airflow.task import LakeopsBranchOperator, LakeopsOperator
from lakeops.model.errors import InvalidInput, InvalidPath, ObjectNotFound
from lakeops.model.names import as_folder, check_path, is_table_file, table_format
from lakeops.model.sanitising import one_line, safe

if TYPE_CHECKING:
    from lakeops.airflow.idempotent import TaskRun
    from lakeops.lake import Repository


class LakeopsUploadOperator(LakeopsBranchOperator):
    """Uploads a file or directory of the worker, or a text, to a branch; returns what was staged.

    The result has ``branch``, ``objects`` (how many), ``bytes`` and ``paths`` (the first hundred). The objects are
    uncommitted changes until the branch is committed. Contents that are there already are no change.

    Args:
        path: the object's path, or the folder that files go below.
        source: a file or directory that the worker sees.
        data: a text in place of a source; it is stored in UTF-8.
        content_type: of every object.
        metadata: user metadata of every object.
        skip_special: leave out links, pipes and devices below a directory, instead of failing the task.
    """

    template_fields: Any = (
        *LakeopsBranchOperator.template_fields,
        "path",
        "source",
        "data",
        "content_type",
        "metadata",
    )
    branch: str

    def __init__(
        self,
        *,
        branch: str,
        path: str,
        source: str | None = None,
        data: str | None = None,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        skip_special: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(branch=branch, **kwargs)
        self.path = path
        self.source = source
        self.data = data
        self.content_type = content_type
        self.metadata = metadata
        self.skip_special = skip_special

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        branch = repository.branch(self.target(repository))
        described: dict[str, Any] = {"metadata": self.metadata, "content_type": self.content_type}
        if (self.source is None) == (self.data is None):
            raise InvalidInput(f"upload to lakefs://{repository.id}/{branch.id}: give either source or data")
        if self.source == "":  # to a path it would mean the directory that the worker runs in
            raise InvalidInput("source must not be empty: a template may have given nothing")
        if self.data is not None:
            entries = [branch.put(self.path, self.data.encode(), **described)]
        else:
            entries = branch.upload(cast("str", self.source), self.path, skip_special=self.skip_special, **described)
        size = sum(entry.size_bytes for entry in entries)
        self.log.info("Staged %d objects, %d bytes, on lakefs://%s/%s", len(entries), size, repository.id, branch.id)
        paths = [entry.path for entry in entries[:LISTED]]
        self.read = () if self.source is None else (task.LineageDataset("file", self.source),)
        self.written = (task.LineageDataset(f"lakefs://{repository.id}", f"{branch.id}/{self.path}".rstrip("/")),)
        return {"branch": branch.id, "objects": len(entries), "bytes": size, "paths": paths}


class LakeopsDeleteObjectsOperator(LakeopsBranchOperator):
    """Deletes objects of a branch; returns ``branch`` and how many deletions were staged (``objects``).

    They are uncommitted changes until the branch is committed, and earlier commits keep the objects. A path without an
    object is no error: ``missing`` lists the first hundred, and the log warns of a deletion that found nothing.

    Args:
        paths: objects. Also the text that a template makes of a list of them.
        prefix: the folder whose objects are deleted.
    """

    template_fields: Any = (*LakeopsBranchOperator.template_fields, "paths", "prefix")
    branch: str

    def __init__(
        self, *, branch: str, paths: Sequence[str] | str | None = None, prefix: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(branch=branch, **kwargs)
        self.paths = paths
        self.prefix = prefix

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        branch = repository.branch(self.target(repository))
        paths = tuple(self.paths or ())
        if not paths and not self.prefix:
            raise InvalidInput(f"nothing to delete on lakefs://{repository.id}/{branch.id}: give paths or a prefix")
        for path in paths:  # all of them before the first is deleted
            try:
                check_path(path)
            except InvalidPath as error:
                raise InvalidInput(f"paths: {error.message}") from None
        count, missing = branch.delete_prefix(as_folder(self.prefix)) if self.prefix else 0, []
        for path in paths:
            try:
                branch.delete(path)
            except ObjectNotFound:
                missing.append(path)
                self.log.info("There is no object lakefs://%s/%s/%s", repository.id, branch.id, safe(path))
            else:
                count += 1
        if count:
            self.log.info("Staged %d deletions on lakefs://%s/%s", count, repository.id, branch.id)
        else:
            what = ", ".join(map(repr, [*paths[:3], *([self.prefix] if self.prefix else [])]))
            self.log.warning("Nothing was deleted on lakefs://%s/%s: no object at %s", repository.id, branch.id, what)
        return {"branch": branch.id, "objects": count, "missing": missing[:LISTED]}


class LakeopsDiffOperator(LakeopsOperator):
    """Lists changes; returns the first ``changes`` (``type``, ``path``, ``size_bytes``), and whether that is all.

    The counts are ``total``, ``added``, ``removed``, ``changed`` and ``conflict``. ``truncated``: there are more.

    Args:
        right: the ref whose changes are listed.
        left: the ref to compare with. Left out: the uncommitted changes of the branch ``right``.
        two_way: list everything that differs from ``left`` to ``right``, instead of what ``right`` changed since their
            merge base (what a merge into ``left`` would bring, and its conflicts).
        max_changes: how many changes are listed. The counts always cover all changes.
    """

    template_fields: Any = (*LakeopsOperator.template_fields, "right", "left", "prefix")
    operator_extra_links: Any = (task.LakeopsDiffLink(),)

    def __init__(
        self,
        *,
        right: str,
        left: str | None = None,
        prefix: str = "",
        two_way: bool = False,
        max_changes: int = LISTED,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.right = right
        self.left = left
        self.prefix = prefix
        self.two_way = two_way
        self.max_changes = max_changes

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        if not self.left:
            self.link(repository, "diff", "ref", self.right)
            changes = repository.branch(self.right).uncommitted(self.prefix)
        else:
            more = {"two_way": "true"} if self.two_way else {}
            self.link(repository, "diff", "diff", left=self.left, right=self.right, **more)
            compare = repository.diff if self.two_way else repository.compare
            changes = compare(self.left, self.right, prefix=self.prefix)
        tally = DiffSummary.of(changes, self.max_changes)
        self.log.info("%s", tally)
        self.read = tuple(
            task.LineageDataset.of(repository, ref, self.prefix) for ref in (self.left, self.right) if ref
        )
        return tally.to_json()


class LakeopsSqlCheckOperator(LakeopsOperator):
    """Fails when a query of a commit finds rows, and says which; returns ``commit_id``. DuckDB runs the query.

    Each table is a view: ``SELECT id FROM sales WHERE amount < 0``. The block's ``publish.sql`` makes a check of it.

    Args:
        ref: the ref to read, best a commit id.
        sql: the query of what is wrong, one ``SELECT``. The first ten rows are listed.
        tables: names of views, each with the folder or the file of its data: Parquet, CSV or JSON. Folders may have
            ``name=value`` folders below them, which become columns. The top-level folders when left out.
    """

    template_fields: Any = (*LakeopsOperator.template_fields, "ref", "sql", "tables")
    template_fields_renderers: ClassVar[dict[str, str]] = {"sql": "sql"}
    operator_extra_links: Any = (task.LakeopsCommitLink(),)

    def __init__(self, *, ref: str, sql: str, tables: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ref = ref
        self.sql = sql
        self.tables = tables

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        import duckdb

        from lakeops.fs import LakeopsFileSystem

        self.link(repository, "commit", "commit", self.ref)
        commit = repository.ref(self.ref).commit_id  # all tables of one moment
        folders = repository.ref(commit).list(delimiter="/") if self.tables is None else ()
        tables = self.tables or {one.path.rstrip("/"): one.path for one in folders if one.path.endswith("/")}
        if not all(isinstance(text, str) for pair in tables.items() for text in pair):
            raise InvalidInput("tables: each name of a view and each path must be text")
        queries, unread = dict[str, str](), list[str]()
        for name, path in tables.items():
            try:
                queries[name.replace('"', '""')] = _reading(repository, commit, path)
            except (InvalidInput, ObjectNotFound) as error:
                if self.tables is not None:
                    raise
                unread.append(str(error))
        with duckdb.connect() as connection:
            connection.register_filesystem(LakeopsFileSystem(conn_id=self.lakeops_conn_id, skip_instance_cache=True))
            try:
                for view, query in queries.items():
                    connection.execute(f'CREATE VIEW "{view}" AS {query}')
                statements = duckdb.extract_statements(self.sql)
                if [one.type for one in statements] != [duckdb.StatementType.SELECT]:  # others would hide its rows
                    raise InvalidInput("sql: give exactly one SELECT, which finds what is wrong")
                rows = connection.execute(statements[0]).fetchmany(11)
                columns = [column[0] for column in connection.description or ()]
            except duckdb.Error as error:
                reasons = "; ".join([one_line(error), *unread[:10]])
                raise LakeopsFailure(f"sql: DuckDB cannot run it: {reasons}") from None
        if rows:
            shown = [", ".join(map("{}={}".format, columns, row)) for row in rows[:10]]
            more = ["and more"] if len(rows) > 10 else []
            raise LakeopsFailure(f"not published: {'; '.join([*shown, *more])}")
        return {"commit_id": commit}


_READERS = {"parquet": "read_parquet", "csv": "read_csv", "json": "read_json"}
_LOGS = {
    "_delta_log/": "a Delta table, whose files may hold removed rows; check it with deltalake",
    "_spark_metadata/": "the output of a stream, whose log tells which files count; delete the log if all do",
}


def _reading(repository: Repository, commit: str, path: str) -> str:
    """The query of a table's file, or of the files in its folder that Spark would read.

    Raises:
        ObjectNotFound: there is no Parquet, CSV or JSON file.
        InvalidInput: a Delta table, or files of several formats.
    """
    folder = as_folder(path)
    listed = [one.path for one in repository.ref(commit).list(path) if one.path == path or one.path.startswith(folder)]
    for log, what in _LOGS.items():
        if any(one.startswith(folder + log) for one in listed):
            raise InvalidInput(f"tables: {path!r} is {what}")
    files = [one for one in listed if one == path or is_table_file(one[len(folder) :])]
    formats = {table_format(one) or "" for one in files}
    if not formats & _READERS.keys():
        raise ObjectNotFound(f"tables: no Parquet, CSV or JSON file at {path!r} of commit {commit[:16]}")
    if len(formats) > 1:
        raise InvalidInput(f"tables: the files at {path!r} have several formats; name a folder or file of one format")
    plain = (re.sub(r"([*?[])", r"[\1]", one).replace("'", "''") for one in files)
    urls = ", ".join(f"'lakefs://{repository.id}/{commit}/{one}'" for one in plain)
    return f"SELECT * FROM {_READERS[formats.pop()]}([{urls}], hive_partitioning = true)"  # noqa: S608 - quoted above
