"""The pages about upkeep: the audit, the reflog, garbage collection, mirrors, and checks."""

from __future__ import annotations

from typing import Any

from lakeops.lake.mirror import Mirror
from lakeops.model.errors import InvalidInput, NotAMirror
from lakeops.model.marks import SWEEPABLE, MarkState
from lakeops.model.words import counted, human_size, moment, span
from lakeops.web.charts import Point, lag_area, size_bars
from lakeops.web.page import Page

RECORDS = 100
FREED = {MarkState.SWEPT, MarkState.SWEEPING, MarkState.INCOMPLETE}


class UpkeepPages(Page):
    """The pages about upkeep."""

    def audit(self) -> str:
        """Show the audit: who changed what, in all repositories or in one."""
        name = self._path.get("repository")
        actor = self._query_value("actor")
        below = self._place(2, "the place in the audit is a time and a number")
        place = None if below is None else (below[0], below[1])
        repository = None if name is None else self._lake.repository(name)
        records = self._lake.catalog.audit(name, actor=actor or None, below=place, limit=RECORDS + 1)
        last = records[RECORDS - 1] if len(records) > RECORDS else None
        values: dict[str, Any] = {
            "records": records[:RECORDS],
            "next_before": None if last is None else f"{last.at}-{last.sequence}",
            "actor": actor,
        }
        if repository is None:
            return self._page("audit.html", "Audit", crumbs=[("Audit", None)], repository=None, **values)
        return self._of_repository("audit.html", "Audit", tab="audit", **values)

    def _place(self, length: int, rule: str) -> tuple[int, ...] | None:
        """The place in a log before which the page begins; None for its newest record. Raises ``InvalidInput``."""
        parts = self._query_value("before").split("-")
        if parts == [""]:
            return None
        if len(parts) != length or not all(part.isdecimal() and len(part) <= 18 for part in parts):
            raise InvalidInput(rule)
        return tuple(map(int, parts))

    def moves(self) -> str:
        """Show the reflog, of all refs or of one."""
        repository = self._repository
        ref = self._query_value("of")
        below = self._place(1, "the place in the reflog is a number")
        place = None if below is None else below[0]
        found = self._lake.catalog.reflog(repository.id, ref or None, below=place, limit=RECORDS + 1)
        more = found[RECORDS - 1].sequence if len(found) > RECORDS else None
        return self._of_repository(
            "moves.html", "Moves", tab="moves", records=found[:RECORDS], next_before=more, of=ref
        )

    def collection(self) -> str:
        """Show the rules of garbage collection, the marks, and the garbage that they found over time."""
        repository = self._repository
        marks = repository.gc.marks()[:RECORDS]
        points = [
            Point(
                int(mark.created.timestamp()),
                mark.bytes,
                "done" if mark.state in FREED else "open",
                f"{moment(int(mark.created.timestamp()))}: {human_size(mark.bytes)}, {mark.state.value}",
            )
            for mark in reversed(marks)
        ]
        freed = sum(mark.bytes for mark in marks if mark.state in FREED)
        said = f"{counted(len(marks), 'mark')} of the last 30 days; those that were swept freed {human_size(freed)}."
        return self._of_repository(
            "gc.html",
            "Garbage collection",
            tab="gc",
            rules=repository.gc.rules(),
            grace=repository.gc.grace(),
            marks=marks,
            chart=size_bars("Garbage over time", said, points) if any(mark.bytes for mark in marks) else None,
            sweepable=SWEEPABLE,
            registrations=repository.registrations(),
        )

    def mirror(self) -> str:
        """Show the lag of a mirror, now and over time, and the mirrors of the repository."""
        repository = self._repository
        lags, chart = [], None
        try:
            status = Mirror.of(repository).status()
        except NotAMirror:
            status = None
        refs = [] if status is None else [*status.branches.values(), *status.tags.values()]
        if status is not None:
            lags = repository.lags()
            points = [Point(one.at, one.number("seconds")) for one in lags]
            if points and status.mirror.last_sync and status.mirror.last_sync > points[-1].at:
                points.append(Point(status.mirror.last_sync, max((ref.lag_seconds for ref in refs), default=0)))
            most = max((point.value for point in points), default=0)
            said = f"How far the ref that was furthest behind was behind its source: at most {span(most)}."
            chart = lag_area("Lag over time", said, points) if len(points) > 1 else None
        return self._of_repository(
            "mirror.html",
            "Mirrors",
            tab="mirror",
            status=status,
            refs=sorted(refs, key=lambda ref: -ref.lag_seconds)[:RECORDS],
            count=len(refs),
            chart=chart,
            lags=lags[: -RECORDS - 1 : -1],
            registrations=repository.registrations(),
        )

    def checks(self) -> str:
        """Show the findings of the last check."""
        repository = self._repository
        return self._of_repository("checks.html", "Checks", tab="checks", last=repository.last_check())
