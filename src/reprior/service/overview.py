"""The whole server at a glance: open alarms, streams by how far they moved, stale streams, and health."""

from __future__ import annotations

from typing import Any

from reprior.service.hub import Hub
from reprior.service.live import Live
from reprior.service.store import StoreError
from reprior.service.views import summary

MOST = 20  # entries of each part


async def overview(hub: Hub) -> dict[str, Any]:
    """Return what somebody on call wants to know first."""
    now = hub.clock()
    lives = [live for live in hub.streams.values() if not live.gone]
    alarms = [alarm | {"silence": live.silenced(now)} for live in lives for alarm in live.alarms()]
    alarms.sort(key=lambda alarm: -alarm["raised"])
    stale = sorted((live for live in lives if live.stale is not None), key=lambda live: live.seen)
    moved = sorted((live for live in lives if live.stream.n), key=Live.shift, reverse=True)[:MOST]
    await hub.sparks(moved)
    return {
        "now": now, "streams": len(lives), "samples": sum(live.stream.n for live in lives),
        "rate": round(sum(live.rate(now) for live in lives), 3),
        "alarms": {"total": len(alarms), "shown": alarms[:MOST]},
        "moved": [summary(live, now) for live in moved],
        "stale": {"total": len(stale), "shown": [summary(live, now) for live in stale[:MOST]]},
        "unreadable": [{"name": name, "why": found.why} for name, found in sorted(hub.unreadable.items())],
        "webhook": await webhook(hub), "health": health(hub),
    }  # fmt: skip


async def webhook(hub: Hub) -> dict[str, Any] | None:
    """Return how many messages nobody has taken and why; None if there is no webhook."""
    if hub.settings.webhook is None:
        return None
    try:
        count, problem = await hub.alarms.undelivered()
    except StoreError as error:
        return {"undelivered": None, "problem": str(error)}
    return {"undelivered": count, "problem": problem}


def health(hub: Hub) -> dict[str, Any]:
    """Return whether samples can be stored, and what else is not as it should be."""
    return {
        "ok": hub.trouble is None, "trouble": hub.trouble, "problems": hub.problems(),
        "clock_ahead": round(hub.clock.ahead, 3),
        "refused": {"total": hub.measures.refused.total(), "last": hub.measures.last_refused},
    }  # fmt: skip
