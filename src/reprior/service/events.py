"""Server-sent events: the whole server, once a second at most, and one stream, ten times a second at most.

A watcher is told the newest state and never a backlog, so a slow one costs no memory. One connection tells both,
because a browser opens only six to a server, for all its tabs together.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

from reprior.service import views
from reprior.service.errors import Missing
from reprior.service.hub import Hub
from reprior.service.served import ServedStream
from reprior.service.wire import json_bytes

STREAM_SECONDS = 0.1
SERVER_SECONDS = 1.0
ALIVE_SECONDS = 15.0


def event(kind: str, value: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + json_bytes(value) + b"\n\n"


def overview(hub: Hub) -> dict[str, Any]:
    """Return what there is on the server as a whole."""
    return {
        "now": hub.clock(), "version": hub.version, "streams": len(hub.streams), "samples": hub.counters.learned,
        "alarms": sum(len(served.watch.open()) for served in hub.present()), "trouble": hub.trouble,
    }  # fmt: skip


def stream_state(hub: Hub, served: ServedStream) -> tuple[Any, ...]:
    """Return what differs when there is something new to tell of a stream."""
    raised, now = [alarm["id"] for alarm in served.watch.open()], hub.clock()
    active = served.activity.rate(now) > 0.01  # a rate falls while nothing comes: look once a second at least
    silence = served.watch.silenced(now)
    return served.version, served.stream.n, served.labels, raised, silence, int(now) if active else 0


async def events(hub: Hub, name: str | None) -> AsyncIterator[bytes]:
    """Yield events for as long as somebody reads them."""
    sent_stream = sent_server = None
    silent = 0.0
    pause = SERVER_SECONDS if name is None else STREAM_SECONDS
    often = round(SERVER_SECONDS / pause)
    yield b"retry: 2000\n\n"
    for turn in itertools.count():
        made = b""
        if name is not None:
            try:
                served = hub.get(name)
            except Missing:
                yield event("deleted", {"name": name})
                return
            if (state := stream_state(hub, served)) != sent_stream:
                made, sent_stream = event("update", views.update(served, hub.clock())), state
        if turn % often == 0 and (server := (hub.version, hub.trouble)) != sent_server:
            made, sent_server = made + event("server", overview(hub)), server
        silent = 0.0 if made else silent + pause
        if silent >= ALIVE_SECONDS:
            made, silent = b": alive\n\n", 0.0
        if made:
            yield made
        await asyncio.sleep(pause)
