"""Alarms of the streams: raised, silenced, acknowledged, resolved; each step is stored and, if wanted, sent.

There are three kinds. A "shift" alarm says that the class prior has left its reference; it is resolved when somebody
acknowledges it. A "not label shift" alarm says that less than half of the correction is applied; it is resolved when
most of it is applied again. A "stale" alarm says that no samples come any more; it is resolved when samples come again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import numpy as np

from reprior._check import fail
from reprior._types import Matrix
from reprior.online.acting import acts_event
from reprior.online.alarm import Alarm
from reprior.service.alarm_store import AlarmEvent
from reprior.service.errors import Missing, StoreError
from reprior.service.served import ServedStream
from reprior.service.store import floats

if TYPE_CHECKING:
    from reprior.service.hub import Hub

log = logging.getLogger("reprior.service")
MOST_LISTED = 100  # alarms of a stream
ENOUGH_TO_ACCEPT = 200  # samples that may become the new reference of an alarm
MOST_STORED = 1_000  # samples since an alarm that are stored; the last ones are in memory
LOOK_SECONDS = 1.0  # between two looks for stale streams
SINCE_ALARM = (
    "SELECT stream, rows FROM since_alarm JOIN alarms ON alarms.id = alarm WHERE resolved IS NULL"
    " ORDER BY since_alarm.rowid"
)
LISTED = (
    "SELECT id, about, resolved, acknowledged, by, note, next FROM alarms WHERE stream = ? ORDER BY t DESC, id DESC"
    " LIMIT ?"
)
UNDELIVERED = "SELECT count(*), max(problem) FROM outbox WHERE attempts > 0 OR due <= ?"


class Alarms:
    """The alarms of one server."""

    def __init__(self, hub: Hub) -> None:
        self._hub, self._last = hub, 0

    def load(self, by_id: dict[int, ServedStream]) -> None:
        """Take over from the file which alarms are open and which streams are silenced."""
        store = self._hub.store
        assert store is not None
        # also deleted alarms count: a receiver takes a number that it knows for a repetition
        self._last = int(store.read("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'alarms'")[0][0])
        unresolved = "SELECT id, stream AS of, about, acknowledged FROM alarms WHERE resolved IS NULL"
        for alarm in store.objects(unresolved):
            if served := by_id.get(alarm.pop("of")):
                setattr(served.watch, alarm["kind"].replace(" ", "_"), alarm)
        for silence in store.objects("SELECT stream AS of, until, by, note FROM silences"):
            if served := by_id.get(silence.pop("of")):
                served.watch.silence = silence
        for stream, stored in store.read(SINCE_ALARM):
            if served := by_id.get(stream):
                rows = np.frombuffer(stored, "<f4").reshape(-1, served.n_classes)
                served.watch.stored_rows += len(rows)
                self._hub.recent.add(stream, rows)

    # raised and resolved

    def raise_alarm(self, served: ServedStream, about: dict[str, Any]) -> dict[str, Any]:
        """Number an alarm, let the next commit store it and its message, and return it with its number."""
        self._last += 1
        now, text = self._hub.clock(), json.dumps(about)
        about["id"] = self._last
        silence = served.watch.silenced(now)
        due = now if silence is None else silence["until"]
        message = self._message("alarm.raised", served, about)
        served.pending.alarms.append(AlarmEvent(self._last, "raised", now, text, message, due))
        log.warning("stream %r: alarm %s raised (%s)", served.name, self._last, about["kind"])
        return about

    def shift_raised(self, served: ServedStream) -> None:
        """Raise the alarm about a shift that the test of a stream has just found."""
        assert served.watch.shift is not None
        # samples from before the alarm would blur what is diagnosed, and what may be accepted as new reference
        self._hub.recent.drop(served.id)
        served.watch.stored_rows = 0
        self.raise_alarm(served, served.watch.shift)

    def resolution(self, served: ServedStream, alarm: dict[str, Any], reason: str, **more: Any) -> AlarmEvent:
        """Return the event that an alarm is over; the caller stores it."""
        now = self._hub.clock()
        end = {"resolved": now, "reason": reason, **more}
        log.info("stream %r: alarm %s resolved (%s)", served.name, alarm["id"], reason)
        return AlarmEvent(alarm["id"], "resolved", now, "", self._message("alarm.resolved", served, alarm | end), now)

    def store_since_alarm(self, served: ServedStream, rows: Matrix) -> None:
        """Store the first samples (n, K) since an alarm about a shift, so that a restart leaves enough to accept."""
        watch = served.watch
        if watch.shift is not None and len(rows) and watch.stored_rows < MOST_STORED:
            rows = rows[: MOST_STORED - watch.stored_rows]
            watch.stored_rows += len(rows)
            served.pending.put("since alarm", (watch.shift["id"], watch.stored_rows), watch.shift["id"], floats(rows))

    def resolutions_at_deletion(self, served: ServedStream) -> list[AlarmEvent]:
        """Return the events that the alarms of a stream are over because it is deleted."""
        return [self.resolution(served, alarm, "deleted") for alarm in served.watch.raised()]

    def resolve_stale(self, served: ServedStream) -> None:
        """Resolve the alarm that no samples come, if it is raised: a post has come."""
        if served.watch.stale is not None:
            served.pending.alarms.append(self.resolution(served, served.watch.stale, "samples"))
            served.watch.stale = None

    def update_not_label_shift(self, served: ServedStream, before: int) -> None:
        """Raise an alarm if a stream that had `before` samples has stopped correcting; resolve it if it corrects
        again."""
        watch = served.watch
        event = acts_event(served.stream, before, watch.not_label_shift is None)
        if event is None:
            return
        if watch.not_label_shift is not None:
            served.pending.alarms.append(self.resolution(served, watch.not_label_shift, event.kind, share=event.share))
            watch.not_label_shift = None
            return
        now = self._hub.clock()
        about = {"kind": event.kind, "stream": served.name, "raised": now, "since": now, "sample": event.n}
        watch.not_label_shift = self.raise_alarm(served, about | {"share": event.share, "reason": event.reason})

    def _message(self, kind: str, served: ServedStream, about: dict[str, Any]) -> str | None:
        """Return the body of a message to the webhook; None without a webhook."""
        if self._hub.settings.webhook is None:
            return None
        base = (self._hub.settings.public_url or "").rstrip("/")
        data = about | {"link": f"{base}/#{urlencode({'stream': served.name})}"}
        stamp = datetime.fromtimestamp(self._hub.clock(), UTC).isoformat(timespec="milliseconds")
        return json.dumps({"type": kind, "timestamp": stamp, "data": data})

    # streams from which nothing comes

    async def raise_stale(self) -> None:
        """Raise an alarm for every stream that falls silent, until the server stops."""
        while True:
            now = self._hub.clock()
            for served in self._hub.present():
                own = served.definition.stale_after
                limit = self._hub.settings.stale_after if own is None else own
                silent = now - max(served.last_post, self._hub.started)  # nobody knows what came before the start
                if served.watch.stale is None and limit and served.stream.n and silent > limit:
                    about = {"kind": "stale", "stream": served.name, "raised": now, "since": served.last_post}
                    served.watch.stale = self.raise_alarm(served, about | {"samples": served.stream.n})
                    self._hub.mark(served)
            self._hub.commits.request_commit()
            await asyncio.sleep(LOOK_SECONDS)

    # what people do

    async def acknowledge(self, name: str, number: int, done: dict[str, str], address: str) -> dict[str, Any]:
        """Note who has dealt with an open alarm of a stream: `done` holds `by`, `note` and `next`.

        The test of a shift starts again, against the old reference or against the samples since the alarm.
        """
        hub = self._hub
        async with hub.admin:
            served = hub.get(name)
            alarm = next((alarm for alarm in served.watch.open() if alarm["id"] == number), None)
            if alarm is None:
                raise Missing(f"The stream {name!r} has no open alarm {number}.")
            hub.commits.check_ready()
            about = {"acknowledged": hub.clock(), **done}
            if alarm["kind"] == "shift":
                test = await self._test_after(served, done["next"])
                served.pending.alarms.append(self.resolution(served, alarm, "acknowledged", **done))
                served.pending.put("test", None, served.id, test.to_bytes())
                served.watch.restart(test)
            alarm |= {"acknowledged": about["acknowledged"], "by": done["by"]}
            served.pending.put("acknowledge", number, *about.values(), number)
            entry = {"alarm": number, "note": done["note"], "next": done["next"]}
            self.note(served, "acknowledge", done["by"], address, entry)
            await hub.commits.wait_stored(served)
        log.info("stream %r: alarm %s acknowledged by %r from %s", name, number, done["by"], address)
        return {"id": number, **about}

    async def _test_after(self, served: ServedStream, choice: str) -> Alarm:
        """Return the test that follows an acknowledged alarm about a shift.

        "restart" keeps the reference, "accept" takes the samples since the alarm as the new one.
        """
        assert served.watch.test is not None
        assert served.definition.alarm_options is not None
        if choice == "restart":
            test = Alarm.from_bytes(served.watch.test.to_bytes())
            test.reset()
            return test
        rows = self._hub.recent.of(served.id, served.n_classes)
        if len(rows) < ENOUGH_TO_ACCEPT:
            rule = f"be 'restart' until {ENOUGH_TO_ACCEPT} samples have come since the alarm"
            fail("acknowledge", "next", rule, f"'accept' after {len(rows)}", remedy="Try again later")
        options = {k: v for k, v in served.definition.alarm_options.items() if k not in ("reference", "exact")}
        source, calibrated = served.definition.source, served.stream.calibrated(rows.astype(np.float64))
        return await self._hub.workers.think(lambda: Alarm(source, reference=calibrated, **options))

    async def silence(self, name: str, about: dict[str, Any], address: str) -> dict[str, Any] | None:
        """Hold back messages about a stream until a time; return the silence, None if that time is past."""
        hub, until, by = self._hub, about["until"], about["by"]
        async with hub.admin:
            served, now = hub.get(name), hub.clock()
            hub.commits.check_ready()
            served.watch.silence = about if until > now else None
            served.pending.put("silence", None, served.id, until, by, about["note"])
            served.pending.put("hold back", None, max(now, until), served.id)
            ends = {"until": until if until > now else None, "note": about["note"]}
            self.note(served, "silence", by, address, ends)
            await hub.commits.wait_stored(served)
        log.info("stream %r: silenced for %.0f s by %r", name, max(0.0, until - now), by)
        return served.watch.silence

    def note(self, served: ServedStream, action: str, by: str, address: str, about: dict[str, Any]) -> None:
        """Add an entry to the audit: who did what to a stream, when, and from which address."""
        entry = (self._hub.clock(), served.name, action, by, address, json.dumps(about))
        served.pending.put("audit", entry, *entry)
        self._hub.mark(served)

    # what is read

    async def listed(self, served: ServedStream) -> list[dict[str, Any]]:
        """Return the alarms of a stream, newest first."""
        if self._hub.store is None:
            return served.watch.raised()[::-1]
        return await self._hub.workers.read(self._hub.store.objects, LISTED, (served.id, MOST_LISTED))

    async def undelivered(self) -> tuple[int | None, str | None]:
        """Return how many messages nobody has taken, without those that a silence holds back, and the last problem.

        The number is None if it cannot be read.
        """
        hub = self._hub
        if hub.store is None or hub.settings.webhook is None:
            return 0, None
        try:
            count, problem = (await hub.workers.read(hub.store.read, UNDELIVERED, (hub.clock(),)))[0]
        except StoreError as error:
            return None, str(error)
        return int(count), problem
