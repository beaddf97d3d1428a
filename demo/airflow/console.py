"""What the person who runs the demo sees: a live board in a terminal, plain lines everywhere else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

console = Console(highlight=False, soft_wrap=True)
ENDED = {"success", "failed", "upstream_failed", "skipped"}
MARKS = {"success": "[green]✓[/]", "failed": "[red]✗[/]", "upstream_failed": "[dim]-[/]", "running": "[yellow]…[/]"}


class Board:
    """Which task of which day is where."""

    def __init__(self, days: Sequence[str], tasks: Sequence[str]) -> None:
        self._days = days
        self._tasks = tasks
        self._runs: dict[str, str] = {}
        self._states: dict[str, Mapping[str, str]] = {}
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def update(self, day: str, run: str, states: Mapping[str, str]) -> None:
        """Show a day's run and its tasks."""
        before = self._runs.get(day)
        self._runs[day], self._states[day] = run, states
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
        elif run != before and run in ENDED:
            steps = ", ".join(f"{task} {states.get(task) or 'waiting'}" for task in self._tasks)
            console.print(f"  {day} {run}: {steps}")

    def _table(self) -> Table:
        table = Table("day", *self._tasks, "run")
        for day in self._days:
            states = self._states.get(day, {})
            cells = [MARKS.get(states.get(task, ""), "") for task in self._tasks]
            table.add_row(day, *cells, self._runs.get(day, ""))
        return table

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
