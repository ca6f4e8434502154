"""What can be read of the server and its streams: the overview, the list, one stream, its history, live events."""

from __future__ import annotations

import asyncio
import base64
import itertools
import math
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from reprior._check import check_choice, check_number, fail
from reprior._types import Matrix, Vector
from reprior.model.interval import Moments
from reprior.online.registry import options_of
from reprior.online.stream import share_interval
from reprior.service.errors import Missing, Refused
from reprior.service.hub import Hub
from reprior.service.request_checks import allowed, token_sent
from reprior.service.served import ServedStream
from reprior.service.wire import answer, json_bytes

MOST_SHOWN = 20  # entries of each part of the overview
MOST_POINTS = 2_000
MOST_STREAMS = 200  # in one answer
MOST_ENTRIES = 1_000  # of the audit in one answer
AUDIT = ("SELECT t, stream, action, by, address, about FROM audit WHERE ?1 IS NULL OR stream = ?1"
         " ORDER BY id DESC LIMIT ?2")  # fmt: skip
MOST_LINES = 50
HEAT_CELLS = 1 << 20
HEAT_RANGE = 4.0  # doublings or halvings of a share that the colours of the heat map tell apart
STREAM_SECONDS, SERVER_SECONDS = 0.1, 1.0  # between two events about a stream, and about the server
ALIVE_SECONDS = 15.0  # of silence before an event says that the connection lives
UNBUFFERED = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # a proxy must pass events on at once
ORDERS: dict[str, Callable[[ServedStream, float], Any]] = {
    "name": lambda x, now: 0, "alarm": lambda x, now: (not x.watch.open(), -x.shift() if x.watch.shift else 0.0),
    "shift": lambda x, now: -x.shift(), "rate": lambda x, now: -x.activity.rate(now),
    "n": lambda x, now: -x.stream.n, "seen": lambda x, now: -x.last_post,
}  # fmt: skip


def stream_of(hub: Hub, request: Request) -> ServedStream:
    """Return the stream that the address of a request names."""
    return hub.get(request.path_params["name"])


def number(query: Mapping[str, str], name: str, default: float, low: float, high: float) -> Any:
    """Return a number of the query, a whole one if the default is whole."""
    text, whole = query.get(name), isinstance(default, int)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        fail("GET", name, "be a number", repr(text)[:80])
    value = check_number(value, "GET", name, low=low, high=high, whole=whole)
    return int(value) if whole else value


# the server as a whole


async def get_overview(hub: Hub, _: Request) -> dict[str, Any]:
    """Return what somebody on call wants to know first: open alarms, what moved, stale streams, and health."""
    now, streams = hub.clock(), hub.present()
    alarms = [alarm | {"silence": served.watch.silenced(now)} for served in streams for alarm in served.watch.open()]
    alarms.sort(key=lambda alarm: -alarm["raised"])
    idle = sorted(served.name for served in streams if served.watch.not_label_shift is not None)
    stale = sorted((served for served in streams if served.watch.stale is not None), key=lambda x: x.last_post)
    moved = sorted((served for served in streams if served.stream.n), key=ServedStream.shift, reverse=True)[:MOST_SHOWN]
    await hub.load_curves(moved)
    return {
        "now": now, "streams": len(streams), "samples": sum(served.stream.n for served in streams),
        "rate": round(sum(served.activity.rate(now) for served in streams), 3),
        "alarms": {"total": len(alarms), "shown": alarms[:MOST_SHOWN]},
        "not_correcting": {"total": len(idle), "shown": idle[:MOST_SHOWN]},
        "moved": [summary(served, now) for served in moved],
        "stale": {"total": len(stale), "shown": [summary(served, now) for served in stale[:MOST_SHOWN]]},
        "unreadable": [{"name": name, "why": stream.why} for name, stream in sorted(hub.unreadable.items())],
        "webhook": dict(zip(("undelivered", "problem"), await hub.alarms.undelivered(), strict=True)),
        "health": health_of(hub),
    }  # fmt: skip


def health_of(hub: Hub) -> dict[str, Any]:
    """Return whether samples can be stored, and what else is not as it should be."""
    return {
        "ok": hub.trouble is None, "trouble": hub.trouble, "problems": hub.problems(),
        "clock_ahead": round(hub.clock.ahead, 3),
        "refused": {"total": hub.counters.refused.total(), "last": hub.counters.last_refused},
    }  # fmt: skip


async def health(hub: Hub, request: Request) -> Response:
    """Answer whether samples are stored; the details have names of streams, so they are for those who may read."""
    status, tokens = 200 if hub.trouble is None else 503, hub.settings.tokens
    if tokens and not allowed(tokens, "read", token_sent(request.scope["header_values"])):
        return answer({"ok": hub.trouble is None, "trouble": hub.trouble}, status)
    undelivered, _problem = await hub.alarms.undelivered()
    about = {"streams": len(hub.streams), "unreadable": sorted(hub.unreadable), "undelivered": undelivered}
    return answer(health_of(hub) | about, status)


async def get_audit(hub: Hub, request: Request) -> dict[str, Any]:
    """Return who did what, the newest first; entries outlive the stream they are about."""
    query = request.query_params
    values = query.get("stream"), number(query, "limit", 100, 1, MOST_ENTRIES)
    return {"entries": await hub.workers.read(hub.store.objects, AUDIT, values) if hub.store else []}


def summary(served: ServedStream, now: float) -> dict[str, Any]:
    """Return a line of the list of streams."""
    raised = next(iter(served.watch.open()), None)
    return {
        "name": served.name, "classes": served.n_classes, "n": served.stream.n,
        "rate": round(served.activity.rate(now), 3), "seen": served.last_post if served.stream.n else None,
        "shift": round(served.shift(), 5),
        "alarm": None if raised is None else {"id": raised["id"], "raised": raised["raised"], "kind": raised["kind"]},
        "stale": served.watch.stale is not None, "silenced": (served.watch.silenced(now) or {}).get("until"),
        "watched": served.watch.test is not None, "spark": [round(x, 4) for x in served.activity.curve or ()],
    }  # fmt: skip


async def get_streams(hub: Hub, request: Request) -> dict[str, Any]:
    """Return the streams whose name holds a text, some of them in full."""
    query, now = request.query_params, hub.clock()
    search, order = query.get("search", "").casefold(), query.get("sort", "name")
    offset, limit = number(query, "offset", 0, 0, 10**9), number(query, "limit", 50, 0, MOST_STREAMS)
    if order not in ORDERS:
        fail("GET", "sort", "be one of " + ", ".join(ORDERS), repr(order)[:80])
    fits = [served for served in hub.present() if search in served.name.casefold()]
    fits.sort(key=lambda served: (ORDERS[order](served, now), served.name))
    shown = fits[offset : offset + limit]
    await hub.load_curves(shown)
    return {
        "total": len(fits), "streams": [summary(served, now) for served in shown],
        "alarms": sum(bool(served.watch.open()) for served in fits), "now": now,
    }  # fmt: skip


# one stream


def json_option(value: Any) -> Any:
    """Return an option of a method for JSON: arrays as lists, infinity and NaN as null."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def state_of(served: ServedStream, now: float) -> dict[str, Any]:
    """Return what every post may change: samples, labels, shift, rate and the alarm's evidence."""
    watch = served.watch
    verdict = None if watch.test is None else watch.test.verdict
    return {
        "n": served.stream.n, "labels": served.labels, "version": served.version,
        "seen": served.last_post if served.stream.n else None, "rate": round(served.activity.rate(now), 3),
        "shift": served.shift(), "acts": served.stream.acts._asdict(),
        "alarm": {
            "watched": watch.test is not None, "sure": served.definition.false_alarms, "open": watch.shift,
            "not_label_shift": watch.not_label_shift, "stale": watch.stale, "silence": watch.silenced(now),
            "evidence": None if verdict is None else round(verdict.evidence, 4),
            "threshold": None if verdict is None else round(verdict.threshold, 4),
        },
    }  # fmt: skip


async def detailed(hub: Hub, served: ServedStream, *, diagnosis: bool = True) -> dict[str, Any]:
    """Return all that is known of a stream now."""
    method, interval, now = served.stream.method, served.stream.interval(), hub.clock()
    return state_of(served, now) | {
        "name": served.name, "classes": served.classes, "named": served.definition.source.classes is not None,
        "source": served.stream.source.prior, "prior": served.stream.prior,
        "interval": {"level": interval.level, "lower": interval.lower, "upper": interval.upper, "note": interval.note},
        "method": method.name, "options": {name: json_option(value) for name, value in options_of(method).items()},
        "created": served.created, "version_since": served.version_since, "clients": len(served.receipts.offsets),
        "logits": served.stream.calibrator is not None and served.stream.calibrator.of_logits, "now": now,
        "diagnosis": await hub.diagnoses.of(served) if diagnosis else None,
    }  # fmt: skip


async def get_stream(hub: Hub, request: Request) -> dict[str, Any]:
    wanted = check_choice(request.query_params.get("diagnosis", "1"), "GET", "diagnosis", ("0", "1"))
    return await detailed(hub, stream_of(hub, request), diagnosis=wanted == "1")


async def get_versions(hub: Hub, request: Request) -> dict[str, Any]:
    """Return the model versions of a stream, the newest first."""
    served = stream_of(hub, request)
    if hub.store is None:
        return {"versions": [{"version": served.version, "since": served.version_since}]}
    return {"versions": await hub.workers.read(hub.store.versions, served.id)}


async def get_state(hub: Hub, request: Request) -> Response:
    """Return a stream with all that it has learned, as bytes that `reprior.load` and PUT take."""
    return Response(stream_of(hub, request).stream.to_bytes(), media_type="application/octet-stream")


async def get_alarms(hub: Hub, request: Request) -> dict[str, Any]:
    return {"alarms": await hub.alarms.listed(stream_of(hub, request))}


def as_float32(values: Vector | Matrix) -> Any:
    """Return numbers as float32, which take a third of the space in JSON."""
    return np.ascontiguousarray(values, np.float32)


async def get_history(hub: Hub, request: Request) -> dict[str, Any]:
    """Return the prior over time: a few classes with their intervals, and all of them as a heat map if asked for."""
    served, query = stream_of(hub, request), request.query_params
    k, source = served.n_classes, served.stream.source.prior
    last = number(query, "to", hub.clock(), 0, 1e11)
    first = number(query, "from", last - 3600, 0, 1e11)
    if first >= last:
        fail("GET", "from", "lie before `to`", first)
    points, top = number(query, "points", 300, 2, MOST_POINTS), number(query, "top", 8, 0, MOST_LINES)
    heat = number(query, "heat", 0, 0, 1) == 1
    if heat:
        points = max(2, min(points, HEAT_CELLS // k))
    shown = columns(query.get("classes"), served)
    rows = await points_between(hub, served, first, last, points)
    priors, variances = (np.array([np.frombuffer(row[column], "<f4") for row in rows], np.float64).reshape(-1, k)
                         for column in (2, 3))  # fmt: skip
    if not shown and len(priors):  # those that moved most, in the range or against the source
        moved = np.maximum(np.ptp(priors, axis=0), np.abs(priors[-1] - source))
        shown = np.sort(np.argsort(-moved, kind="stable")[:top]).tolist()
    lower, upper = share_interval(Moments(priors[:, shown], variances[:, shown]), priors[:, shown], 0.95)
    value = {
        "t": [row[0] / 1000 for row in rows], "n": [row[1] for row in rows], "from": first, "to": last,
        "classes": shown, "names": [served.classes[c] for c in shown], "source": source[shown],
        "prior": as_float32(priors[:, shown]), "lower": as_float32(lower), "upper": as_float32(upper),
        "shift": as_float32(np.abs(priors - source).sum(axis=1) / 2),
    }  # fmt: skip
    if heat:  # how far each share has moved from the source, in doublings, as one byte per cell
        doublings = np.log2(np.maximum(priors, 1e-12) / source)
        cells = np.rint(np.clip(doublings / HEAT_RANGE, -1, 1) * 127).astype(np.int8)
        value["heat"] = {"range": HEAT_RANGE, "classes": k, "cells": base64.b64encode(cells.tobytes()).decode()}
    return value


async def points_between(hub: Hub, served: ServedStream, first: float, last: float, most: int) -> list[Any]:
    """Return points (t, n, prior, variance) of a time range, with the last samples, which may not be stored yet."""
    rows = await hub.workers.read(hub.store.points, served.id, first, last, most) if hub.store else []
    behind = not rows or rows[-1][0] < int(1000 * served.last_post)
    if served.stream.n and first <= served.last_post <= last and behind:
        rows = [*rows[: most - 1], served.history_point(served.last_post)]
    return rows


def columns(text: str | None, served: ServedStream) -> list[int]:
    """Return the columns that a query names by their numbers; none if it names none."""
    if not text:
        return []
    parts = text.split(",")
    if len(parts) > MOST_LINES:
        fail("GET", "classes", f"name at most {MOST_LINES} classes", len(parts))
    if not all(part.isascii() and part.isdigit() and len(part) < 9 for part in parts):
        fail("GET", "classes", "be column numbers with commas between", repr(text)[:80])
    numbers = [int(part) for part in parts]
    if max(numbers) >= served.n_classes:
        fail("GET", "classes", f"lie between 0 and {served.n_classes - 1}", max(numbers))
    return numbers


# live events


async def get_events(hub: Hub, request: Request) -> Response:
    name = request.query_params.get("stream")
    if name is not None:
        hub.get(name)
    if hub.watchers >= hub.settings.limits.watchers:
        raise Refused(503, f"At most {hub.settings.limits.watchers} event streams are served at once.")
    return StreamingResponse(events(hub, name), media_type="text/event-stream", headers=UNBUFFERED)


async def events(hub: Hub, name: str | None) -> AsyncIterator[bytes]:
    """Yield events about the server, and about one stream, for as long as somebody reads them.

    A watcher gets the newest state and never a backlog, so a slow one costs no memory. One connection carries both
    kinds, because a browser opens only six to a server, for all its tabs together.
    """
    sent_stream = sent_server = None
    pause = SERVER_SECONDS if name is None else STREAM_SECONDS
    turns = round(SERVER_SECONDS / pause)  # for one event about the server
    silent = 0.0
    hub.watchers += 1
    try:
        yield b"retry: 2000\n\n"
        for turn in itertools.count():
            made = b""
            if name is not None:
                try:
                    served = hub.get(name)
                except Missing:
                    yield event("deleted", {"name": name})
                    return
                if (state := stream_state(served, hub.clock())) != sent_stream:
                    made, sent_stream = event("update", stream_update(served, hub.clock())), state
            if turn % turns == 0 and (server := (hub.version, hub.trouble)) != sent_server:
                made, sent_server = made + event("server", {
                    "now": hub.clock(), "version": hub.version, "streams": len(hub.streams),
                    "samples": hub.counters.learned, "trouble": hub.trouble,
                    "alarms": sum(len(served.watch.open()) for served in hub.present()),
                }), server  # fmt: skip
            silent = 0.0 if made else silent + pause
            if silent >= ALIVE_SECONDS:
                made, silent = b": alive\n\n", 0.0
            if made:
                yield made
            await asyncio.sleep(pause)
    finally:
        hub.watchers -= 1


def event(kind: str, value: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + json_bytes(value) + b"\n\n"


def stream_state(served: ServedStream, now: float) -> tuple[Any, ...]:
    """Return the values of a stream of which one must change before a watcher gets the next event."""
    raised, silence = [alarm["id"] for alarm in served.watch.open()], served.watch.silenced(now)
    active = served.activity.rate(now) > 0.01  # the rate falls while nothing comes, so an event is due every second
    return served.version, served.stream.n, served.labels, raised, silence, int(now) if active else 0


def stream_update(served: ServedStream, now: float) -> dict[str, Any]:
    """Return the event about a stream: what `state_of` returns, with prior and interval as float32."""
    interval = served.stream.interval()
    return state_of(served, now) | {
        "t": now, "prior": as_float32(served.stream.prior), "lower": as_float32(interval.lower),
        "upper": as_float32(interval.upper),
    }  # fmt: skip
