"""The pages about upkeep: what happened to refs and who did it, garbage collection, mirrors, and checks."""

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
    """Pages of upkeep."""

    def audit(self) -> str:
        """Who changed what, in all repositories or in one."""
        name = self._path.get("repository")
        actor = self._query_value("actor")
        below = self._record_in_address("before")
        repository = None if name is None else self._lake.repository(name)
        records = self._lake.catalog.audit(name, actor=actor or None, below=below, limit=RECORDS + 1)
        last = records[RECORDS - 1] if len(records) > RECORDS else None
        values: dict[str, Any] = {
            "records": records[:RECORDS],
            "next_before": None if last is None else f"{last.at}-{last.sequence}",
            "actor": actor,
        }
        if repository is None:
            return self._page("audit.html", "Audit", crumbs=[("Audit", None)], repository=None, **values)
        return self._of_repository("audit.html", "Audit", repository, tab="audit", **values)

    def _record_in_address(self, name: str) -> tuple[int, int] | None:
        """Time and number of a record in the address. Raises ``InvalidInput``."""
        parts = self._query_value(name).split("-")
        if parts == [""]:
            return None
        if len(parts) != 2 or not all(part.isdecimal() and len(part) <= 18 for part in parts):
            raise InvalidInput("the place in the audit is a time and a number")
        return int(parts[0]), int(parts[1])

    def moves(self) -> str:
        """Where refs were: the reflog, of all of them or of one."""
        repository = self._repository()
        ref, before = self._query_value("of"), self._query_value("before")
        if before and not (before.isdecimal() and len(before) <= 18):
            raise InvalidInput("the place in the reflog is a number")
        below = int(before) if before else None
        found = self._lake.catalog.reflog(repository.id, ref or None, below=below, limit=RECORDS + 1)
        more = found[RECORDS - 1].sequence if len(found) > RECORDS else None
        return self._of_repository(
            "moves.html", "Moves", repository, tab="moves", records=found[:RECORDS], next_before=more, of=ref
        )

    def collection(self) -> str:
        """Garbage collection: the rules in words, the marks, and what they found over time."""
        repository = self._repository()
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
            repository,
            tab="gc",
            rules=repository.gc.rules(),
            grace=repository.gc.grace(),
            marks=marks,
            chart=size_bars("Garbage over time", said, points) if any(mark.bytes for mark in marks) else None,
            sweepable=SWEEPABLE,
            registrations=repository.registrations(),
        )

    def mirror(self) -> str:
        """How far a mirror is, and was."""
        repository = self._repository()
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
            repository,
            tab="mirror",
            status=status,
            refs=sorted(refs, key=lambda ref: -ref.lag_seconds)[:RECORDS],
            count=len(refs),
            chart=chart,
            lags=lags[: -RECORDS - 1 : -1],
            registrations=repository.registrations(),
        )

    def checks(self) -> str:
        """What the last check of the repository found."""
        repository = self._repository()
        return self._of_repository("checks.html", "Checks", repository, tab="checks", last=repository.last_check())
