"""Checking a repository on a schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from airflow.sdk.exceptions import AirflowFailException

from lakeops.airflow.operators.base import LakeopsOperator
from lakeops.airflow.operators.values import truth
from lakeops.model.errors import InvalidInput
from lakeops.model.findings import Finding, Severity
from lakeops.model.words import counted, safe

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lakeops.lake import Lake

FailOn = Literal["error", "warning", "never"]
"""The least severity of a finding that fails the task."""


class LakeopsFsckOperator(LakeopsOperator):
    """Checks a repository from its refs down; returns ``ok``, ``severities``, ``checked`` and ``findings``.

    Changes nothing. Every finding is in the log; the result has the first ones. A task that fails over what it found
    leaves the same as the XCom ``findings``.

    Args:
        data: look at the objects too: there, as large, the same contents. Takes as long as reading them all.
        fail_on: ``error`` fails the task when something that a live version needs is damaged, ``warning`` also when
            something is not as it should be, ``never`` leaves it to what follows.
        max_findings: how many findings the result has.
        kwargs: see ``LakeopsOperator``.
    """

    template_fields: Sequence[str] = (*LakeopsOperator.template_fields, "data")

    def __init__(
        self,
        *,
        data: bool | str = False,
        fail_on: FailOn = "error",
        max_findings: int = 100,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(**kwargs)
        if fail_on not in get_args(FailOn):
            raise InvalidInput(f"fail_on is one of {', '.join(get_args(FailOn))}, not {fail_on!r}")
        self.data = data
        self.fail_on = fail_on
        self.max_findings = max_findings

    def work(self, lake: Lake, name: str, context: Context) -> dict[str, Any]:
        """The findings, counted. Raises ``AirflowFailException`` when they are bad enough."""
        severities: Counter[Severity] = Counter()
        first: list[Finding] = []
        check = lake.repository(name).fsck(data=truth(self.data))
        for finding in check:
            severities[finding.severity] += 1
            level = {Severity.ERROR: self.log.error, Severity.WARNING: self.log.warning}.get(
                finding.severity, self.log.info
            )
            level("%s %s: %s; %s", finding.kind, safe(finding.where), safe(finding.message), finding.advice)
            if len(first) < self.max_findings:
                first.append(finding)
        record = {
            "ok": not severities[Severity.ERROR],
            "severities": {severity.value: severities[severity] for severity in Severity},
            "checked": dict(check.checked),
            "findings": [finding.to_json() for finding in first],
        }
        bad = [severity for severity in self._bad() if severities[severity]]
        if bad:
            context["ti"].xcom_push(key="findings", value=record["findings"])
            worst = next((finding for finding in first if finding.severity in bad), None)
            counts = ", ".join(counted(severities[severity], severity.value) for severity in bad)
            told = "" if worst is None else f"; {worst.kind} {safe(worst.where)}: {safe(worst.message)}; {worst.advice}"
            raise AirflowFailException(f"fsck of lakefs://{name} found {counts}{told}")
        return record

    def _bad(self) -> tuple[Severity, ...]:
        bad = {"error": (Severity.ERROR,), "warning": (Severity.ERROR, Severity.WARNING), "never": ()}
        return bad[self.fail_on]
