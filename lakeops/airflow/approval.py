"""Asking a person before something is published: Airflow's approval, with the diff in the form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.exceptions import HITLRejectException, HITLTimeoutError
from airflow.providers.standard.operators.hitl import ApprovalOperator, HITLOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from lakeops.airflow import once
from lakeops.airflow.changes import Tally
from lakeops.airflow.hook import DEFAULT_CONN_ID, LakeopsHook
from lakeops.airflow.operators import failing_at_once
from lakeops.airflow.operators.base import number, truth
from lakeops.airflow.operators.gc import summary
from lakeops.model.errors import MarkRefused, MergeConflict
from lakeops.model.records import ChangeType
from lakeops.model.words import counted, human_size

if TYPE_CHECKING:
    from airflow.sdk import Context


MOST_CHANGES = 100
"""How many changes a form lists. It counts all of them."""


class LakeopsApprovalOperator(ApprovalOperator):
    """Waits until a person approves of merging ``source`` into ``destination``; the form shows what that changes.

    Returns ``approved_by``, ``approved_at`` (None when there was nothing to approve), ``source`` (as it was
    given) and what Airflow's operator returns. Rejecting skips what follows. Nobody is asked where the destination has
    the commit already: then the merge publishes nothing, whatever others do meanwhile. A merge that would conflict
    fails at once: there is nothing to approve.

    Args:
        source: the ref to merge, best a commit id: what is approved is then what is merged.
        destination: the branch to merge into; the repository's default branch when left out.
        strategy: what the merge will settle conflicts with; the form shows the outcome, and how many there are.
        repo: the repository; the connection's default one when left out.
        lakeops_conn_id: the connection.
        kwargs: what Airflow's ``ApprovalOperator`` takes: ``subject``, ``assigned_users``, ``notifiers``,
            ``response_timeout``, ``fail_on_reject``. Text in ``body`` comes before the diff.
    """

    template_fields: Sequence[str] = (
        *ApprovalOperator.template_fields,
        "source",
        "destination",
        "strategy",
        "repo",
        "lakeops_conn_id",
    )
    ui_color = "#f2e6d9"

    def __init__(
        self,
        *,
        source: str,
        destination: str | None = None,
        repo: str | None = None,
        lakeops_conn_id: str = DEFAULT_CONN_ID,
        strategy: str | None = None,
        subject: str | None = None,
        **kwargs: Any,  # noqa: ANN401 - ApprovalOperator's
    ) -> None:
        if subject is None:
            subject = f"Publish to {destination or 'the default branch'}?"
        super().__init__(subject=subject, **kwargs)
        self.source = source
        self.destination = destination
        self.strategy = strategy
        self.repo = repo
        self.lakeops_conn_id = lakeops_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Ask, if there is anything to ask; Airflow parks the task then and goes on in ``execute_complete``."""
        with failing_at_once(), LakeopsHook(self.lakeops_conn_id).repository(self.repo) as repository:
            destination = self.destination or repository.default_branch
            # Both sides as they are at one moment, so that everything below speaks of one merge.
            shown, head = repository.ref(self.source).commit_id, repository.branch(destination).commit_id
            has_it = once.contains(repository, head, shown)
            tally = Tally.of(repository.compare(head, shown), MOST_CHANGES)
            settled = tally.counts[ChangeType.CONFLICT]
            if settled and not self.strategy:
                changes = repository.compare(head, shown)
                paths = [change.path for change in changes if change.type is ChangeType.CONFLICT]
                raise MergeConflict(shown, destination, paths)
            if settled:
                tally = Tally.of(repository.compare(head, shown, strategy=self.strategy), MOST_CHANGES)
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
            AirflowFailException: somebody rejected it and ``fail_on_reject`` is set, or nobody answered in time. Asking
                again is for people to decide, not for ``retries``.
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
    return "somebody" if user is None else user["name"] or user["id"]


def _outcome(tally: Tally, settled: int, strategy: str | None) -> str:
    """What a merge does, in a few words of Markdown."""
    counted = ", ".join(f"{count:,} {kind}" for kind, count in tally.counts.items() if count)
    said = f"changes this: **{counted}**" if counted else "changes **no object**; it records that the commit is merged"
    conflicts = f"{settled:,} conflict{'s' if settled > 1 else ''}"
    return f"{said} (`{strategy}` settles **{conflicts}**)" if settled else said


def _form(text: str | None, destination: str, commit_id: str, tally: Tally, outcome: str) -> str:
    """The form's text, in Markdown: what a person needs to decide. Airflow folds the lines of code blocks."""
    rows = [f"| {change.type.value} | {_code(change.path)} | {change.size_bytes:,} |" for change in tally.first]
    rest = tally.total - len(tally.first)
    parts = [
        text,
        f"Merging commit `{commit_id[:16]}` into {_code(destination)} {outcome}",
        "\n".join(["| change | path | bytes |", "|---|---|---|", *rows]) if rows else None,
        f"... and {rest:,} more" if rest else None,
    ]
    return "\n\n".join(part for part in parts if part)


def _code(path: str) -> str:
    """A path as it is, whatever it holds: no Markdown and no line break comes through."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in path)
    return f"`{shown.replace('`', chr(39)).replace('|', chr(92) + '|')}`"


class LakeopsGcApprovalOperator(HITLOperator):
    """Stands between a mark and its sweep: lets small ones through, and asks about the others.

    The form shows the mark's report. Returns ``mark_id`` and ``approved_by`` (None when nobody was asked). A mark that
    is empty, a run that only shows, a rejection and no answer in time end the task, and the sweep behind it, as
    skipped. But for the first of them, they restore the mark: its commits live again, and it is never swept.

    Args:
        mark_id: the mark; empty after a dry run, which only shows.
        above_bytes: ask about marks that are larger; never when left out.
        only_show: let nothing through.
        repo: the repository; the connection's default one when left out.
        lakeops_conn_id: the connection.
        kwargs: what Airflow's ``HITLOperator`` takes: ``assigned_users``, ``notifiers``, ``response_timeout``.
    """

    APPROVE = "Sweep"
    REJECT = "Leave it"
    template_fields: Sequence[str] = (
        *HITLOperator.template_fields,
        "mark_id",
        "above_bytes",
        "only_show",
        "repo",
        "lakeops_conn_id",
    )
    ui_color = "#f2e6d9"

    def __init__(
        self,
        *,
        mark_id: str | None,
        above_bytes: int | str | None = None,
        only_show: bool | str = False,
        repo: str | None = None,
        lakeops_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,  # noqa: ANN401 - HITLOperator's
    ) -> None:
        kwargs.setdefault("subject", "Delete what garbage collection has marked?")
        super().__init__(options=[self.APPROVE, self.REJECT], **kwargs)
        self.mark_id = mark_id
        self.above_bytes = above_bytes
        self.only_show = only_show
        self.repo = repo
        self.lakeops_conn_id = lakeops_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Let it through, or ask; Airflow parks the task then and goes on in ``execute_complete``."""
        with failing_at_once():
            limit, show = number(self.above_bytes), truth(self.only_show)
            if self.mark_id in (None, "", "None"):
                raise AirflowSkipException("Only shown, nothing was changed: the log of the mark task has the report.")
            with LakeopsHook(self.lakeops_conn_id).repository(self.repo) as repository:
                report = repository.gc.report(self.mark_id)
            shown = summary(repository.id, report)
        if show:
            raise AirflowSkipException(f"Only shown, nothing is deleted; {self._restored()}.\n{shown}")
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
        user = answer["responded_by_user"] or {}
        who = user.get("name") or user.get("id")
        if answer["chosen_options"] != [self.APPROVE]:
            raise AirflowSkipException(
                f"{who or 'somebody'} chose to leave mark {self.mark_id} unswept; {self._restored()}"
            )
        return {"mark_id": self.mark_id, "approved_by": who}

    def _restored(self) -> str:
        """Take the mark back; says what came of that."""
        with LakeopsHook(self.lakeops_conn_id).repository(self.repo) as repository:
            try:
                done = repository.gc.restore(str(self.mark_id))
            except MarkRefused as error:  # somebody has swept it by hand meanwhile
                return error.message
        return f"{counted(done.commits, 'commit')} live again"
