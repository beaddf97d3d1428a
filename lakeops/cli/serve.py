"""``lakeops ui`` and ``gateway``: servers that run until Ctrl+C."""

from __future__ import annotations

import sys
import webbrowser
from importlib.util import find_spec
from typing import Annotated

import typer

from lakeops.cli.options import flag, value
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
    from lakeops.web.app import application, listening

    socket, address = listening(port)
    with socket, Lake.open(must_exist=True) as lake:
        words = f"The lake is at {address} until you press Ctrl+C. Nobody logs in, and only this machine reaches it."
        session.answer({"address": address}, [words])
        if browser and is_terminal(sys.stdout):
            webbrowser.open(address)
        session.serve(server_of(application(lake)), socket)


@command(app, "gateway", example="gateway --port 9010")
def gateway(
    session: Session,
    host: Annotated[str, value("--host", "ADDRESS", "Where to listen; 127.0.0.1 when left out.")] = "127.0.0.1",
    port: Annotated[int, value("--port", "N", "The port; 9010 when left out, 0 for any.", min=0, max=65535)] = 9010,
    write: Annotated[bool, flag("--write", "Let clients stage objects on branches. Needs keys.")] = False,
) -> None:
    """Serve refs to S3 clients as s3://REPO/REF/PATH, until Ctrl-C.

    With --write clients also stage objects on branches. Without gateway_access_key and gateway_secret_key in the
    settings it serves this machine alone, and clients cannot write.
    """
    from lakeops.gateway.app import Gateway, keys_of, listening
    from lakeops.serving import server_of

    keys = keys_of(session.lake.settings)
    server = server_of(Gateway(session.lake, keys, write=write))
    with listening(host, port, keys=keys) as opened:
        address, bound = opened.getsockname()[:2]
        url = f"http://[{address}]:{bound}" if ":" in address else f"http://{address}:{bound}"
        how = "requests must be signed" if keys else "no signature is needed"
        session.answer(
            {"url": url, "signed": keys is not None, "write": write}, [f"Serving s3://REPO/REF/PATH at {url} ({how})."]
        )
        session.serve(server, opened)
