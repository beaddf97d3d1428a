"""``lakeops ui``: the pages of the lake in a browser, on this machine alone."""

from __future__ import annotations

import sys
import webbrowser
from importlib.util import find_spec
from typing import Annotated

import typer

from lakeops.cli.output import is_terminal
from lakeops.cli.session import Session, command
from lakeops.model.errors import InvalidInput

app: typer.Typer = typer.Typer(add_completion=False)

PORT = 8087
_NEEDED = ("jinja2", "starlette", "uvicorn")


@command(app, "ui", example="ui")
def ui(
    session: Session,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port on 127.0.0.1; 0 takes a free one.")] = PORT,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the pages in a browser.")] = True,
) -> None:
    """Show repositories, history, objects and differences in a browser. It only reads, on this machine alone."""
    if not all(find_spec(name) for name in _NEEDED):
        raise InvalidInput("the pages need more packages: install lakeops with its extra 'ui'")
    from lakeops.lake import Lake
    from lakeops.serving import server_of
    from lakeops.web.serve import application, listening

    socket, address = listening(port)
    with socket, Lake.open(must_exist=True) as lake:
        words = f"The lake is at {address} until you press Ctrl+C. Nobody logs in, and only this machine reaches it."
        session.answer({"address": address}, [words])
        if browser and is_terminal(sys.stdout):
            webbrowser.open(address)
        session.serve(server_of(application(lake)), socket)
