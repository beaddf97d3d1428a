"""Commands that are imported when they are asked for, so that no command pays for the others."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from keyword import iskeyword
from typing import Any

import typer.main


class LateCommands(MutableMapping[str, Any]):
    """Commands by name; the one called ``merge-base`` is ``lakeops.cli.merge_base.app``, ``import`` is ``import_``.

    Args:
        panels: every command's name, and the panel of the help page that it is shown in.
    """

    def __init__(self, panels: dict[str, str]) -> None:
        self._panels = panels
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - typer keeps the class of commands private
        if name not in self._loaded:
            panel = self._panels[name]
            file = f"{name}_" if iskeyword(name) else name.replace("-", "_")
            module = import_module(f"lakeops.cli.{file}")
            command = typer.main.get_command(module.app)
            command.name = name
            command.rich_help_panel = panel  # type: ignore[attr-defined] # typer reads it from any command
            self._loaded[name] = command
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:  # noqa: ANN401
        self._panels[name], self._loaded[name] = "", command

    def __delitem__(self, name: str) -> None:
        del self._panels[name]
        self._loaded.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._panels)

    def __len__(self) -> int:
        return len(self._panels)
