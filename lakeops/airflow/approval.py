"""Asking a person before something is published or deleted, in a form of Airflow's that shows what it would change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.exceptions import HITLRejectException, HITLTimeoutError
from airflow.providers.standard.operators.hitl import ApprovalOperator, HITLOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from lakeops.airflow import idempotent
from lakeops.airflow.changes import LISTED, Tally, conflicting
from lakeops.airflow.operators.gc import summary
from lakeops.airflow.task import LakeopsTask, failing_at_once, number, truth
from lakeops.model.errors import MarkRefused, MergeConflict
from lakeops.model.records import ChangeType
from lakeops.model.words import counted, human_size

if TYPE_CHECKING:
    from airflow.sdk import Context


class LakeopsApprovalOperator(LakeopsTask, ApprovalOperator):
    """Waits until a person approves of merging ``source`` into ``destination``. The form shows what that changes.

    Returns ``approved_by``, ``approved_at`` (None when there was nothing to approve), ``source`` (as it was given) and
    what Airflow's operator returns. Rejecting skips the tasks that follow. Nobody is asked when the destination has the
    commit already, because the merge then publishes nothing, whatever others do meanwhile. A merge that would conflict
    fails at once, because there is nothing to approve.

    Args:
        source: the ref to merge, best a commit id: what is approved is then what is merged.
        destination: the branch to merge into; the repository's default branch when left out.
        strategy: what the merge will settle conflicts with. The form shows how many there are, and the outcome.
        repo: the repository; the connection's default one when left out.
        lakeops_conn_id: the connection.
        kwargs: what Airflow's ``ApprovalOperator`` takes: ``subject``, ``assigned_users``, ``notifiers``,
            ``response_timeout``, ``fail_on_reject``. Text in ``body`` comes before the diff.
    """

    ui_color = "#f2e6d9"

    source: str
    destination: str | None = None
    strategy: str | None = None
    if TYPE_CHECKING:  # what Airflow's operator takes
        subject: Any = None
        body: Any = None
        assigned_users: Any = None
        notifiers: Any = None
        response_timeout: Any = None
        fail_on_reject: Any = False

    def airflow_arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        """A subject that names the destination, unless one is given."""
        subject = given.get("subject") or f"Publish to {self.destination or 'the default branch'}?"
        return {**given, "subject": subject}

    def execute(self, context: Context) -> dict[str, Any]:
        """Ask, if there is anything to ask; Airflow parks the task then and goes on in ``execute_complete``."""
        with self.opened() as repository:
            destination = self.destination or repository.default_branch
            # Both sides as they are at one moment, so that everything below speaks of one merge.
            shown, head = repository.ref(self.source).commit_id, repository.branch(destination).commit_id
            has_it = idempotent.contains(repository, head, shown)
            tally = Tally.of(repository.compare(head, shown), LISTED)
            settled = tally.counts[ChangeType.CONFLICT]
            if settled and not self.strategy:
                raise MergeConflict(shown, destination, conflicting(repository.compare(head, shown)))
            if settled:
                tally = Tally.of(repository.compare(head, shown, strategy=self.strategy), LISTED)
        if has_it:
            self.log.info("Nobody is asked: lakefs://%s/%s has all of %s", repository.id, destination, shown)
            return {"approved_by": None, "approved_at": None, "source": shown, "chosen_options": [self.APPROVE]}
        outcome = _outcome(tally, settled, self.strategy)
        self.body = _form(self.body, f"lakefs://{repository.id}/{destination}", shown, tally, outcome)
        self.log.info("%s\n%s", self.subject, self.body)
        found: dict[str, Any] = super().execute(context)
        return found

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Who decided, when, and what.

        Raises:
            AirflowFailException: somebody rejected it and ``fail_on_reject`` is set, or nobody answered in time.
                ``retries`` do not ask again: that is for people to decide.
        """
        try:
            answer = super().execute_complete(context, event)
        except HITLRejectException:
            raise AirflowFailException(f"{_person(event['responded_by_user'])} rejected it: {self.subject}") from None
        except HITLTimeoutError:
            raise AirflowFailException(f"nobody answered in time: {self.subject}") from None
        user = answer["responded_by_user"]
        return {
            **answer,
            "responded_at": answer["responded_at"].isoformat(),
            "approved_by": None if user is None else _person(user),
            "approved_at": answer["responded_at"].isoformat(),
            "source": self.source,
        }


def _person(user: Mapping[str, str] | None) -> str:
    """Who answered, as far as Airflow knows."""
    return (user or {}).get("name") or (user or {}).get("id") or "somebody"


def _outcome(tally: Tally, settled: int, strategy: str | None) -> str:
    """What a merge does, in a few words of Markdown."""
    nothing = "changes **no object**; it records that the commit is merged"
    outcome = f"changes this: **{tally.summary}**" if tally.total else nothing
    return f"{outcome} (`{strategy}` settles **{counted(settled, 'conflict')}**)" if settled else outcome


def _form(text: str | None, destination: str, commit_id: str, tally: Tally, outcome: str) -> str:
    """The form's text, in Markdown: what a person needs to decide."""
    rows = [f"| {change.type.value} | {_code(change.path)} | {change.size_bytes:,} |" for change in tally.first]
    parts = [
        text,
        f"Merging commit `{commit_id[:16]}` into {_code(destination)} {outcome}",
        "\n".join(["| change | path | bytes |", "|---|---|---|", *rows]) if rows else None,
        f"... and {tally.unlisted:,} more" if tally.unlisted else None,
    ]
    return "\n\n".join(part for part in parts if part)


def _code(path: str) -> str:
    """A path as inline code. No Markdown and no line break in it has an effect."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in path)
    return f"`{shown.replace('`', chr(39)).replace('|', chr(92) + '|')}`"


class LakeopsGcApprovalOperator(LakeopsTask, HITLOperator):
    """Stands between a mark and its sweep: lets small marks through, and asks a person about others.

    The form shows the mark's report. Returns ``mark_id`` and ``approved_by`` (None when nobody was asked). An empty
    mark, ``only_show``, a rejection and no answer in time end the task, and the sweep after it, as skipped. All but an
    empty mark are then restored: their commits live again, and they are never swept.

    Args:
        mark_id: the mark; empty after a dry run, which made none.
        above_bytes: ask about marks that are larger; about none when left out.
        only_show: let no mark through.
        repo: the repository; the connection's default one when left out.
        lakeops_conn_id: the connection.
        kwargs: what Airflow's ``HITLOperator`` takes: ``assigned_users``, ``notifiers``, ``response_timeout``.
    """

    APPROVE = "Sweep"
    REJECT = "Leave it"
    ui_color = "#f2e6d9"

    mark_id: str | None
    above_bytes: int | str | None = None
    only_show: bool | str = False
    if TYPE_CHECKING:  # what Airflow's operator takes
        subject: Any = None
        assigned_users: Any = None
        notifiers: Any = None
        response_timeout: Any = None

    def airflow_arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        """The two answers, and a subject unless one is given."""
        subject = "Delete what garbage collection has marked?"
        return {"subject": subject, **given, "options": [self.APPROVE, self.REJECT]}

    def execute(self, context: Context) -> dict[str, Any]:
        """Let it through, or ask; Airflow parks the task then and goes on in ``execute_complete``."""
        with failing_at_once():
            limit, only_show = number(self.above_bytes), truth(self.only_show)
            if self.mark_id in (None, "", "None"):
                raise AirflowSkipException(
                    "This was a dry run, which changes nothing; the log of the mark task has the report."
                )
            with self.opened() as repository:
                report = repository.gc.report(self.mark_id)
            shown = summary(repository.id, report)
        if only_show:
            raise AirflowSkipException(f"This run deletes nothing; {self._restored()}.\n{shown}")
        if not report["files"]:
            raise AirflowSkipException(f"lakefs://{repository.id} has no garbage")
        if limit is None or report["bytes"] <= limit:
            return {"mark_id": self.mark_id, "approved_by": None}
        self.subject = f"Delete {human_size(report['bytes'])} of lakefs://{repository.id}?"
        self.body = "```\n" + shown.replace("`", "'") + "\n```"
        found: dict[str, Any] = super().execute(context)
        return found

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Who let it through. Raises ``AirflowSkipException`` for a rejection, and when nobody answered in time."""
        try:
            answer = super().execute_complete(context, event)
        except HITLTimeoutError:
            raise AirflowSkipException(f"nobody answered in time; {self._restored()}") from None
        user = answer["responded_by_user"]
        if answer["chosen_options"] != [self.APPROVE]:
            raise AirflowSkipException(
                f"{_person(user)} chose to leave mark {self.mark_id} unswept; {self._restored()}"
            )
        return {"mark_id": self.mark_id, "approved_by": _person(user) if user else None}

    def _restored(self) -> str:
        """Restore the mark; returns what came of that, in words."""
        with self.opened() as repository:
            try:
                done = repository.gc.restore(str(self.mark_id))
            except MarkRefused as error:  # somebody has swept it by hand meanwhile
                return error.message
        return f"{counted(done.commits, 'commit')} live again"
