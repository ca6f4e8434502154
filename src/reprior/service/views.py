"""What can be read of the server and its streams: the overview, the list, one stream, its history, as plain values."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reprior._check import check_number, fail
from reprior._types import Matrix, Vector
from reprior.online.registry import chosen
from reprior.online.stream import share_interval
from reprior.service.hub import Hub
from reprior.service.served import ServedStream

MOST_SHOWN = 20  # entries of each part of the overview
MOST_POINTS = 2_000
MOST_LISTED = 200
MOST_LINES = 50
HEAT_CELLS = 1 << 20
HEAT_RANGE = 4.0  # doublings or halvings of a share that the colours of the heat map tell apart
ORDERS = ("name", "alarm", "shift", "rate", "n", "seen")


def number(query: Mapping[str, str], name: str, default: float, low: float, high: float, **rule: bool) -> float:
    """Return a number of the query."""
    text = query.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        fail("GET", name, "be a number", repr(text)[:80])
    return check_number(value, "GET", name, low=low, high=high, **rule)


def whole(query: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    """Return a whole number of the query."""
    return int(number(query, name, default, low, high, whole=True))


# the server as a whole


async def overview(hub: Hub) -> dict[str, Any]:
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
        "health": health(hub),
    }  # fmt: skip


def health(hub: Hub) -> dict[str, Any]:
    """Return whether samples can be stored, and what else is not as it should be."""
    return {
        "ok": hub.trouble is None, "trouble": hub.trouble, "problems": hub.problems(),
        "clock_ahead": round(hub.clock.ahead, 3),
        "refused": {"total": hub.counters.refused.total(), "last": hub.counters.last_refused},
    }  # fmt: skip


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


async def listed(hub: Hub, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the streams whose name holds a text, some of them in full."""
    search, order = query.get("search", "").casefold(), query.get("sort", "name")
    offset, limit = whole(query, "offset", 0, 0, 10**9), whole(query, "limit", 50, 0, MOST_LISTED)
    now = hub.clock()
    keys: dict[str, Callable[[ServedStream], Any]] = {
        "name": lambda x: 0, "shift": lambda x: -x.shift(), "n": lambda x: -x.stream.n, "seen": lambda x: -x.last_post,
        "rate": lambda x: -x.activity.rate(now),
        "alarm": lambda x: (not x.watch.open(), -x.shift() if x.watch.shift else 0.0),
    }  # fmt: skip
    if order not in keys:
        fail("GET", "sort", "be one of " + ", ".join(ORDERS), repr(order)[:80])
    fits = sorted((x for x in hub.present() if search in x.name.casefold()), key=lambda x: (keys[order](x), x.name))
    shown = fits[offset : offset + limit]
    await hub.load_curves(shown)
    return {
        "total": len(fits), "streams": [summary(served, now) for served in shown],
        "alarms": sum(bool(served.watch.open()) for served in fits), "now": now,
    }  # fmt: skip


def alarm_of(served: ServedStream, now: float) -> dict[str, Any]:
    """Return whether a stream is watched, the alarms that are open, and who silenced it."""
    verdict = None if served.watch.test is None else served.watch.test.verdict
    return {
        "watched": served.watch.test is not None, "sure": served.definition.false_alarms, "open": served.watch.shift,
        "not_label_shift": served.watch.not_label_shift, "stale": served.watch.stale,
        "silence": served.watch.silenced(now),
        "evidence": None if verdict is None else round(verdict.evidence, 4),
        "threshold": None if verdict is None else round(verdict.threshold, 4),
    }  # fmt: skip


def plain(value: Any) -> Any:
    """Return an option as JSON has it: arrays as lists, no infinities."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return None if isinstance(value, float) and not math.isfinite(value) else value


async def detailed(hub: Hub, served: ServedStream, *, diagnosis: bool = True) -> dict[str, Any]:
    """Return all that is known of a stream now."""
    method = served.stream.method
    options = {name: plain(value) for name, value in chosen(method).items()}
    interval = served.stream.interval()
    now = hub.clock()
    about = {
        "name": served.name, "n": served.stream.n, "labels": served.labels, "classes": served.classes,
        "named": served.definition.class_names is not None, "source": served.stream.source.prior,
        "prior": served.stream.prior, "acts": served.stream.acts._asdict(),
        "interval": {"level": interval.level, "lower": interval.lower, "upper": interval.upper, "note": interval.note},
        "method": method.name, "options": options, "created": served.created, "version": served.version,
        "version_since": served.version_since,
        "seen": served.last_post if served.stream.n else None, "rate": round(served.activity.rate(now), 3),
        "shift": served.shift(), "alarm": alarm_of(served, now), "clients": len(served.receipts.offsets), "now": now,
        "logits": served.stream.calibrator is not None and served.stream.calibrator.of_logits,
    }  # fmt: skip
    about["diagnosis"] = await hub.diagnoses.of(served) if diagnosis else None
    return about


def update(served: ServedStream, now: float) -> dict[str, Any]:
    """Return what changes from moment to moment, in few digits."""
    interval = served.stream.interval()
    return {
        "t": now, "version": served.version, "n": served.stream.n,
        "rate": round(served.activity.rate(now), 3), "shift": round(served.shift(), 5),
        "prior": few(served.stream.prior), "lower": few(interval.lower), "upper": few(interval.upper),
        "acts": served.stream.acts._asdict(), "alarm": alarm_of(served, now), "labels": served.labels,
        "seen": served.last_post,
    }  # fmt: skip


async def versions(hub: Hub, served: ServedStream) -> list[dict[str, Any]]:
    """Return the model versions of a stream, the newest first."""
    if hub.store is None:
        return [{"version": served.version, "since": served.version_since}]
    return await hub.workers.read(hub.store.versions, served.id)


def few(values: Vector | Matrix) -> Any:
    """Return numbers as float32: they print in a third of the space."""
    return np.ascontiguousarray(values, np.float32)


async def history(hub: Hub, served: ServedStream, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the prior over time: a few classes with their intervals, and all of them as a heat map if asked for."""
    now, k = hub.clock(), served.n_classes
    last = number(query, "to", now, 0, 1e11)
    first = number(query, "from", last - 3600, 0, 1e11)
    if first >= last:
        fail("GET", "from", "lie before `to`", first)
    points, top = whole(query, "points", 300, 2, MOST_POINTS), whole(query, "top", 8, 0, MOST_LINES)
    heat = whole(query, "heat", 0, 0, 1) == 1
    if heat:
        points = max(2, min(points, HEAT_CELLS // k))
    chosen = columns(query.get("classes"), served)
    rows: list[Any] = []
    if hub.store:
        rows = await hub.workers.read(hub.store.points, served.id, first, last, points)
    behind = not rows or rows[-1][0] < int(1000 * served.last_post)
    if served.stream.n and first <= served.last_post <= last and behind:
        rows = [*rows[: points - 1], served.history_point(served.last_post)]
    priors = np.array([np.frombuffer(row[2], "<f4") for row in rows], np.float64).reshape(-1, k)
    source = served.stream.source.prior
    if chosen is None and len(rows):  # those that moved most, in the range or against the source
        moved = np.maximum(np.ptp(priors, axis=0), np.abs(priors[-1] - source))
        chosen = np.sort(np.argsort(-moved, kind="stable")[:top]).tolist()
    chosen = chosen or []
    variances = np.array([np.frombuffer(row[3], "<f4") for row in rows], np.float64).reshape(-1, k)
    lower, upper = share_interval(priors[:, chosen], variances[:, chosen], 0.95)
    view: dict[str, Any] = {
        "t": [row[0] / 1000 for row in rows], "n": [row[1] for row in rows], "from": first, "to": last,
        "classes": chosen, "names": [served.classes[c] for c in chosen], "source": source[chosen],
        "prior": few(priors[:, chosen]), "lower": few(lower), "upper": few(upper),
        "shift": few(np.abs(priors - source).sum(axis=1) / 2),
    }  # fmt: skip
    if heat:
        doublings = np.log2(np.maximum(priors, 1e-12) / source)
        cells = np.rint(np.clip(doublings / HEAT_RANGE, -1, 1) * 127).astype(np.int8)
        view["heat"] = {"range": HEAT_RANGE, "classes": k, "cells": base64.b64encode(cells.tobytes()).decode()}
    return view


def columns(text: str | None, served: ServedStream) -> list[int] | None:
    """Return the columns that a query names by their numbers."""
    if text is None or text == "":
        return None
    parts = text.split(",")
    if len(parts) > MOST_LINES:
        fail("GET", "classes", f"name at most {MOST_LINES} classes", len(parts))
    if not all(part.isascii() and part.isdigit() and len(part) < 9 for part in parts):
        fail("GET", "classes", "be column numbers with commas between", repr(text)[:80])
    numbers = [int(part) for part in parts]
    if max(numbers) >= served.n_classes:
        fail("GET", "classes", f"lie between 0 and {served.n_classes - 1}", max(numbers))
    return numbers
