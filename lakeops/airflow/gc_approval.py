"""Asking a person before a sweep deletes much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk.exceptions import AirflowSkipException

from lakeops.airflow.hook import DEFAULT_CONN_ID, LakeopsHook
from lakeops.airflow.operators import failing_at_once
from lakeops.airflow.operators.gc import summary
from lakeops.airflow.operators.values import number, truth
from lakeops.model.words import human_size

if TYPE_CHECKING:
    from airflow.sdk import Context


class LakeopsGcApprovalOperator(HITLOperator):
    """Stands between a mark and its sweep: lets small ones through, and asks about the others.

    The form shows the mark's report. Returns ``mark_id`` and ``approved_by`` (None when nobody was asked). A mark that
    is empty, a run that only shows, and a rejection end the task, and the sweep behind it, as skipped.

    Args:
        mark_id: the mark.
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
        mark_id: str,
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
            with LakeopsHook(self.lakeops_conn_id).repository(self.repo) as repository:
                report = repository.gc.report(self.mark_id)
            shown = summary(repository.id, report)
        if not report["files"]:
            raise AirflowSkipException(f"lakefs://{repository.id} has no garbage")
        if show:
            raise AirflowSkipException(f"Only shown, nothing is deleted.\n{shown}")
        if limit is None or report["bytes"] <= limit:
            return {"mark_id": self.mark_id, "approved_by": None}
        self.subject = f"Delete {human_size(report['bytes'])} of lakefs://{repository.id}?"
        self.body = "```\n" + shown.replace("`", "'") + "\n```"
        found: dict[str, Any] = super().execute(context)
        return found

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Who let it through. Raises ``AirflowSkipException`` for a rejection, as HITLOperator does for no answer."""
        answer = super().execute_complete(context, event)
        user = answer["responded_by_user"] or {}
        who = user.get("name") or user.get("id")
        if answer["chosen_options"] != [self.APPROVE]:
            raise AirflowSkipException(f"{who or 'somebody'} chose to leave mark {self.mark_id} unswept")
        return {"mark_id": self.mark_id, "approved_by": who}
