"""`reprior serve`: the service from the command line."""

from __future__ import annotations

import json
import os
import socket
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reprior._check import InputError, check_choice, fail

if TYPE_CHECKING:
    from reprior.service.upkeep import FileReport

LACKING = "`reprior serve` needs a web server. In the folder of reprior's source: pip install '.[serve]'"
HERE = ("127.0.0.1", "::1", "localhost")
FILE = click.Path(dir_okay=False, path_type=Path)
SAME_NAMES = ("db", "public_url", "stale_after", "webhook", "forward", "demo", "metric_streams")  # as in `Settings`
GARBAGE_OBJECTS = 20_000  # between two searches for garbage; with Python's 700 they take a tenth of a post's CPU time


def from_file(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Take the options of a TOML file as defaults; the command line and the environment come first."""
    import tomllib

    if path is None:
        return
    try:
        options = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        fail("serve", "--config", "be a TOML file that can be read", f"{path.name} ({error})")
    names = {option.opts[0].removeprefix("--"): option.name for option in ctx.command.params}
    for key in options:
        check_choice(key, "serve", f"a key of {path.name}", sorted(set(names) - {"config", "json"}))
    ctx.default_map = {str(names[key]): value for key, value in options.items()}


@click.group("serve", invoke_without_command=True, context_settings={"auto_envvar_prefix": "REPRIOR"})
@click.option("--config", type=FILE, is_eager=True, expose_value=False, callback=from_file,
              help="A TOML file with options, named as here without the dashes.")  # fmt: skip
@click.option("--db", type=FILE, help="Database file.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", default=8733, show_default=True, help="Port; 0 takes a free one and prints it.")
@click.option("--token-file", type=FILE,
              help="A file with a token for everything, or with lines ROLE NAME TOKEN (roles: read, ingest, admin)."
              " SIGHUP reads it again.")  # fmt: skip
@click.option("--read-token-file", type=FILE, help="A file with the token that reading needs.")
@click.option("--token", help="A token for everything; other users of the machine can see it in the process list.")
@click.option("--public-url", metavar="URL", help="Where users reach the page, with its path; messages link to it.")
@click.option("--allow-host", multiple=True, metavar="NAME", help="A name under which the server is reached.")
@click.option("--proxy", multiple=True, metavar="ADDRESS", help="A proxy whose X-Forwarded-For is trusted.")
@click.option("--webhook", metavar="URL", help="Where alarms are sent; REPRIOR_WEBHOOK_SECRET signs them.")
@click.option("--allow-private-webhook", is_flag=True,
              help="Allow a webhook on this machine or in a private network.")  # fmt: skip
@click.option("--stale-after", default=3_600.0, show_default=True,
              help="Seconds without samples after which a stream raises an alarm; 0 for never.")  # fmt: skip
@click.option("--forward", metavar="URL", help="Where CloudEvents are sent on to.")
@click.option("--intake", multiple=True, metavar="URL",
              help="Read a broker: redis://, mqtt://, nats:// or kafka://HOST:PORT/TOPIC?stream=NAME.")  # fmt: skip
@click.option("--max-body", default=32 << 20, show_default=True, help="Maximum request size in bytes.")
@click.option("--max-classes", default=10_000, show_default=True, help="Maximum number of classes per stream.")
@click.option("--max-streams", default=20_000, show_default=True, help="Maximum number of streams.")
@click.option("--max-clients", default=10_000, show_default=True, help="Maximum number of clients per stream.")
@click.option("--max-rate", default=5_000.0, show_default=True, help="Maximum requests per second from one address.")
@click.option("--keep-history", default=366.0, show_default=True, help="Days for which the history is kept.")
@click.option("--keep-clients", default=7.0, show_default=True, help="Days until a silent client is forgotten.")
@click.option("--keep-rows", default=7.0, show_default=True, help="Days in which a label can follow by prediction id.")
@click.option("--metric-streams", default=2_000, show_default=True, help="Streams in /metrics, the oldest first.")
@click.option("--log-format", default="text", show_default=True, type=click.Choice(["text", "json"]))
@click.option("--log-level", default="info", show_default=True,
              type=click.Choice(["debug", "info", "warning", "error"]))  # fmt: skip
@click.option("--demo", is_flag=True, help="Feed two streams from a real classifier whose class prior drifts.")
@click.option("--json", "as_json", is_flag=True, help="Errors as JSON.")
@click.pass_context
def command(ctx: click.Context, /, as_json: bool, **options: Any) -> int:
    """Keep streams behind HTTP, durable in one file, with a live page at the same address.

    It listens on this machine alone unless --host says otherwise; then every request needs a token. Every option is
    also read from the environment: --max-body from REPRIOR_MAX_BODY. REPRIOR_READ_TOKEN is a token for reading.

    \b
    Example:  reprior serve --demo
              reprior serve --db streams.db --token-file token
    """
    if not all(map(find_spec, ("msgpack", "orjson", "starlette", "uvicorn"))):
        raise ImportError(LACKING)
    return 0 if ctx.invoked_subcommand else serve(options)


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
db_option = click.option("--db", type=FILE, required=True, envvar="REPRIOR_DB", help="The file of the server.")


@command.command("check")
@db_option
@json_option
def check_file(db: Path, as_json: bool) -> int:
    """Verify the file; the exit code is 1 if something is wrong. The server may run meanwhile."""
    from reprior.service.upkeep import check

    report = check(db)
    return echo_report(report, f"{db.name} is sound.", as_json)


@command.command("backup")
@db_option
@json_option
@click.argument("file", type=FILE)
def backup_file(db: Path, file: Path, as_json: bool) -> int:
    """Copy the database to FILE and verify the copy; the exit code is 1 if something is wrong in it.

    The server may run meanwhile.
    """
    from reprior.service.upkeep import backup

    return echo_report(backup(db, file), f"{file.name} is a sound copy.", as_json)


@command.command("restore")
@db_option
@click.option("--replace", is_flag=True, help="Overwrite the current database.")
@json_option
@click.argument("file", type=FILE)
def restore_file(db: Path, file: Path, replace: bool, as_json: bool) -> int:
    """Replace the database by the backup FILE; the exit code is 1 if something is wrong in it.

    No server may run meanwhile.
    """
    from reprior.service.upkeep import restore

    return echo_report(restore(db, file, replace=replace), f"{db.name} is restored, and sound.", as_json)


def echo_report(report: FileReport, sound: str, as_json: bool) -> int:
    """Print what is wrong in a database, or that it is `sound`, and what it holds; return the exit code."""
    held = ", ".join(f"{count} {table}" for table, count in report.rows.items())
    about = {"sound": not report.problems, "wrong": report.problems, "held": report.rows}
    lines = "\n".join([*(report.problems or [sound]), held])
    click.echo(json.dumps(about) if as_json else lines)
    return 1 if report.problems else 0


def tokens_of(options: dict[str, Any]) -> list[Any]:
    """Return the tokens of the options, the files and the environment."""
    from reprior.service.settings import check_token, read_tokens

    tokens = []
    for role, text, file, option in (
        ("admin", options["token"], options["token_file"], "--token"),
        ("read", os.environ.get("REPRIOR_READ_TOKEN"), options["read_token_file"], "--read-token-file"),
    ):
        if file is not None:
            tokens += read_tokens(file, role, option)
        elif text is not None:
            tokens.append(check_token(role, role, text, option))
    return tokens


def settings_of(options: dict[str, Any]) -> Any:
    """Return the settings that the options describe."""
    from urllib.parse import urlsplit

    from reprior.service.request_checks import LOOPBACK
    from reprior.service.settings import Limits, Retention, Settings

    tokens, here = tokens_of(options), options["host"] in HERE
    if not here and not tokens:
        fail("serve", "--host", "be this machine alone if no token is set", options["host"], remedy="Give --token-file")
    public = urlsplit(options["public_url"] or "")
    if options["public_url"] and (public.scheme not in ("http", "https") or not public.hostname or public.query):
        fail("serve", "--public-url", "be like https://HOST/PATH", options["public_url"])
    hosts = [name.lower() for name in (*options["allow_host"], public.hostname or "") if name]
    return Settings(
        tokens=tokens, hosts=(*LOOPBACK, *hosts) if here or hosts else (), proxies=options["proxy"],
        limits=Limits(**{kind: options[f"max_{kind}"] for kind in ("body", "classes", "streams", "clients", "rate")}),
        retention=Retention(**{kind: options[f"keep_{kind}"] * 86_400 for kind in ("history", "clients", "rows")}),
        webhook_private=options["allow_private_webhook"], webhook_secret=os.environ.get("REPRIOR_WEBHOOK_SECRET"),
        intakes=options["intake"], **{name: options[name] for name in SAME_NAMES},
    )  # fmt: skip


def serve(options: dict[str, Any]) -> int:
    """Run the server until it is told to stop."""
    import tempfile

    from reprior.service.errors import log_to_stderr
    from reprior.service.intake import check_address, check_package
    from reprior.service.server import make

    for url in options["intake"]:
        check_package(check_address(url))
    with ExitStack() as stack:
        if options["db"] is None:
            if not options["demo"]:
                fail("serve", "--db", "name the database file", "nothing",
                     remedy="`reprior serve --demo` needs none")  # fmt: skip
            options["db"] = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reprior-"))) / "demo.db"
        settings = settings_of(options)
        listening = stack.enter_context(listen(options["host"], options["port"]))
        stack.enter_context(log_to_stderr(options["log_format"], options["log_level"]))
        # the file and the address are ours before uvicorn starts: it would answer with a stack trace
        server = make(settings, options["host"], options["port"])
        run(server, listening, settings.tokens, options)
    return 0 if server.started and not server.failed else 1


def listen(host: str, port: int) -> socket.socket:
    """Return a socket at an address, or say that it cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return fail("serve", "--host, --port", "be an address that can be listened at", f"{host}:{port} ({reason})")


def reload_tokens(current: list[Any], options: dict[str, Any]) -> None:
    """Read the token files again; if they cannot be used, the tokens stay as they are."""
    import logging

    log = logging.getLogger("reprior.service")
    try:
        tokens = tokens_of(options)
    except InputError as error:
        log.error("tokens not reloaded: %s", error)
        return
    if current and not tokens:
        log.error("tokens not reloaded: there would be none")
        return
    current[:] = tokens
    log.info("tokens reloaded: %s", ", ".join(f"{token.name} ({token.role})" for token in tokens) or "none")


def run(server: Any, listening: socket.socket, tokens: list[Any], options: dict[str, Any]) -> None:
    """Run a server; once it listens, print where."""
    import asyncio
    import gc
    import signal

    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn ends in order, and then raises the signal once more
        signal.signal(number, lambda *_: None)

    async def main() -> None:
        task = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started and not task.done():
            await asyncio.sleep(0.01)
        if hasattr(signal, "SIGHUP"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload_tokens, tokens, options)
        if server.started:
            host = options["host"]
            shown = f"[{host}]" if ":" in host else host
            click.echo(f"Listening at http://{shown}:{listening.getsockname()[1]}/")
        await task

    try:
        from uvloop import new_event_loop
    except ImportError:
        new_event_loop = None
    gc.freeze()  # what was loaded lives as long as the process: do not look for garbage in it
    gc.set_threshold(GARBAGE_OBJECTS)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
