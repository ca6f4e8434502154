"""Server-sent events: the whole server once a second, or one stream as often as it changes, ten times a second at most.

A watcher is told the newest state and never a backlog, so a slow one costs no memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from reprior.service import views
from reprior.service.hub import Hub, Missing
from reprior.service.wire import json_bytes

STREAM_SECONDS = 0.1
SERVER_SECONDS = 1.0
ALIVE_SECONDS = 15.0


def event(kind: str, value: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + json_bytes(value) + b"\n\n"


def overview(hub: Hub) -> dict[str, Any]:
    """Return what there is on the server as a whole."""
    return {
        "now": hub.clock(), "version": hub.version, "streams": len(hub.streams), "samples": hub.learned,
        "alarms": sum(live.open_alarm is not None for live in hub.streams.values()), "trouble": hub.trouble,
    }  # fmt: skip


async def events(hub: Hub, name: str | None) -> AsyncIterator[bytes]:
    """Yield events for as long as somebody reads them."""
    told: Any = None
    silent = 0.0
    pause = SERVER_SECONDS if name is None else STREAM_SECONDS
    yield b"retry: 2000\n\n"
    while True:
        if name is None:
            state: Any = (hub.version, hub.trouble)
            made = event("server", overview(hub)) if state != told else b""
        else:
            try:
                live = hub.get(name)
            except Missing:
                yield event("deleted", {"name": name})
                return
            raised = live.open_alarm and live.open_alarm["id"]
            # a rate falls while nothing comes: look once a second at least
            state = (
                live.id,
                live.stream.n,
                live.labels,
                raised,
                int(hub.clock()) if live.rate(hub.clock()) > 0.01 else 0,
            )
            made = event("update", views.update(live, hub.clock())) if state != told else b""
        silent = 0.0 if made else silent + pause
        if made:
            told = state
            yield made
        elif silent >= ALIVE_SECONDS:
            silent = 0.0
            yield b": alive\n\n"
        await asyncio.sleep(pause)
