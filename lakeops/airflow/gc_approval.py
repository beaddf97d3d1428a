"""Asking a person before a sweep deletes much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.exceptions import HITLTimeoutError
from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk.exceptions import AirflowSkipException

from lakeops.airflow.hook import DEFAULT_CONN_ID, LakeopsHook
from lakeops.airflow.operators import failing_at_once
from lakeops.airflow.operators.gc import summary
from lakeops.airflow.operators.values import number, truth
from lakeops.model.errors import MarkRefused
from lakeops.model.words import counted, human_size

if TYPE_CHECKING:
    from airflow.sdk import Context


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
