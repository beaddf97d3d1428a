"""Asking a person before something is published or deleted, in a form of Airflow's that shows what it would change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import AirflowSkipException, TaskDeferred
from airflow.providers.standard.exceptions import HITLRejectException, HITLTimeoutError
from airflow.providers.standard.operators.hitl import ApprovalOperator, HITLOperator
from airflow.providers.standard.triggers.hitl import HITLTrigger
from airflow.sdk import Param

from lakeops.airflow.compat import LakeopsFailure, TaskAwaitingInput
from lakeops.airflow.metrics import emit
from lakeops.airflow.previews import NOTHING, OTHERS, MergeOutcome, describe_mark
from lakeops.airflow.task import (
    LakeopsDiffLink,
    LakeopsPageLink,
    LakeopsTask,
    address,
    failing_at_once,
    number,
    point_to,
    truth,
)
from lakeops.model.errors import InvalidInput, MarkRefused, MergeConflict, Transient
from lakeops.model.formatting import counted, human_size
from lakeops.model.protection import APPROVAL
from lakeops.model.sanitising import safe

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lakeops.model.protection import Verdict
    from lakeops.model.records import Commit, StrategyName

ASKED = "asked"
"""The key, in a task's state, of the question that somebody was asked."""
ANSWERED = "answered "
REASON = "reason"
REASON_FIELD = Param(None, type=["null", "string"], title="Reason", description="It is kept with the answer.")
"""The form's field for why somebody approves or rejects."""
SUMMED_UP = 20
"""A form that lists more changes than this sums them up by folder first."""
SUBJECT = 80
"""Characters of a commit's message in a form's headline."""


class Asking(LakeopsTask, HITLOperator):
    """Asks a person one question, even if the task is retried or restarted meanwhile.

    Airflow 3.3 fails a task that is answered before the scheduler has noticed that the asking process has ended. The
    next try takes the answer that was given, and asks again only about something else. A task is tried four times
    unless ``retries`` says otherwise.

    Another process takes the answer. What it has to know goes with the parked task, and not into an XCom, which people
    can edit who may not answer.
    """

    template_fields: Any = (*HITLOperator.template_fields, *LakeopsTask.template_fields)
    kind: str
    """The kind of its one link."""
    asks_of: str
    """The name of the argument that names what somebody is asked about."""

    def __init__(self, **kwargs: Any) -> None:
        if "retries" not in {**kwargs, **(kwargs.get("default_args") or {})}:
            kwargs = {"retries": 3, "retry_delay": timedelta(seconds=5), **kwargs}
        super().__init__(**kwargs)

    def ask(self, context: Context, about: str, form: str, page: str, title: str) -> dict[str, Any]:
        """Ask by a form in Markdown with a link to a page; Airflow parks the task then, until ``execute_complete``.

        An earlier try's answer to a question that is ``about`` the same counts.
        """
        self.body = f"{form}\n\n[{title}]({page})" if page else form
        self.log.info("%s\n%s", self.subject, form)
        point_to(self.kind, page, self)
        kept = {"about": about, "named": getattr(self, self.asks_of), "page": page, "subject": self.subject}
        store = context.get("task_state_store")
        if store is not None and store.get(ASKED) in {about, _answered_text(context, about)}:
            # The form still stands, with the answer if there is one. To ask would throw the answer away.
            self.log.info("This was asked before. An earlier answer counts")
            limit = self.response_timeout
            raise TaskDeferred(
                trigger=HITLTrigger(
                    ti_id=context["task_instance"].id,
                    options=self.options,
                    defaults=self.defaults,
                    params=self.serialized_params,
                    multiple=self.multiple,
                    timeout_datetime=datetime.now(UTC) + limit if limit else None,
                    poke_interval=1,
                ),
                method_name="execute_complete",
                kwargs=kept,
            )
        try:
            return dict(super().execute(context))
        except (TaskAwaitingInput, TaskDeferred) as parked:
            parked.kwargs = kept
            if store is not None:
                store.set(ASKED, about)
            raise

    def execute_complete(self, context: Context, event: dict[str, Any], **kept: str) -> dict[str, Any]:
        """Take the answer. A task that is cleared after that asks again. One that Airflow failed does not.

        Raises ``LakeopsFailure`` when the task is about something else than what was asked.
        """
        self.links: dict[str, str] = {self.kind: kept.get("page", "")}
        self.subject = kept.get("subject", self.subject)
        about = kept.get("about", "")
        try:
            if kept.get("named") != (now := getattr(self, self.asks_of)):
                said = f"nobody was asked about {self.asks_of} {now!r}, so the answer does not count"
                raise LakeopsFailure(f"{said}; clear the task to ask again")
            found = self.decided(context, event, about)
        except Transient:  # the next try goes by the same answer
            raise
        except Exception:
            self._note_answer(context, about)
            raise
        self._note_answer(context, about)
        return found

    def _note_answer(self, context: Context, about: str) -> None:
        store = context.get("task_state_store")
        if store is not None:
            store.set(ASKED, _answered_text(context, about))

    def decided(self, context: Context, event: dict[str, Any], about: str) -> dict[str, Any]:
        """The task's result, as the answer to a question ``about`` something decides it."""
        raise NotImplementedError


def _answered_text(context: Context, about: str) -> str:
    """The note in a task's state about a question that was answered.

    Airflow may fail a try that has taken the answer, when that try ended quickly. Clearing a task allows it more tries,
    and a failed try does not: so their highest number tells the two apart.
    """
    return f"{ANSWERED}{context['ti'].max_tries} {about}"


class LakeopsApprovalOperator(Asking, ApprovalOperator):
    """Waits until a person approves of merging ``source`` into ``destination``. The form shows what that changes.

    Returns ``approved_by``, ``approved_at`` (None when there was nothing to approve), ``source`` (as it was given) and
    what Airflow's operator returns. Nobody is asked when the destination has the commit already. A merge that would
    conflict fails at once, because there is nothing to approve.

    The answer is recorded as the commit's check ``approval``, passed or failed, with the name of the person and the
    reason that was given. An answer that nobody gave (``defaults``) is none. The XCom ``shown`` is a fingerprint of
    the form that a person has answered, and ``destination_head`` the commit that it was made for. Give ``shown`` to the
    merge operator, as the block ``WriteAuditPublish`` does: it then publishes what was approved, or nothing.

    Args:
        source: the ref to merge, best a commit id: what is approved is then what is merged.
        destination: the branch to merge into; the repository's default branch when left out.
        strategy: what the merge will settle conflicts with. The form shows how many there are, and the outcome.
        on_reject: ``fail`` (the default) fails the task after a rejection, ``skip`` skips the tasks that follow.
        kwargs: what Airflow's ``ApprovalOperator`` takes. Text in ``body`` comes before the diff.
    """

    template_fields: Any = (*Asking.template_fields, "source", "destination", "strategy")
    ui_color = "#f2e6d9"
    operator_extra_links: Any = (LakeopsDiffLink(),)
    kind, asks_of = "diff", "source"

    def __init__(
        self,
        *,
        source: str,
        destination: str | None = None,
        strategy: StrategyName | str | None = None,
        on_reject: Literal["fail", "skip"] = "fail",
        **kwargs: Any,
    ) -> None:
        if on_reject not in {"fail", "skip"}:
            raise InvalidInput(f"on_reject must be one of fail, skip, not {on_reject!r}")
        kwargs = {"fail_on_reject": on_reject == "fail", "params": {REASON: REASON_FIELD}, **kwargs}
        own_subject = bool(kwargs.get("subject"))
        if not own_subject:  # one that stands until the task knows what it asks about
            kwargs["subject"] = f"Publish to {destination or 'the default branch'}?"
        super().__init__(**kwargs)
        self.source = source
        self.destination = destination
        self.strategy = strategy
        self._own_subject = own_subject

    def execute(self, context: Context) -> dict[str, Any]:
        with self.opened() as repository:
            from lakeops.ops.ancestor import check_strategy  # late: reading a DAG does not need it

            strategy = check_strategy(self.strategy or None)
            destination = self.destination or repository.default_branch
            # Both sides as they are at one moment, so that everything below speaks of one merge.
            commit, head = repository.ref(self.source).commit, repository.branch(destination).commit_id
            outcome = MergeOutcome.of(repository, head, commit.id, strategy)
            checks = [one for one in repository.ref(commit.id).verdicts() if one.name != APPROVAL]
            page = address(self.lakeops_conn_id, repository.id, "diff", left=destination, right=commit.id)
            if outcome.conflicts:
                point_to(self.kind, page, self)
                raise MergeConflict(commit.id, destination, outcome.conflicts)
        context["ti"].xcom_push(key="destination_head", value=head)
        place = f"lakefs://{repository.id}/{destination}"
        if outcome.shown == NOTHING:
            self.log.info("Nobody is asked: %s has all of %s", place, commit.id)
            context["ti"].xcom_push(key="shown", value=NOTHING)
            return {"approved_by": None, "approved_at": None, "source": commit.id, "chosen_options": [self.APPROVE]}
        if not self._own_subject:
            line = safe(commit.message.splitlines()[0])
            line = line if len(line) <= SUBJECT else line[: SUBJECT - 3] + "..."
            self.subject = f"Publish {line!r} to {place}?"
        form = _form(self.body, place, commit, outcome, self.strategy, checks)
        title = f"Compare {_code(place)} with {_code(commit.id[:16])}"
        return self.ask(context, f"{commit.id} {outcome.shown}", form, page, title)

    def decided(self, context: Context, event: dict[str, Any], about: str) -> dict[str, Any]:
        """The person who approved, and when.

        Raises:
            LakeopsFailure: somebody rejected it and ``fail_on_reject`` is set, or nobody answered in time. ``retries``
                do not ask again.
        """
        user = event.get("responded_by_user")
        try:
            answer = ApprovalOperator.execute_complete(self, context, event)
        except HITLRejectException:
            why = self._record(context, event, about)
            raise LakeopsFailure(f"{_person(user)} rejected it: {self.subject}{why}") from None
        except HITLTimeoutError:
            raise LakeopsFailure(f"nobody answered in time: {self.subject}") from None
        why = self._record(context, event, about)
        if self.APPROVE not in answer["chosen_options"]:
            self.log.warning("%s rejected it: %s%s", _person(user), self.subject, why)
        return {
            **answer,
            "responded_at": answer["responded_at"].isoformat(),
            "approved_by": None if user is None else _person(user),
            "approved_at": answer["responded_at"].isoformat(),
            "source": self.source,
        }

    def _record(self, context: Context, event: Mapping[str, Any], about: str) -> str:
        """Record a person's answer on the commit that was shown, and tell the merge what was. Returns the reason."""
        reason = str((event["params_input"] or {}).get(REASON) or "")
        (commit, shown), user = about.split(maxsplit=1), event["responded_by_user"]
        if user is not None:
            said: dict[str, str] = {"by": _person(user), "run": str(context.get("run_id") or "")}
            with self.opened() as repository:
                if self.APPROVE in event["chosen_options"]:
                    repository.ref(commit).pass_check(APPROVAL, **said)
                else:
                    emit("lakeops.rejected", repository=repository.id, check=APPROVAL)
                    repository.ref(commit).fail_check(APPROVAL, reason or "rejected", **said)
            context["ti"].xcom_push(key="shown", value=shown)  # with no answer to it, an earlier one would count for it
        return f" ({reason})" if reason else ""


def _person(user: Mapping[str, str] | None) -> str:
    return (user or {}).get("name") or (user or {}).get("id") or "somebody"


def _form(
    text: str | None,
    destination: str,
    commit: Commit,
    outcome: MergeOutcome,
    strategy: str | None,
    checks: Sequence[Verdict],
) -> str:
    tally = outcome.tally
    does = (
        f"changes this: **{tally.summary}** ({human_size(tally.all.bytes)})"
        if tally.all.total
        else "changes **no object**; it records that the commit is merged"
    )
    if outcome.settled:
        does += f" (`{strategy}` settles **{counted(outcome.settled, 'conflict')}**)"
    names = {"": "outside of folders", OTHERS: "other folders"}
    folders = [
        f"| {names.get(name) or _code(name)} | {found.total:,} | {human_size(found.bytes)} |"
        for name, found in tally.folders.items()
    ]
    rows = [f"| {change.type.value} | {_code(change.path)} | {change.size_bytes:,} |" for change in tally.first]
    parts = [
        text,
        f"Merging commit `{commit.id[:16]}` into {_code(destination)} {does}",
        "\n".join(f"* {_code(str(table))}" for table in outcome.tables),
        "Checks: " + ", ".join(f"{_code(one.name)} **{one.word}**" for one in checks) if checks else None,
        "\n".join(["| folder | changes | size |", "|---|---|---|", *folders]) if tally.all.total > SUMMED_UP else None,
        "\n".join(["| change | path | bytes |", "|---|---|---|", *rows]) if rows else None,
        f"... and {tally.unlisted:,} more" if tally.unlisted else None,
    ]
    return "\n\n".join(part for part in parts if part)


def _code(path: str) -> str:
    """A path as inline code. No Markdown and no line break in it has an effect."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in path)
    return f"`{shown.replace('`', chr(39)).replace('|', chr(92) + '|')}`"


class LakeopsGcApprovalOperator(Asking):
    """Stands between a mark and its sweep: lets small marks through, and asks a person about others.

    The form shows the mark's report. Returns ``mark_id`` and ``approved_by`` (None when nobody was asked). An empty
    mark, ``only_show``, a rejection and no answer in time end the task, and the sweep after it, as skipped. All but an
    empty mark are then restored: their commits live again, and they are never swept.

    Args:
        mark_id: the mark; empty after a dry run, which made none.
        above_bytes: ask about marks that are larger; about none when left out.
        only_show: let no mark through.
        kwargs: what Airflow's ``HITLOperator`` takes.
    """

    template_fields: Any = (*Asking.template_fields, "mark_id", "above_bytes", "only_show")
    APPROVE = "Sweep"
    REJECT = "Leave it"
    ui_color = "#f2e6d9"
    operator_extra_links: Any = (LakeopsPageLink(),)
    kind, asks_of = "page", "mark_id"

    def __init__(
        self, *, mark_id: str | None, above_bytes: int | str | None = None, only_show: bool | str = False, **kwargs: Any
    ) -> None:
        kwargs = {"subject": "Delete what garbage collection has marked?", **kwargs}
        super().__init__(**{**kwargs, "options": [self.APPROVE, self.REJECT]})
        self.mark_id = mark_id
        self.above_bytes = above_bytes
        self.only_show = only_show

    def execute(self, context: Context) -> dict[str, Any]:
        with failing_at_once(self.arguments()):
            limit, only_show = number("above_bytes", self.above_bytes), truth("only_show", self.only_show)
        if self.mark_id in (None, "", "None"):
            raise AirflowSkipException(
                "This was a dry run, which changes nothing; the log of the mark task has the report."
            )
        with self.opened() as repository:
            report = repository.gc.report(str(self.mark_id))
        shown = describe_mark(repository.id, report)
        if only_show:
            raise AirflowSkipException(f"This run deletes nothing; {self._restored()}.\n{shown}")
        if not report["files"]:
            raise AirflowSkipException(f"lakefs://{repository.id} has no garbage")
        if limit is None or report["bytes"] <= limit:
            return {"mark_id": self.mark_id, "approved_by": None}
        self.subject = f"Delete {human_size(report['bytes'])} of lakefs://{repository.id}?"
        page = address(self.lakeops_conn_id, repository.id, "gc")
        # In Markdown each stays a line, and nothing in it has an effect.
        form = "\n".join(f"* {_code(line.strip())}" for line in shown.splitlines() if line.strip())
        return self.ask(context, str(self.mark_id), form, page, "See the rules and the marks")

    def decided(self, context: Context, event: dict[str, Any], about: str) -> dict[str, Any]:
        """The person who let the mark through. Raises ``AirflowSkipException`` for a rejection and for no answer."""
        try:
            answer = HITLOperator.execute_complete(self, context, event)
        except HITLTimeoutError:
            raise AirflowSkipException(f"nobody answered in time; {self._restored()}") from None
        user = answer["responded_by_user"]
        if answer["chosen_options"] != [self.APPROVE]:
            raise AirflowSkipException(
                f"{_person(user)} chose to leave mark {self.mark_id} unswept; {self._restored()}"
            )
        return {"mark_id": about, "approved_by": _person(user) if user else None}

    def _restored(self) -> str:
        """Restore the mark; returns the outcome in words."""
        with self.opened() as repository:
            try:
                done = repository.gc.restore(str(self.mark_id))
            except MarkRefused as error:  # somebody has swept it by hand meanwhile
                return error.message
        return f"{counted(done.commits, 'commit')} live again"
