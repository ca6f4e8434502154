"""Alarms of the streams: raised, silenced, acknowledged, resolved; each step is stored and, if wanted, sent.

There are two kinds. A "shift" alarm says that the class mix has left its reference; it is resolved when somebody
acknowledges it. A "stale" alarm says that no samples come any more; it is resolved when samples come again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import numpy as np

from reprior._check import fail
from reprior._types import Matrix
from reprior.online.alarm import Alarm
from reprior.service.alarm_store import Acknowledgement, AlarmEvent, AlarmStore, Silence
from reprior.service.live import Live

if TYPE_CHECKING:
    from reprior.service.hub import Hub

log = logging.getLogger("reprior.service")
MOST_LISTED = 100  # alarms of a stream
ENOUGH_TO_ACCEPT = 200  # samples that may become the new reference of an alarm
LOOK_SECONDS = 1.0  # between two looks for stale streams


class Alarms:
    """The alarms of one server; `mark` tells the hub that a stream has something to store."""

    def __init__(self, hub: Hub, mark: Callable[[Live], None]) -> None:
        self._hub, self._mark = hub, mark
        self.store = AlarmStore(hub.store) if hub.store else None
        self._last = 0

    def load(self, by_id: dict[int, Live]) -> None:
        """Take over from the file which alarms are open and which streams are silenced."""
        assert self.store is not None
        self._last = self.store.last()
        for stream, about in self.store.unresolved():
            if stream in by_id:
                setattr(by_id[stream], "stale" if about["kind"] == "stale" else "open_alarm", about)
        for stream, silence in self.store.silences():
            if stream in by_id:
                by_id[stream].silence = silence

    # raised and resolved

    def raised(self, live: Live, about: dict[str, Any]) -> dict[str, Any]:
        """Number an alarm and see to it that it is stored and sent; return it."""
        self._last += 1
        now, silence = self._hub.clock(), live.silenced(self._hub.clock())
        text = json.dumps(about)
        about["id"] = self._last
        due = now if silence is None else silence["until"]
        message = self._message("alarm.raised", live, about)
        live.fresh_alarms.append(AlarmEvent(self._last, "raised", now, text, message, due))
        log.warning("stream %r: alarm %s raised (%s)", live.name, self._last, about["kind"])
        return about

    def resolved(self, live: Live, alarm: dict[str, Any], reason: str, **more: Any) -> AlarmEvent:
        """Return the event that an alarm is over."""
        now = self._hub.clock()
        told = {"resolved": now, "reason": reason, **more}
        log.info("stream %r: alarm %s resolved (%s)", live.name, alarm["id"], reason)
        return AlarmEvent(alarm["id"], "resolved", now, "", self._message("alarm.resolved", live, alarm | told), now)

    def closing(self, live: Live) -> list[AlarmEvent]:
        """Return what is to be said of the alarms of a stream that is deleted."""
        still = [alarm for alarm in (live.open_alarm, live.stale) if alarm is not None]
        return [self.resolved(live, alarm, "deleted") for alarm in still]

    def heard(self, live: Live) -> None:
        """Resolve the alarm of a stream that was stale."""
        if live.stale is not None:
            live.fresh_alarms.append(self.resolved(live, live.stale, "samples"))
            live.stale = None

    def _message(self, kind: str, live: Live, about: dict[str, Any]) -> str | None:
        if self._hub.settings.webhook is None:
            return None
        base = (self._hub.settings.public_url or "").rstrip("/")
        data = about | {"link": f"{base}/#{urlencode({'stream': live.name})}"}
        stamp = datetime.fromtimestamp(self._hub.clock(), UTC).isoformat(timespec="milliseconds")
        return json.dumps({"type": kind, "timestamp": stamp, "data": data})

    # streams from which nothing comes

    def stale_seconds(self, live: Live, now: float) -> float | None:
        """Return for how long a stream that should be heard of has been silent, None if that is not too long."""
        most = live.about["stale_after"]
        most = self._hub.settings.stale_after if most is None else most
        silent = now - max(live.seen, self._hub.started)  # what came while the server was down nobody knows
        return now - live.seen if most and live.stream.n and silent > most else None

    async def watch(self) -> None:
        """Raise an alarm for every stream that falls silent, until the server stops."""
        while True:
            now = self._hub.clock()
            for live in list(self._hub.streams.values()):
                if live.stale is None and not live.gone and self.stale_seconds(live, now) is not None:
                    about = {"kind": "stale", "stream": live.name, "raised": now, "since": live.seen}
                    live.stale = self.raised(live, about | {"samples": live.stream.n})
                    self._mark(live)
            self._hub.commit_soon()
            await asyncio.sleep(LOOK_SECONDS)

    # what people do

    async def acknowledge(self, live: Live, number: int, done: Acknowledgement, rows: Matrix) -> dict[str, Any]:
        """Note who has dealt with an open alarm; a shift is then tested anew, against the old reference or `rows`."""
        now = self._hub.clock()
        if live.stale is not None and live.stale["id"] == number:
            await self._written("acknowledge", (live.id, live.name), number, now, done, None, None)
            live.stale |= {"acknowledged": now, "by": done.by}
        elif live.open_alarm is not None:
            fresh = await self._renewed(live, done.next, rows)
            told = {"by": done.by, "note": done.note, "next": done.next}
            event = self.resolved(live, live.open_alarm, "acknowledged", **told)
            stream = (live.id, live.name)
            await self._written("acknowledge", stream, number, now, done, fresh.to_bytes(), event)
            live.alarm, live.open_alarm = fresh, None
        log.info("stream %r: alarm %s acknowledged by %r from %s", live.name, number, done.by, done.address)
        self._hub.version += 1
        return {"id": number, "acknowledged": now, "by": done.by, "note": done.note, "next": done.next}

    async def _renewed(self, live: Live, then: str, rows: Matrix) -> Alarm:
        """Return the test that continues after an acknowledgement."""
        assert live.alarm is not None
        if then == "restart":
            fresh = Alarm.from_bytes(live.alarm.to_bytes())
            fresh.reset()
            return fresh
        if len(rows) < ENOUGH_TO_ACCEPT:
            rule = f"be 'restart' until {ENOUGH_TO_ACCEPT} samples have come since the alarm"
            fail("acknowledge", "next", rule, f"'accept' after {len(rows)}", remedy="Try again later")
        options = {k: v for k, v in live.about["alarm"].items() if k not in ("reference", "exact")}
        seen = live.stream.calibrated(rows.astype(np.float64))
        return await self._hub.in_thinker(lambda: Alarm(live.source, reference=seen, **options))

    async def silence(self, live: Live, wanted: Silence) -> dict[str, Any] | None:
        """Hold back messages about a stream until a time; return the silence, None if that time is past."""
        now = self._hub.clock()
        await self._written("silence", (live.id, live.name), now, wanted)
        about = {"until": wanted.until, "by": wanted.by, "note": wanted.note}
        live.silence = about if wanted.until > now else None
        log.info("stream %r: silenced for %.0f s by %r", live.name, max(0.0, wanted.until - now), wanted.by)
        self._hub.version += 1
        return live.silence

    async def _written(self, name: str, *args: Any) -> None:
        if self.store is not None:
            done: Awaitable[None] = self._hub.in_writer(getattr(self.store, name), *args)
            await done

    # what is read

    async def listed(self, live: Live) -> list[dict[str, Any]]:
        """Return the alarms of a stream, newest first."""
        if self.store is None:
            return [alarm for alarm in (live.stale, live.open_alarm) if alarm]
        return await self._hub.in_reader(self.store.listed, live.id, MOST_LISTED)

    async def undelivered(self) -> tuple[int, str | None]:
        """Return how many messages nobody has taken, and the last problem."""
        if self.store is None or self._hub.settings.webhook is None:
            return 0, None
        return await self._hub.in_reader(self.store.undelivered, self._hub.clock())
