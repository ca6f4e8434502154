"""What can be read of the streams: the list, one of them, its history, all as plain values."""

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
from reprior.service.live import Live

MOST_POINTS = 2_000
MOST_LISTED = 200
MOST_LINES = 50
HEAT_CELLS = 1 << 20
HEAT_RANGE = 4.0  # doublings or halvings of a share that the colours of the heat map tell apart
ORDERS = ("name", "alarm", "shift", "rate", "n", "seen")


def number(
    query: Mapping[str, str], name: str, default: float, low: float, high: float, *, whole: bool = False
) -> float:
    """Return a number of the query."""
    text = query.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        fail("GET", name, "be a number", repr(text)[:80])
    return check_number(value, "GET", name, low=low, high=high, whole=whole)


def summary(live: Live, now: float) -> dict[str, Any]:
    """Return a line of the list of streams."""
    raised = next(iter(live.alarms()), None)
    return {
        "name": live.name, "classes": live.n_classes, "n": live.stream.n, "rate": round(live.rate(now), 3),
        "seen": live.seen if live.stream.n else None, "shift": round(live.shift(), 5),
        "alarm": None if raised is None else {"id": raised["id"], "raised": raised["raised"], "kind": raised["kind"]},
        "stale": live.stale is not None, "silenced": (live.silenced(now) or {}).get("until"),
        "watched": live.alarm is not None, "spark": [round(x, 4) for x in live.spark or ()],
    }  # fmt: skip


async def listed(hub: Hub, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the streams whose name holds a text, some of them in full."""
    search, order = query.get("search", "").casefold(), query.get("sort", "name")
    if order not in ORDERS:
        fail("GET", "sort", "be one of " + ", ".join(ORDERS), repr(order)[:80])
    offset = int(number(query, "offset", 0, 0, 1e9, whole=True))
    limit = int(number(query, "limit", 50, 0, MOST_LISTED, whole=True))
    now = hub.clock()
    found = [live for live in hub.streams.values() if not live.gone and search in live.name.casefold()]
    found.sort(key=lambda live: live.name)
    if order == "alarm":
        found.sort(key=lambda live: (not live.alarms(), -live.shift() if live.open_alarm else 0.0))
    elif order != "name":
        values: dict[str, Callable[[Live], float]] = {
            "shift": Live.shift, "n": lambda x: x.stream.n, "seen": lambda x: x.seen, "rate": lambda x: x.rate(now),
        }  # fmt: skip
        found.sort(key=lambda live: -values[order](live))
    shown = found[offset : offset + limit]
    await hub.sparks(shown)
    return {
        "total": len(found), "streams": [summary(live, now) for live in shown],
        "alarms": sum(bool(live.alarms()) for live in found), "now": now,
    }  # fmt: skip


def alarm_of(live: Live, now: float) -> dict[str, Any]:
    """Return whether a stream is watched, the alarms that are open, and who silenced it."""
    verdict = None if live.alarm is None else live.alarm.verdict
    return {
        "watched": live.alarm is not None, "sure": live.about["sure"], "open": live.open_alarm,
        "stale": live.stale, "silence": live.silenced(now),
        "evidence": None if verdict is None else round(verdict.evidence, 4),
        "threshold": None if verdict is None else round(verdict.threshold, 4),
    }  # fmt: skip


def plain(value: Any) -> Any:
    """Return an option as JSON has it: arrays as lists, no infinities."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return None if isinstance(value, float) and not math.isfinite(value) else value


async def detailed(hub: Hub, live: Live, *, diagnosis: bool = True) -> dict[str, Any]:
    """Return all that is known of a stream now."""
    method = live.stream.method
    options = {name: plain(value) for name, value in chosen(method).items()}
    interval = live.stream.interval()
    now = hub.clock()
    told = {
        "name": live.name, "n": live.stream.n, "labels": live.labels, "classes": live.classes,
        "named": live.about["classes"] is not None, "source": live.stream.source.prior, "prior": live.stream.prior,
        "interval": {"level": interval.level, "lower": interval.lower, "upper": interval.upper, "note": interval.note},
        "method": method.name, "options": options, "created": live.created,
        "seen": live.seen if live.stream.n else None, "rate": round(live.rate(now), 3), "shift": live.shift(),
        "alarm": alarm_of(live, now), "clients": len(live.offsets), "now": now,
        "logits": live.stream.calibrator is not None and live.stream.calibrator.of_logits,
    }  # fmt: skip
    told["diagnosis"] = await hub.diagnoses.of(live) if diagnosis else None
    return told


def update(live: Live, now: float) -> dict[str, Any]:
    """Return what changes from moment to moment, in few digits."""
    interval = live.stream.interval()
    return {
        "t": now, "n": live.stream.n, "rate": round(live.rate(now), 3), "shift": round(live.shift(), 5),
        "prior": few(live.stream.prior), "lower": few(interval.lower), "upper": few(interval.upper),
        "alarm": alarm_of(live, now), "labels": live.labels, "seen": live.seen,
    }  # fmt: skip


def few(values: Vector | Matrix) -> Any:
    """Return numbers as float32: they print in a third of the space."""
    return np.ascontiguousarray(values, np.float32)


async def history(hub: Hub, live: Live, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the prior over time: a few classes with their intervals, and all of them as a heat map if asked for."""
    now, k = hub.clock(), live.n_classes
    last = number(query, "to", now, 0, 1e11)
    first = number(query, "from", last - 3600, 0, 1e11)
    if first >= last:
        fail("GET", "from", "lie before `to`", first)
    points = int(number(query, "points", 300, 2, MOST_POINTS, whole=True))
    top = int(number(query, "top", 8, 0, MOST_LINES, whole=True))
    heat = number(query, "heat", 0, 0, 1, whole=True) == 1
    if heat:
        points = max(2, min(points, HEAT_CELLS // k))
    chosen = columns(query.get("classes"), live)
    rows: list[Any] = []
    if hub.store:
        rows = await hub.in_reader(hub.store.points, live.id, first, last, points)
    if live.stream.n and first <= live.seen <= last and (not rows or rows[-1][1] < live.stream.n):
        rows = [*rows[: points - 1], live.moment(live.seen)]
    priors = np.array([np.frombuffer(row[2], "<f4") for row in rows], np.float64).reshape(-1, k)
    source = live.stream.source.prior
    if chosen is None and len(rows):  # those that moved most, in the range or against the source
        moved = np.maximum(np.ptp(priors, axis=0), np.abs(priors[-1] - source))
        chosen = np.sort(np.argsort(-moved, kind="stable")[:top]).tolist()
    chosen = chosen or []
    variances = np.array([np.frombuffer(row[3], "<f4") for row in rows], np.float64).reshape(-1, k)
    lower, upper = share_interval(priors[:, chosen], variances[:, chosen], 0.95)
    told: dict[str, Any] = {
        "t": [row[0] / 1000 for row in rows], "n": [row[1] for row in rows], "from": first, "to": last,
        "classes": chosen, "names": [live.classes[c] for c in chosen], "source": source[chosen],
        "prior": few(priors[:, chosen]), "lower": few(lower), "upper": few(upper),
        "shift": few(np.abs(priors - source).sum(axis=1) / 2),
    }  # fmt: skip
    if heat:
        doublings = np.log2(np.maximum(priors, 1e-12) / source)
        cells = np.rint(np.clip(doublings / HEAT_RANGE, -1, 1) * 127).astype(np.int8)
        told["heat"] = {"range": HEAT_RANGE, "classes": k, "cells": base64.b64encode(cells.tobytes()).decode()}
    return told


def columns(text: str | None, live: Live) -> list[int] | None:
    """Return the columns that a query names by their numbers."""
    if text is None or text == "":
        return None
    parts = text.split(",")
    if len(parts) > MOST_LINES:
        fail("GET", "classes", f"name at most {MOST_LINES} classes", len(parts))
    if not all(part.isascii() and part.isdigit() and len(part) < 9 for part in parts):
        fail("GET", "classes", "be column numbers with commas between", repr(text)[:80])
    found = [int(part) for part in parts]
    if max(found) >= live.n_classes:
        fail("GET", "classes", f"lie between 0 and {live.n_classes - 1}", max(found))
    return found
