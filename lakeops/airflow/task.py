"""The base of all tasks (operators, sensors, approvals): arguments, failures, links, lineage.

A task keeps nothing but its arguments between ``__init__`` and ``execute``, and opens no lake before it runs.
"""

from __future__ import annotations

import ast
import gc
import inspect
import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import quote, urlencode

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.sdk import BaseOperator, BaseOperatorLink, get_current_context

from lakeops.airflow.assets import COMMITS, announce, branch_asset
from lakeops.airflow.compat import LakeopsFailure, log_in_one_line, web_server
from lakeops.airflow.hook import DEFAULT_CONN_ID, LakeopsHook
from lakeops.airflow.idempotent import MISTAKES, TaskRun
from lakeops.airflow.metrics import emit
from lakeops.machine import without_blas_threads
from lakeops.model import errors
from lakeops.model.formatting import moment
from lakeops.model.names import is_text
from lakeops.model.sanitising import excerpt, safe

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from lakeops.lake import Lake, Repository

PLUGIN = "lakeops.airflow.plugin"
TEXT = re.compile(r"(StrategyName \| )?str( \| None)?")
"""Annotations of arguments that are text."""
REFS = {"branch", "destination", "merged_into", "ref", "since", "source"}
"""Arguments that are refs, in most operators."""
MAY_BE_EMPTY = {"path", "prefix"}
"""Required arguments that mean everything when they are empty."""
NARROW = {"merged_into", "path", "prefix"}
"""Arguments that limit what a task may change where they are not None. Only what a form has shown may do without."""
PROSE = {"data", "message", "sql"}
"""Arguments of any text, also one that looks like a list."""
NOTHING = {"", "None", "null"}
"""Texts that templates make of nothing."""
CONFLICTS_KEY = "conflicts"
"""The XCom that describes a merge conflict. A failed task has no result, so the XCom has a key of its own."""
CONFLICTS_LISTED = 1000
"""How many paths that XCom has. The log and the error have all of them."""
CONFLICTS_COMPARED = 50
"""How many paths are shown with their sizes on both sides."""

log: logging.Logger = logging.getLogger(__name__)


# --- links to pages: the plugin serves them, and where it is not installed they stay empty ---


def address(connection: str, repository: str, *parts: str, **query: str) -> str:
    """The path of a page on Airflow's web server, without a host; empty where the plugin is not loaded."""
    if PLUGIN not in sys.modules:
        return ""
    path = "/".join(quote(part, safe="") for part in (connection, repository, *parts))
    return f"{web_server().path}/lakeops/{path}" + (f"?{urlencode(query)}" if query else "")


def host() -> str:
    """Scheme and host of Airflow's web server, for addresses in a log; empty where Airflow does not know them."""
    base = web_server()
    return f"{base.scheme}://{base.netloc}" if base.netloc else ""


def point_to(kind: str, page: str, task: Any = None) -> None:
    """Write a page's address to the log, and make it a task's link of that kind: of the running one without a task."""
    if not page:
        return
    log.info("See the %s: %s%s", kind, host(), page)
    with suppress(RuntimeError):  # no task is running
        task = task or get_current_context()["task"]
        task.links = {**getattr(task, "links", {}), kind: page}


def running_links() -> str:
    """The addresses of the running task's pages, as a sentence for the end of a message; empty without any."""
    try:
        links: dict[str, str] = getattr(get_current_context()["task"], "links", {})
    except RuntimeError:  # no task is running
        return ""
    pages = [f"the {kind}: {host()}{page}" for kind, page in links.items() if page]
    return f". See {' and '.join(pages)}" if pages else ""


def linked(decorated: Any, *links: BaseOperatorLink) -> Any:
    """Give a TaskFlow task links, by a class of its own, where Airflow looks for a mapped task's."""
    base = decorated.operator_class
    members = {"operator_extra_links": links, "__module__": base.__module__, "__doc__": base.__doc__}
    decorated.operator_class = type(base.__name__, (base,), members)
    return decorated


class _PageLink(BaseOperatorLink):
    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        links: dict[str, str] = getattr(operator, "links", {})
        return links.get(self.name.lower(), "")


class LakeopsCommitLink(_PageLink):
    """Links to the commit that a task has published."""

    name = "Commit"


class LakeopsBranchLink(_PageLink):
    """Links to the branch that a task has worked on."""

    name = "Branch"


class LakeopsDiffLink(_PageLink):
    """Links to the difference that a task has listed, or would have merged."""

    name = "Diff"


class LakeopsPageLink(_PageLink):
    """Links to the page that shows best what a task was about."""

    name = "Page"


# --- failures ---


@contextmanager
def failing_at_once(arguments: Mapping[str, object] | None = None) -> Iterator[None]:
    """Make errors that would come again fail the task without retry. Errors that may pass are retried.

    The message of a merge conflict lists every conflicting path, one a line. The message of a mistake begins with the
    one of the task's ``arguments`` whose value it quotes, and names the page to look at where the task has one.
    """
    try:
        yield
    except (errors.Transient, errors.AttemptExpired, errors.SweepIncomplete) as error:
        emit("lakeops.retries", kind=error.kind)
        log_in_one_line()
        raise
    except errors.MergeConflict as conflict:
        emit("lakeops.conflicts")
        paths = "\n".join(conflict.conflicts)
        raise LakeopsFailure(f"{_with_notes(conflict)}{running_links()}\nAll conflicting paths:\n{paths}") from None
    except MISTAKES as error:
        if error.kind == "missing_check":
            emit("lakeops.rejected", check=error.kind)
        field = _field_of(error.message, arguments or {})
        raise LakeopsFailure(f"{error.kind}: {field}{_with_notes(error)}{running_links()}") from None
    except errors.LakeopsError as error:  # damage, say: where it was met is worth showing
        raise AirflowFailException(f"{error.kind}: {error.message}") from error


def _with_notes(error: errors.LakeopsError) -> str:
    return ". ".join([error.message, *getattr(error, "__notes__", ())])


@contextmanager
def explaining(repository: Repository, refs: Iterable[object]) -> Iterator[None]:
    """Add to an error who deleted one of the task's refs, or who wrote the other side of a conflict, and advice.

    Nothing is asked of the lake unless a ref is missing or a merge conflicts.
    """
    try:
        yield
    except errors.RefNotFound as error:
        for ref in refs:
            note = _deletion(repository, str(ref)) if ref else None
            if note is not None:
                error.add_note(note + _clear_the_block(repository, "to write it again", with_branch=False))
        raise
    except errors.MergeConflict as conflict:
        with suppress(errors.LakeopsError, KeyError):
            path = conflict.conflicts[0]
            for theirs in repository.log(conflict.destination, path=path, amount=1):
                made = theirs.metadata
                task = "task {airflow_task_id!r} of run {airflow_run_id!r} of DAG {airflow_dag_id!r}"
                by = f", {task.format_map(made)}" if "airflow_dag_id" in made else ""
                said = f"{path!r} was changed at {conflict.destination!r} by {safe(theirs.committer)}{by}"
                conflict.add_note(f"{said}, in commit {theirs.id[:16]} ({excerpt(theirs.message)})")
        clear = _clear_the_block(repository, f"to begin anew at what {conflict.destination!r} is now")
        if clear:
            conflict.add_note(clear.removeprefix(". "))
        raise


def _deletion(repository: Repository, ref: str) -> str | None:
    with suppress(errors.LakeopsError):  # no name of a ref, for one
        last = next(iter(repository.reflog(ref, limit=1)), None)
        if last is not None and last.new is None and last.old is not None:
            since = datetime.fromtimestamp(last.at - 1, UTC)
            audit = (one for one in repository.audit(since=since) if one.ref == ref and one.after is None)
            who = next((one.actor for one in audit), last.actor)
            return f"{safe(who)} deleted {ref!r} at {moment(last.at)}, when it was at commit {last.old[:16]}"
    return None


def _clear_the_block(repository: Repository, why: str, *, with_branch: bool = True) -> str:
    """The advice to clear the task group that makes the branch of this run. Empty outside of such a group."""
    try:
        task: Any = (context := get_current_context())["task"]
    except RuntimeError:  # no task is running
        return ""
    group = task.task_group
    while group is not None and group.group_id:
        for made in group.iter_tasks():
            if made.task_type == "LakeopsCreateBranchOperator" and (template := getattr(made, "branch", None)):
                branch = task.render_template(template, context)
                page = address(getattr(made, "lakeops_conn_id", DEFAULT_CONN_ID), repository.id, "ref", branch)
                kept = f". Branch {branch!r} keeps the data of this run" + (f": {host()}{page}" if page else "")
                return f"{kept if with_branch else ''}. Clear the whole task group {group.group_id!r} {why}"
        group = group.parent_group
    return ""


def _field_of(message: str, arguments: Mapping[str, object]) -> str:
    """The arguments whose values a message quotes, as its beginning; empty when the message names them itself."""
    quoted = [name for name, value in arguments.items() if value and isinstance(value, str) and repr(value) in message]
    names = [name for name in quoted if name not in {"repo", "lakeops_conn_id"}]  # these say where, in any message
    if not names or any(re.search(rf"\b{name.replace('_', '[_ ]')}\b", message) for name in names):
        return ""
    return f"{' or '.join(names)}: "


def _report_conflict(conflict: errors.MergeConflict, repository: Repository, context: Context, log: Any) -> None:
    """Write a table of a conflict to a task's log, and an XCom that later tasks can read.

    The table has the object's size on each side of a merge, in bytes, or None where it is deleted.
    """
    sides = {} if conflict.replayed else {"source": conflict.source, "destination": conflict.destination}
    rows: list[dict[str, Any]] = [{"path": path} for path in conflict.conflicts[:CONFLICTS_COMPARED]]
    try:
        for row in rows:
            for name, ref in sides.items():
                found = repository.ref(ref).find(row["path"])
                row[name] = None if found is None else found.size_bytes
    except errors.LakeopsError:  # the ref was deleted, or its commit has expired, since the merge failed
        rows, sides = [{"path": row["path"]} for row in rows], {}
    cells = [("path", *sides)]
    for row in rows:
        sizes = ("deleted" if row[name] is None else f"{row[name]:,} B" for name in sides)
        cells.append((safe(row["path"]), *sizes))
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    if conflict.conflict_count > len(rows):
        lines.append(f"... and {conflict.conflict_count - len(rows):,} more, all listed below")
    log.error("%s", "\n".join([f"Conflicts: {conflict.conflict_count:,}", *lines]))
    value = {
        "source": conflict.source,
        "destination": conflict.destination,
        "conflict_count": conflict.conflict_count,
        "conflicts": conflict.conflicts[:CONFLICTS_LISTED],
        "table": rows,
    }
    context["ti"].xcom_push(key=CONFLICTS_KEY, value=value)


# --- lineage: the data that a task read and wrote, for OpenLineage ---


class LineageDataset(NamedTuple):
    """A data set of OpenLineage. Its version is the commit id, so a reader of the lineage can go back to that data.

    A branch's data has the namespace ``lakefs://REPO`` and the name ``BRANCH`` or ``BRANCH/PATH``.
    """

    namespace: str
    name: str
    version: str | None = None

    @classmethod
    def of(cls, repository: Repository, ref: str, path: str = "", *, version: str | None = None) -> LineageDataset:
        """The data of a ref under a path. The version is the ref's commit, unless one is given or the ref is gone."""
        if version is None:
            with suppress(errors.LakeopsError):
                version = repository.ref(ref).commit_id
        return cls(f"lakefs://{repository.id}", f"{ref}/{path}".rstrip("/"), version)

    @classmethod
    def outside(cls, url: str) -> LineageDataset:
        """The data at a URL of a bucket or a directory, in OpenLineage's naming."""
        scheme, _, rest = url.partition("://")
        if scheme == "file":
            return cls("file", rest)
        bucket, _, key = rest.partition("/")
        return cls(f"{scheme}://{bucket}", key.rstrip("/") or "/")

    def to_openlineage(self) -> Any:
        from openlineage.client.event_v2 import Dataset
        from openlineage.client.facet_v2 import dataset_version_dataset

        version = self.version and dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=self.version)
        return Dataset(namespace=self.namespace, name=self.name, facets={"version": version} if version else None)


# --- arguments and values ---


def number(name: str, value: int | str | None) -> int | None:
    """Parse a whole number, also from the text of a template. Empty text is None. Raises ``InvalidInput``."""
    if value is None or str(value).strip() in NOTHING:
        return None
    try:
        return int(str(value))
    except ValueError:
        raise errors.InvalidInput(f"{name}: {excerpt(str(value))} is not a number") from None


def truth(name: str, value: bool | str | None) -> bool:
    """Parse yes or no, also from the text of a template. Raises ``InvalidInput``: no guess is safe."""
    word = str(value).strip().lower()
    if word in {"true", "yes", "1", "on"}:
        return True
    if word in {"false", "no", "0", "off", "none", ""}:
        return False
    raise errors.InvalidInput(f"{name}: {excerpt(str(value))} is neither true nor false")


def literal(text: str) -> Any:
    """The list or map that Airflow has rendered to text: JSON, or Python's own form. Any other text as it is."""
    for parse in (json.loads, ast.literal_eval):
        with suppress(TypeError, ValueError, SyntaxError, MemoryError, RecursionError):
            found = parse(text.strip())
            if isinstance(found, list | tuple | set | dict):
                return sorted(found) if isinstance(found, set) else found
    return text


def texts(name: str, value: Sequence[str] | str | None) -> tuple[str, ...]:
    """Several texts, also from the text that a template has made of a list. Raises ``InvalidInput``: no guess is safe.

    A text that is no list is the only one. One in square brackets must be a list.
    """
    if isinstance(value, str):
        found = () if value.strip() in NOTHING else literal(value)
        value = (found,) if isinstance(found, str) else found
    if isinstance(value, Mapping) or (value is not None and not isinstance(value, Iterable)):
        raise errors.InvalidInput(f"{name}: {excerpt(value)} is no list of texts")
    return tuple(_one_text(name, each) for each in (() if value is None else value))


def check_text(name: str, value: object) -> None:
    """Refuse what is no text, and text that a template makes of no value or of several. Raises ``InvalidInput``."""
    if not (isinstance(value, str) and is_text(value)):
        raise errors.InvalidInput(f"{name}: {excerpt(value)} is not text")
    if name not in PROSE and ((value and value.strip() in NOTHING) or not isinstance(literal(value), str)):
        raise errors.InvalidInput(
            f"{name}: {excerpt(value)} is text that a template makes of no value, or of several values"
        )


def _one_text(name: str, value: object) -> str:
    shape = value.strip() if isinstance(value, str) else "[]"
    if value == "" or shape[:1] + shape[-1:] == "[]":
        raise errors.InvalidInput(f"{name}: {excerpt(value)} is no text, and no list of texts that can be read")
    return str(value)


@contextmanager
def opened(repo: str | None, lakeops_conn_id: str, *refs: str, **texts: str) -> Iterator[Repository]:
    """Open a connection's repository. Errors, about ``refs`` and ``texts`` too, end the task by ``failing_at_once``."""
    with failing_at_once(), LakeopsHook(lakeops_conn_id).repository(repo) as repository, explaining(repository, refs):
        for name, text in texts.items():
            check_text(name, text)
        yield repository


class LakeopsTask(BaseOperator):
    """A task on one repository of the lake that a connection names.

    Args:
        repo: the repository; the connection's default one when left out.
        lakeops_conn_id: the connection. ``lakeops_default`` is the environment's lake when nobody defined it.
        kwargs: what Airflow's class takes.
    """

    template_fields: Any = ("repo", "lakeops_conn_id")

    def __init__(self, *, repo: str | None = None, lakeops_conn_id: str = DEFAULT_CONN_ID, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.repo = repo
        self.lakeops_conn_id = lakeops_conn_id

    def parameters(self) -> dict[str, inspect.Parameter]:
        """The arguments of this class and its bases, as their ``__init__`` declare them; Airflow's own left out."""
        found: dict[str, inspect.Parameter] = {}
        for kind in reversed(type(self).__mro__):
            if issubclass(kind, LakeopsTask) and "__init__" in vars(kind):
                found.update(inspect.signature(kind.__init__).parameters)
        return {
            name: one for name, one in found.items() if one.kind is not one.VAR_KEYWORD and name in self.template_fields
        }

    def arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.parameters()}

    def check_values(self) -> None:
        """Check the values that templates have rendered to, and read lists and maps of texts. Raises ``InvalidInput``.

        An empty required argument would mean the default branch, or the connection's default repository, which nobody
        has asked for. Templates may give lists and numbers where a text belongs.
        """
        empty = []
        for name, one in sorted(self.parameters().items()):
            kind = one.annotation if isinstance(one.annotation, str) else inspect.formatannotation(one.annotation)
            value, required = getattr(self, name), one.default is one.empty or (one.default and kind == "str")
            if "None" in kind:
                missing = value == "" and name in NARROW and not getattr(self, "shown", None)
            else:
                missing = required and not value and name not in MAY_BE_EMPTY
            if missing:
                empty.append(name)
            elif value is not None and TEXT.fullmatch(kind):
                check_text(name, value)
            elif kind.startswith("Sequence"):
                setattr(self, name, texts(name, value))
            elif value and kind.startswith("Mapping"):
                found = literal(value) if isinstance(value, str) else value
                if not isinstance(found, Mapping):
                    raise errors.InvalidInput(f"{name}: {excerpt(value)} is not a map from text to text")
                setattr(self, name, found)
        if empty:
            raise errors.InvalidInput(f"{' and '.join(empty)} must not be empty: a template may have given nothing")

    @contextmanager
    def opened(self) -> Iterator[Repository]:
        """Open the task's repository. Errors end the task as ``failing_at_once`` says."""
        with failing_at_once(self.arguments()):
            self.check_values()
            with LakeopsHook(self.lakeops_conn_id).repository(self.repo) as opened, explaining(opened, self.refs()):
                yield opened

    def refs(self) -> list[Any]:
        """The refs among the arguments."""
        return [value for name, value in self.arguments().items() if name in REFS]


# --- operators ---


class TaskKilled(BaseException):
    """Raised in a task's main thread by ``on_kill``. No handler of errors takes it for one."""


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Leave what Airflow has loaded out of searches for garbage: one of them takes as long as importing Arrow."""
    was_frozen = gc.get_freeze_count()
    gc.freeze()
    try:
        yield
    finally:
        if not was_frozen:  # a process that goes on, such as that of dag.test, wants its garbage back
            gc.unfreeze()


class LakeopsOperator(LakeopsTask):
    """The base of operators that run one verb on one repository and return the verb's record.

    The record is a dictionary. Each of its keys is an XCom of its own too, so ``task.output["id"]`` works.
    """

    template_fields_renderers: ClassVar[dict[str, str]] = {"metadata": "json"}
    ui_color = "#d9f2e6"
    announces: ClassVar[bool] = False
    """Whether the verb publishes. Without ``outlets`` the asset of the branch is then told, and ``COMMITS``."""

    read: tuple[LineageDataset, ...] = ()
    written: tuple[LineageDataset, ...] = ()
    """What the verb has read and written, for OpenLineage."""
    published: tuple[str, dict[str, Any]] | None = None
    """The branch and the record of the commit that this DAG run has published there: it is announced."""

    _tells_by_itself = False
    _working = False

    def __init__(self, **kwargs: Any) -> None:
        own_outlets = self.announces and "outlets" not in kwargs
        if own_outlets:
            kwargs["outlets"] = [COMMITS]
        super().__init__(**{"multiple_outputs": True, **kwargs})
        self._tells_by_itself = own_outlets

    def execute(self, context: Context) -> dict[str, Any]:
        if self._tells_by_itself:
            # Airflow makes an event for each outlet at every success, and this task may publish nothing.
            self.outlets: list[Any] = []
        self.links: dict[str, str] = {}
        self.read, self.written, self.published = (), (), None
        self._working = True
        try:
            with failing_at_once(self.arguments()), without_blas_threads(), frozen_heap():
                self.check_values()
                hook = LakeopsHook(self.lakeops_conn_id)
                with hook.get_conn() as lake, hook.naming(lake):
                    return self.work(lake, hook.repository_name(self.repo), context)
        except AirflowSkipException as skipped:
            self.log.warning("Skipped: %s", skipped)  # the last line, where Airflow folds its own
            raise
        finally:
            self._working = False

    def work(self, lake: Lake, name: str, context: Context) -> dict[str, Any]:
        """Do the operator's work in an open lake. ``name`` is the repository's."""
        repository = lake.repository(name)
        run = TaskRun.of(context)
        try:
            with explaining(repository, self.refs()):
                record = self.run_verb(repository, run)
        except errors.MergeConflict as conflict:
            _report_conflict(conflict, repository, context, self.log)
            raise
        finally:
            for kind, page in self.links.items():
                point_to(kind, page, self)
        if self.published is not None:
            if self.published[1]["metadata"].get("airflow_task_id") == run.task_id:
                emit("lakeops.commits", repository=repository.id)
            # Again when it runs again: Airflow may not have sent the event of the try that published.
            self.announce(context, repository, *self.published)
        return record

    def announce(
        self, context: Context, repository: Repository, branch: str, commit: dict[str, Any], **more: Any
    ) -> None:
        """Announce a commit to the outlets, with its page. ``more`` is for ``lakeops.airflow.assets.announce``."""
        asset = branch_asset(repository.id, branch)
        if self._tells_by_itself:
            # An asset that no DAG names has nobody to tell: Airflow then leaves the event out, and inserts nothing.
            self.outlets = [COMMITS, *(each for each in self.outlets if each not in (COMMITS, asset)), asset]
        page = address(self.lakeops_conn_id, repository.id, "commit", str(commit["id"]))
        also = {**({"page": f"{host()}{page}"} if page else {}), **(more.pop("more", None) or {})}
        announce(context, repository, branch, commit, more=also, **more)

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        """Do the operator's one verb; returns its record. ``link`` and the attributes above have what else is told."""
        raise NotImplementedError

    def link(self, repository: Repository, kind: str, *parts: str, **query: str) -> None:
        """Set the task's link of a kind to a page of the repository, also for a verb that fails after that."""
        self.links[kind] = address(self.lakeops_conn_id, repository.id, *parts, **query)

    def get_openlineage_facets_on_complete(self, task_instance: object) -> OperatorLineage | None:
        """The lineage for OpenLineage's provider. None without that provider, and when nothing was read or written."""
        try:
            from airflow.providers.openlineage.extractors import OperatorLineage
        except ImportError:
            return None
        inputs, outputs = ([found.to_openlineage() for found in side] for side in (self.read, self.written))
        return OperatorLineage(inputs=inputs, outputs=outputs) if inputs or outputs else None

    def on_kill(self) -> None:
        """End a verb that is under way. Airflow calls this in the task's main thread when the task gets SIGTERM.

        Spark jobs are cancelled, and nothing is published any more. A second signal changes nothing.
        """
        if self._working:
            self._working = False
            raise TaskKilled(f"task {self.task_id!r} was killed")


class LakeopsBranchOperator(LakeopsOperator):
    """Does a verb on one ``branch`` of a repository; on the default branch when it is left out."""

    template_fields: Any = (*LakeopsOperator.template_fields, "branch")
    operator_extra_links: Any = (LakeopsBranchLink(),)

    def __init__(self, *, branch: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.branch = branch

    def target(self, repository: Repository) -> str:
        """The branch's name. It becomes the task's link, also for a verb that fails."""
        name = self.branch or repository.default_branch
        self.link(repository, "branch", "ref", name)
        return name
