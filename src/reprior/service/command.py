"""`reprior serve`: the service from the command line."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path
from typing import Any

import click

from reprior._check import fail

LACKING = "`reprior serve` needs a web server. In the folder of reprior's source: pip install '.[serve]'"


@click.command("serve")
@click.option("--db", type=click.Path(dir_okay=False, path_type=Path), help="The file that keeps everything.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--port", default=8733, show_default=True, help="0 takes a free one and says which.")
@click.option("--token-file", type=click.Path(path_type=Path), help="A file with the token that writing needs.")
@click.option("--read-token-file", type=click.Path(path_type=Path), help="A file with the token that reading needs.")
@click.option(
    "--token", help="The token that writing needs; other users of the machine can see it in the list of processes."
)
@click.option("--demo", is_flag=True, help="Feed two streams from a real classifier whose class mix drifts.")
@click.option("--check", "check_only", is_flag=True, help="Verify the file and exit; 1 if it is damaged.")
@click.option("--webhook", metavar="URL", help="Where alarms are sent; REPRIOR_WEBHOOK_SECRET signs them.")
@click.option("--forward", metavar="URL", help="Where CloudEvents go on to.")
@click.option("--intake", "intakes", multiple=True, metavar="URL",
              help="Read a broker: redis://, mqtt://, nats:// or kafka://HOST:PORT/TOPIC?stream=NAME.")  # fmt: skip
@click.option("--max-body", default=32 << 20, show_default=True, help="Bytes of a request at most.")
@click.option("--max-classes", default=10_000, show_default=True, help="Classes of a stream at most.")
@click.option("--max-streams", default=20_000, show_default=True, help="Streams at most.")
@click.option("--max-rate", default=5_000.0, show_default=True, help="Requests a second from one address at most.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="A name under which the server is reached.")
@click.option("--json", "as_json", is_flag=True, help="Errors and the result of --check as JSON.")
def command(as_json: bool, **given: Any) -> int:
    """Keep streams behind HTTP, durable in one file, with a live page at the same address.

    It listens on this machine alone, unless --host says otherwise; then it wants a token. REPRIOR_TOKEN and
    REPRIOR_READ_TOKEN are taken from the environment too.

    \b
    Example:  reprior serve --demo
              reprior serve --db streams.db --token-file token
    """
    try:
        import msgpack  # noqa: F401
        import orjson  # noqa: F401
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ImportError(LACKING) from error
    if given["check_only"]:
        return check_file(given["db"], as_json)
    return serve(given)


def check_file(db: Path | None, as_json: bool) -> int:
    """Verify a database and say what was found."""
    import json

    from reprior.service.store import check

    if db is None:
        fail("serve", "--db", "name the file to check", "nothing")
    wrong, held = check(db)
    if as_json:
        click.echo(json.dumps({"sound": not wrong, "wrong": wrong, "held": held}))
    else:
        click.echo("\n".join(wrong) or f"{db.name} is sound.")
        click.echo(", ".join(f"{count} {table}" for table, count in held.items()))
    return 1 if wrong else 0


def token_of(text: str | None, file: Path | None, variable: str) -> str | None:
    """Return a token from where it was given."""
    found = file.read_text().strip() if file else text if text is not None else os.environ.get(variable)
    if found is not None and (len(found) < 8 or not found.isascii() or not found.isprintable() or " " in found):
        fail("serve", variable, "be at least 8 printable ASCII characters without a space", f"{len(found)} characters")
    return found


def serve(given: dict[str, Any]) -> int:
    """Run the server until it is told to stop."""
    import tempfile

    from reprior.service.app import open_hub
    from reprior.service.guard import LOOPBACK
    from reprior.service.intake import check_address, check_package
    from reprior.service.server import make
    from reprior.service.settings import Limits, Settings

    token = token_of(given["token"], given["token_file"], "REPRIOR_TOKEN")
    read_token = token_of(None, given["read_token_file"], "REPRIOR_READ_TOKEN")
    here = given["host"] in ("127.0.0.1", "::1", "localhost")
    if not here and token is None:
        fail("serve", "--host", "be this machine alone where no token is set", given["host"],
             remedy="Give --token-file")  # fmt: skip
    for url in given["intakes"]:
        check_package(check_address(url))
    folder = None
    if given["db"] is None:
        if not given["demo"]:
            fail("serve", "--db", "name the file that keeps everything", "nothing",
                 remedy="`reprior serve --demo` needs none")  # fmt: skip
        folder = tempfile.TemporaryDirectory(prefix="reprior-")
        given["db"] = Path(folder.name) / "demo.db"
    settings = Settings(
        db=given["db"], token=token, read_token=read_token,
        hosts=(*LOOPBACK, *given["hosts"]) if here or given["hosts"] else (),
        limits=Limits(body=given["max_body"], classes=given["max_classes"], streams=given["max_streams"],
                      rate=given["max_rate"]),
        webhook=given["webhook"], webhook_secret=os.environ.get("REPRIOR_WEBHOOK_SECRET"), forward=given["forward"],
        demo=given["demo"], intakes=given["intakes"],
    )  # fmt: skip
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        listening = listen(given["host"], given["port"])
        with listening:  # the file and the address are ours before uvicorn starts: it would answer with a stack trace
            server = make(settings, given["host"], given["port"], hub=open_hub(settings))
            run(server, listening, given["host"])
    finally:
        if folder:
            folder.cleanup()
    return 0 if server.started else 1


def listen(host: str, port: int) -> socket.socket:
    """Return a socket at an address, or say that it cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return fail("serve", "--host, --port", "be an address that can be listened at", f"{host}:{port} ({reason})")


def run(server: Any, listening: socket.socket, host: str) -> None:
    """Run a server; once it listens, say where."""
    import asyncio
    import signal

    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn ends in order, and then raises the signal once more
        signal.signal(number, lambda *_: None)

    async def main() -> None:
        task = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started and not task.done():
            await asyncio.sleep(0.01)
        if server.started:
            shown = f"[{host}]" if ":" in host else host
            click.echo(f"Listening at http://{shown}:{listening.getsockname()[1]}/")
        await task

    try:
        from uvloop import new_event_loop
    except ImportError:
        new_event_loop = None
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
