"""Write, audit, publish: a block of a DAG whose data nobody sees before it was checked.

The block makes a branch for the DAG run and lets tasks write to it. It commits, lets checks read the commit, asks a
person if it is told to, merges, and drops the branch when the destination has everything that is on it. Readers of the
destination see all tables that the tasks wrote or none.

The merge takes exactly the commit that was checked and approved, whatever happens to the branch meanwhile. A merge that
loses a race is tried again. A run that ended in a conflict or a rejection starts afresh when the block is cleared.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial, update_wrapper
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from airflow.providers.common.compat.sdk import AirflowSkipException, redact
from airflow.sdk import TaskGroup, TaskInstanceState, get_current_context, task

from lakeops.airflow import operators
from lakeops.airflow.compat import LakeopsFailure
from lakeops.airflow.hook import DEFAULT_CONN_ID, file_uri
from lakeops.airflow.idempotent import TaskRun
from lakeops.airflow.metrics import emit
from lakeops.airflow.previews import DiffSummary
from lakeops.airflow.task import LakeopsBranchLink, LakeopsCommitLink, address, linked, opened, point_to, running_links
from lakeops.model.errors import InvalidInput, Transient
from lakeops.model.names import as_folder
from lakeops.model.protection import APPROVAL, FAILED

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lakeops.lake import Ref, Repository
    from lakeops.model.records import StrategyName

log: logging.Logger = logging.getLogger(__name__)

RETRIES: dict[str, Any] = {"retries": 3, "retry_delay": timedelta(seconds=5)}
"""The retries of the block's own tasks. Errors that would come again fail at once all the same."""


class WriteAuditPublish:
    """A task group whose tasks work on a branch that is merged when all of them have succeeded.

    ::

        with WriteAuditPublish(repo="flights", destination="main", message="Publish {{ ds }}") as publish:

            @publish.output("flights/day={{ ds }}/")
            def flights(url, day):
                read(day).to_parquet(f"{url}/part-0.parquet")

            @publish.check
            def complete(ref, day):
                return [] if ref.exists(f"flights/day={day}/part-0.parquet") else ["there are no flights"]

            flights("{{ ds }}")
            complete("{{ ds }}")

    Tasks of any other kind may be in the block too. ``branch``, ``repo`` and ``uri(path)`` are templates for their
    arguments. They run before the commit, unless they depend on a check, or ``audit`` makes them checks. Tasks that
    follow the block can depend on its operators ``commit`` and ``merge``.

    Args:
        repo: the repository; the connection's default one when left out.
        branch: a template that gives each run a branch of its own: runs that share one could check each other's data.
        source: the ref that the branch starts at; the destination when left out.
        destination: the branch to publish to.
        message: the merge commit's message.
        commit_message: the message of the commit with the data; ``message`` when left out.
        metadata: key/value pairs kept with both commits.
        strategy: ``source-wins`` or ``dest-wins`` settles conflicts; without it they fail the merge.
        approval: ask a person before merging: True, or arguments for ``LakeopsApprovalOperator``.
        on_clear: ``anew`` makes a branch that the run has left unpublished again at the source when the whole block is
            cleared, ``keep`` goes on with it.
        on_newer: what to do when a run of a later logical date has published before: see ``LakeopsMergeOperator``.
        outlets: the assets of the merge's event in place of the destination's.
        prefix_group_id: begin the names of the tasks with the group's name.
        task_args: arguments for the block's own operators; by default three retries, five seconds apart.
    """

    def __init__(
        self,
        group_id: str = "publish",
        *,
        message: str,
        repo: str | None = None,
        branch: str | None = None,
        source: str | None = None,
        destination: str = "main",
        commit_message: str | None = None,
        metadata: Mapping[str, str] | None = None,
        strategy: StrategyName | None = None,
        approval: bool | Mapping[str, Any] = False,
        on_clear: Literal["anew", "keep"] = "anew",
        on_newer: operators.OnNewer = "publish",
        outlets: list[Any] | None = None,
        lakeops_conn_id: str = DEFAULT_CONN_ID,
        prefix_group_id: bool = True,
        task_args: Mapping[str, Any] | None = None,
    ) -> None:
        self.group: TaskGroup = TaskGroup(group_id, prefix_group_id=prefix_group_id)
        self.repo = repo
        # No DAG's id and no group's has a colon, so no other block of any DAG has this branch.
        own = f"{{{{ dag.dag_id }}}}:{self.group.group_id}:{{{{ run_id | replace('~', '-') }}}}"
        # In a mapped group each instance is a block of its own, and each of its tasks has the same index.
        mapped = next(iter(self.group.iter_mapped_task_groups()), None) is not None
        self.branch: str = branch or (own + ":{{ ti.map_index }}" if mapped else own)
        self._here = ", map_indexes=ti.map_index" if mapped else ""
        self.destination = destination
        self._source = source or destination
        self._messages = (commit_message or message, message)
        self._metadata = dict(metadata or {})
        self._strategy = strategy
        self._approval = approval
        self._anew = {"anew": True, "keep": False}[on_clear]
        self._on_newer = on_newer
        self._outlets = outlets
        self._common: dict[str, Any] = {"repo": repo, "lakeops_conn_id": lakeops_conn_id}
        self._task_args = {**RETRIES, **(task_args or {})}
        self._checks: set[str] = set()
        self._empty: set[str] = set()
        self._begun: dict[Any, Any] = {}
        self.commit_id: str = ""
        self.create: operators.LakeopsCreateBranchOperator
        self.commit: operators.LakeopsCommitOperator
        self.merge: operators.LakeopsMergeOperator
        self.drop: operators.LakeopsDeleteBranchOperator

    def uri(self, path: str) -> str:
        """The URL of a path on the block's branch, for pandas and others. Raises ``InvalidInput`` without ``repo``.

        It names the connection unless that is the default one: ``lakefs://CONNECTION@REPO/BRANCH/PATH``.
        """
        if self.repo is None:
            raise InvalidInput("a URI names its repository: give the block a repo")
        return file_uri(self.repo, f"{self.branch}/{path}", self._common["lakeops_conn_id"])

    def output(
        self,
        prefix: str,
        mode: Literal["replace", "append"] = "replace",
        on_collision: Literal["refuse", "rename", "overwrite"] = "refuse",
        *,
        allow_empty: bool = False,
        **task_args: Any,
    ) -> Callable[[Callable[..., Any]], BlockTask]:
        """A decorator for a function that writes files below a URL. They are staged under ``prefix`` when it returns.

        The function gets the URL first, then the arguments that the task is called with, and returns the task's result.
        When it fails, nothing is staged. A task that runs again replaces what it has written before, also with
        ``append``. With ``replace``, a function that writes no file fails, unless ``allow_empty`` lets it empty the
        prefix. In a mapped task, ``{{ task.op_kwargs['day'] }}`` gives each instance a prefix of its own.
        """

        def decorate(write: Callable[..., Any]) -> BlockTask:
            def run(*args: Any, lakeops_at: dict[str, Any], **kwargs: Any) -> Any:
                at = lakeops_at
                with opened(at["repo"], at["lakeops_conn_id"], at["branch"], prefix=at["prefix"]) as repository:
                    if prefix and not at["prefix"]:
                        raise InvalidInput(f"prefix must not be empty: {prefix!r} has given nothing")
                    branch = repository.branch(at["branch"])
                    # What an earlier try has appended is replaced. Engines name their files anew each time.
                    key = TaskRun.of(get_current_context()).key("output", branch.id, at["prefix"])
                    with branch.output(
                        at["prefix"], mode, on_collision, idempotency_key=key, allow_empty=allow_empty
                    ) as url:
                        result = write(url, *args, **kwargs)
                    staged = DiffSummary.of(branch.uncommitted(as_folder(at["prefix"])), 0)
                    place = f"lakefs://{repository.id}/{branch.id}/{at['prefix']}"
                    log.info("%s is staged: %s", place, staged.summary or "nothing that was not there before")
                    point_to("branch", address(at["lakeops_conn_id"], repository.id, "uncommitted", branch.id))
                return result

            made = linked(_task(run, write, task_args), LakeopsBranchLink())
            at = {**self._common, "branch": self.branch, "prefix": prefix}
            return BlockTask(made, at, write)

        return decorate

    @overload
    def check(self, check: Callable[..., Iterable[str] | None]) -> BlockTask: ...

    @overload
    def check(self, **task_args: Any) -> Callable[[Callable[..., Iterable[str] | None]], BlockTask]: ...

    def check(self, check: Callable[..., Iterable[str] | None] | None = None, **task_args: Any) -> Any:
        """A decorator for a function that checks the commit and returns its findings, one text each.

        The function gets a handle for reading the commit (``lakeops.Ref``) first, then the arguments that the task is
        called with. Any finding fails the task at once, without retry, so nothing is published. So does an answer that
        is neither None nor texts, such as False. The task records the verdict, under its name in the block: the merge
        takes no commit without it. ``@publish.check(retries=2, pool="warehouse")`` gives it arguments of Airflow's.
        """
        return partial(self._check, task_args=task_args) if check is None else self._check(check, task_args)

    def _check(self, check: Callable[..., Iterable[str] | None], task_args: Mapping[str, Any]) -> BlockTask:
        def run(*args: Any, lakeops_at: dict[str, Any], **kwargs: Any) -> None:
            at = lakeops_at
            with opened(at["repo"], at["lakeops_conn_id"]) as repository:
                ref: Ref = repository.ref(at["commit"])
                point_to("commit", address(at["lakeops_conn_id"], repository.id, "commit", at["commit"]))
                try:
                    found = _findings(check(ref, *args, **kwargs))
                except (Transient, AirflowSkipException):
                    raise
                except Exception as error:
                    self._record(repository, at["commit"], str(error) or type(error).__name__)
                    raise
                self._record(repository, at["commit"], found)
            if found is not None:
                kept = f"Branch {at['branch']!r} keeps the data for inspection{running_links()}"
                raise LakeopsFailure(f"not published: {found}. {kept}")

        made = linked(_task(run, check, task_args), LakeopsCommitLink())
        at = {**self._common, "branch": self.branch, "commit": self.commit_id}
        return BlockTask(made, at, check, self._checks)

    def audit(self, *tasks: Any) -> None:
        """Make tasks checks of the commit: operators, groups, and what TaskFlow tasks return.

        They run after the commit and before the approval and the merge. A task that succeeds by its own code records
        the verdict. One that somebody marks as success records none, and then nothing is published. ``commit_id`` is a
        template for their arguments.
        """
        for given in tasks:
            if isinstance(given, TaskGroup):
                self.audit(*given.iter_tasks())
                continue
            found = getattr(given, "operator", given)
            self._checks.add(found.task_id)
            if found.inherits_from_empty_operator:  # Airflow does not run it, so it gives no verdict
                self._empty.add(found.task_id)
                continue
            mapped = getattr(found, "partial_kwargs", None)  # of a task that is expanded
            first = found._post_execute_hook if mapped is None else mapped.get("post_execute")  # noqa: SLF001

            def passed(context: Context, result: Any = None, first: Any = first) -> None:
                if first is not None:
                    first(context, result)
                self._record_task(context, None)

            def failed(context: Context) -> None:
                self._record_task(context, str(context.get("exception") or "it failed"))

            # What the operator's arguments post_execute, on_execute_callback and on_failure_callback set.
            changed: dict[str, Any] = {"_post_execute_hook" if mapped is None else "post_execute": passed}
            for kind, callback in (("on_execute_callback", self._begin), ("on_failure_callback", failed)):
                own = getattr(found, kind) or []
                changed[kind] = [*(own if isinstance(own, Sequence) else [own]), callback]
            (vars(found) if mapped is None else mapped).update(changed)

    def sql(self, name: str, sql: str, tables: Mapping[str, str] | None = None, **task_args: Any) -> Any:
        """A check that fails when a query of the commit finds rows: ``publish.sql("no_negatives", "SELECT ...")``.

        See ``LakeopsSqlCheckOperator``, which it makes a task of, for ``tables``.
        """
        made = operators.LakeopsSqlCheckOperator(
            task_id=name, ref=self.commit_id, sql=sql, tables=tables, **self._common, **{**self._task_args, **task_args}
        )
        self.audit(made)
        return made

    def _record_task(self, context: Context, finding: str | None) -> None:
        """Record the verdict of a task that is no check of lakeops, on the commit that it began with."""
        at = self._begun.get(context["ti"].id) or self._begin(context)
        with opened(at["repo"], at["lakeops_conn_id"]) as repository:
            self._record(repository, at["commit"], finding, context)

    def _begin(self, context: Any) -> Any:
        """Note the commit that a task begins with: its template may name another one later."""
        at = context["task"].render_template({**self._common, "commit": self.commit_id}, context)
        return self._begun.setdefault(context["ti"].id, at)

    def _record(self, repository: Repository, commit: str, finding: str | None, context: Any = None) -> None:
        """Record the verdict of the running task. A mapped task has passed when each of its instances has."""
        context = context or get_current_context()
        run, ref = TaskRun.of(context), repository.ref(commit)
        name = self._check_name(run.task_id)

        def record(name: str, finding: str | None) -> None:
            said = {"by": f"{run.dag_id}.{run.task_id}", "run": run.run_id}
            if finding is None:
                ref.pass_check(name, **said)
            else:
                ref.fail_check(name, finding, **said)

        if finding is not None:
            finding = str(redact(finding))  # the lake shows it to people who may not see Airflow's secrets
            emit("lakeops.rejected", repository=repository.id, check=name)

        if self._here or run.map_index < 0:  # in a mapped group each instance has a commit of its own
            record(name, finding)
            return
        record(f"{name}[{run.map_index}]", finding)
        there = ["null", *(state for state in TaskInstanceState if state != TaskInstanceState.REMOVED)]
        where = {"dag_id": run.dag_id, "task_ids": [run.task_id], "run_ids": [run.run_id]}
        count = context["ti"].get_ti_count(**where, states=there)
        found = {one.name: one for one in ref.verdicts()}
        all_of_them = [found.get(f"{name}[{index}]") for index in range(count)]
        failed = [one.findings for one in all_of_them if one is not None and one.state == FAILED]
        if failed or all(all_of_them):
            record(name, next(iter(failed), None))

    def _check_name(self, task_id: str) -> str:
        prefix: str = self.group.child_id("")  # type: ignore[no-untyped-call]
        return task_id.removeprefix(prefix)

    def __enter__(self) -> Self:
        self.group.__enter__()
        own = {"branch": self.branch, **self._common, **self._task_args}
        self.create = operators.LakeopsCreateBranchOperator(
            task_id="create_branch", source=self._source, anew=self._anew, **own
        )
        self.commit = operators.LakeopsCommitOperator(
            task_id="commit",
            message=self._messages[0],
            metadata=self._metadata,
            outlets=[],  # a branch of one run's own is no asset
            **own,
        )
        self.commit_id = f"{{{{ ti.xcom_pull(task_ids='{self.commit.task_id}'{self._here})['id'] }}}}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._publish()
        finally:
            self.group.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]

    def _publish(self) -> None:
        checked = self._in_order()
        names = sorted(map(self._check_name, self._checks - self._empty))
        if APPROVAL in names:
            raise InvalidInput(f"block {self.group.group_id!r}: {APPROVAL!r} is a person's answer; rename the check")
        merged = {"source": self.commit_id, "destination": self.destination, "strategy": self._strategy, **self._common}
        shown = None
        if self._approval:
            from lakeops.airflow.approval import LakeopsApprovalOperator

            given = {} if isinstance(self._approval, bool) else self._approval
            asking = LakeopsApprovalOperator(task_id="approve", **merged, **{**self._task_args, **given})
            shown = f"{{{{ ti.xcom_pull(task_ids='{asking.task_id}', key='shown'{self._here}) or 'no answer' }}}}"
            names.append(APPROVAL)
            for found in checked:
                found >> asking
            checked = [asking]
        self.commit.checks = names
        outlets = {} if self._outlets is None else {"outlets": self._outlets}
        self.merge = operators.LakeopsMergeOperator(
            task_id="merge",
            message=self._messages[1],
            metadata=self._metadata,
            shown=shown,
            checks=names,
            on_newer=self._on_newer,
            **merged,
            **{**self._task_args, **outlets},
        )
        self.drop = operators.LakeopsDeleteBranchOperator(
            task_id="drop_branch", branch=self.branch, merged_into=self.destination, **self._common, **self._task_args
        )
        for found in checked:
            found >> self.merge
        self.merge >> self.drop
        self.create.as_setup()  # type: ignore[no-untyped-call]
        self.drop.as_teardown(setups=self.create)

    def _in_order(self) -> list[Any]:
        """Order the tasks: branch, writers, commit, checks. Returns the last ones."""
        inside = {found.task_id: found for found in self.group.iter_tasks()}
        del inside[self.create.task_id], inside[self.commit.task_id]
        late = self._checks | {
            name for name, found in inside.items() if self._checks & found.get_flat_relative_ids(upstream=True)
        }
        writes = {name: found for name, found in inside.items() if name not in late}
        checks = {name: found for name, found in inside.items() if name in late}
        if not writes:
            raise InvalidInput(f"block {self.group.group_id!r} has nothing to publish: no task in it writes")
        for found in _without_upstream(writes):
            self.create >> found
        for found in _last(writes):
            found >> self.commit
        for found in _without_upstream(checks):
            self.commit >> found
        return _last(checks) or [self.commit]


@dataclass(eq=False)
class BlockTask:
    """A task of a block, to be called, mapped or changed (``override``) as any TaskFlow task.

    Attributes:
        made: the TaskFlow task.
        at: what it gets as ``lakeops_at``.
        function: the decorated function, for tests of it without Airflow.
        names: a set that the names of the tasks are added to.
        given: arguments of ``partial``.
    """

    made: Any
    at: dict[str, Any]
    function: Callable[..., Any]
    names: set[str] = field(default_factory=set)
    given: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        update_wrapper(self, self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make the task. The result stands for what the function will return."""
        return self._named(self.made(*args, lakeops_at=self.at, **self.given, **kwargs))

    def override(self, **task_args: Any) -> BlockTask:
        """The task with other arguments of Airflow's, such as ``task_id``, ``pool`` or ``retries``."""
        return replace(self, made=self.made.override(**task_args))

    def partial(self, **kwargs: Any) -> BlockTask:
        return replace(self, given={**self.given, **kwargs})

    def expand(self, **kwargs: Any) -> Any:
        return self._named(self.made.partial(lakeops_at=self.at, **self.given).expand(**kwargs))

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> Any:
        made = self.made.partial(lakeops_at=self.at, **self.given)
        return self._named(made.expand_kwargs(kwargs, strict=strict))

    def _named(self, result: Any) -> Any:
        self.names.add(result.operator.task_id)
        return result


def _task(run: Callable[..., Any], user: Callable[..., Any], task_args: Mapping[str, Any]) -> Any:
    """A TaskFlow task that runs ``run``, which calls ``user`` with one more argument in front.

    Airflow reads a function's signature to find mistakes in a call when the DAG is read, and to see which values of a
    run (``dag_run``, ``params``, ...) it wants. So the task has the user's signature without that first argument.
    """
    run.__name__ = run.__qualname__ = user.__name__
    run.__doc__ = user.__doc__
    wanted = list(inspect.signature(user).parameters.values())[1:]
    place = inspect.Parameter("lakeops_at", inspect.Parameter.KEYWORD_ONLY)
    rest = [one for one in wanted if one.kind is inspect.Parameter.VAR_KEYWORD]
    run.__signature__ = inspect.Signature([*wanted[: len(wanted) - len(rest)], place, *rest])  # type: ignore[attr-defined]
    return task(**{"task_id": user.__name__, **task_args})(run)


def _findings(answer: Any) -> str | None:
    """The findings of a check as one text; None without any. Raises ``InvalidInput`` for what is no answer."""
    if answer is None:
        return None
    if not isinstance(answer, Iterable) or (isinstance(answer, str | bytes) and not answer):
        raise InvalidInput(f"a check returns its findings, a list of texts, and no {answer!r:.80}; all is well: []")
    found = [answer] if isinstance(answer, str) else [str(finding) for finding in answer]
    return ("; ".join(found) or "it found something") if found else None


def _without_upstream(tasks: Mapping[str, Any]) -> list[Any]:
    return [found for found in tasks.values() if not found.upstream_task_ids & tasks.keys()]


def _last(tasks: Mapping[str, Any]) -> list[Any]:
    return [found for found in tasks.values() if not found.downstream_task_ids & tasks.keys()]
