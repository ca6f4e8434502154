"""The whole server at a glance: open alarms, streams by how far they moved, stale streams, and health."""

from __future__ import annotations

from typing import Any

from reprior.service.hub import Hub
from reprior.service.served import ServedStream
from reprior.service.views import summary

MOST = 20  # entries of each part


async def overview(hub: Hub) -> dict[str, Any]:
    """Return what somebody on call wants to know first."""
    now = hub.clock()
    streams = [served for served in hub.streams.values() if not served.gone]
    alarms = [alarm | {"silence": served.watch.silenced(now)} for served in streams for alarm in served.watch.open()]
    alarms.sort(key=lambda alarm: -alarm["raised"])
    idle = sorted(served.name for served in streams if served.watch.not_label_shift is not None)
    stale = [served for served in streams if served.watch.stale is not None]
    stale.sort(key=lambda served: served.last_post)
    moved = sorted((served for served in streams if served.stream.n), key=ServedStream.shift, reverse=True)[:MOST]
    await hub.load_curves(moved)
    return {
        "now": now, "streams": len(streams), "samples": sum(served.stream.n for served in streams),
        "rate": round(sum(served.activity.rate(now) for served in streams), 3),
        "alarms": {"total": len(alarms), "shown": alarms[:MOST]},
        "not_correcting": {"total": len(idle), "shown": idle[:MOST]},
        "moved": [summary(served, now) for served in moved],
        "stale": {"total": len(stale), "shown": [summary(served, now) for served in stale[:MOST]]},
        "unreadable": [{"name": name, "why": stream.why} for name, stream in sorted(hub.unreadable.items())],
        "webhook": dict(zip(("undelivered", "problem"), await hub.alarms.undelivered(), strict=True)),
        "health": health(hub),
    }  # fmt: skip


def health(hub: Hub) -> dict[str, Any]:
    """Return whether samples can be stored, and what else is not as it should be."""
    return {
        "ok": hub.trouble is None, "trouble": hub.trouble, "problems": hub.problems(),
        "clock_ahead": round(hub.clock.ahead, 3),
        "refused": {"total": hub.measures.refused.total(), "last": hub.measures.last_refused},
    }  # fmt: skip
