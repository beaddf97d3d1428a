"""Asking before something is thrown away."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from lakeops.cli.output import Output, is_terminal
from lakeops.model.errors import InvalidInput

SHOWN = 20
"""How many single losses are listed before the rest is only counted."""


def can_ask(out: Output) -> bool:
    """Whether a person is there to answer."""
    return not out.as_json and is_terminal(sys.stdin) and is_terminal(sys.stderr)


def agree(out: Output, yes: bool, question: str, show: Callable[[], None]) -> None:
    """Return when the user wants it; leave the command otherwise.

    Args:
        out: shows what would go, and asks, on stderr.
        yes: the user has agreed beforehand: nothing is shown or asked.
        question: what is about to happen, as a question.
        show: prints what would go.

    Raises:
        InvalidInput: nobody can be asked.
        Abort: the answer is no.
    """
    if yes:
        return
    if not can_ask(out):
        if not out.as_json:
            show()
        raise InvalidInput(f"{question} Nobody can be asked here; pass --yes to do it")
    show()
    typer.confirm(question, abort=True, err=True)
