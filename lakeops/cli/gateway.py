"""``lakeops gateway``: an S3 endpoint, for programs that read S3 and know nothing of lakeops."""

from __future__ import annotations

from typing import Annotated

import typer

from lakeops.cli.options import flag, value
from lakeops.cli.session import Session, command

app: typer.Typer = typer.Typer(add_completion=False)


@command(app, "gateway", example="gateway --port 9010")
def gateway(
    session: Session,
    host: Annotated[str, value("--host", "ADDRESS", "Where to listen; 127.0.0.1 when left out.")] = "127.0.0.1",
    port: Annotated[int, value("--port", "N", "The port; 9010 when left out, 0 for any.", min=0, max=65535)] = 9010,
    write: Annotated[bool, flag("--write", "Take objects for branches, too. It needs keys.")] = False,
) -> None:
    """Let any S3 client read s3://REPO/REF/PATH, until Ctrl-C.

    With --write clients also write to the staging area of branches. Without gateway_access_key and gateway_secret_key
    in the settings only this machine is served, and nothing can be written.
    """
    from lakeops.gateway.server import keys_of, listening, server_of

    keys = keys_of(session.lake.settings)
    server = server_of(session.lake, keys, write=write)
    with listening(host, port, keys=keys) as opened:
        address, bound = opened.getsockname()[:2]
        url = f"http://[{address}]:{bound}" if ":" in address else f"http://{address}:{bound}"
        how = "requests must be signed" if keys else "no signature is needed"
        session.answer(
            {"url": url, "signed": keys is not None, "write": write}, [f"Serving s3://REPO/REF/PATH at {url} ({how})."]
        )
        session.serve(server, opened)
