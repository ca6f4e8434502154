"""Prometheus metrics: totals of the server, and for each stream its alarm, its shift and the classes that moved most.

A thousand classes of a thousand streams would be a million series. So only a few classes of each stream are shown, and
only the first `metric_streams` streams in the order of their creation: a series never comes and goes with the traffic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from reprior.service.counters import SECONDS, Histogram
from reprior.service.hub import Hub
from reprior.service.served import ServedStream

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
AT_ONCE = 100  # streams that are written before other requests get their turn
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
STREAM_FAMILIES = {
    "reprior_stream_samples_total": ("counter", "Samples of a stream."),
    "reprior_stream_labels_total": ("counter", "Labels of a stream."),
    "reprior_stream_rate": ("gauge", "Samples per second, over the last 10 seconds."),
    "reprior_stream_last_seen_seconds": ("gauge", "When the last post came, in seconds since 1970."),
    "reprior_stream_alarm": ("gauge", "1 if an alarm about a shift is open: raised, and acknowledged by nobody."),
    "reprior_stream_stale": ("gauge", "1 if no samples came for longer than --stale-after."),
    "reprior_stream_silenced": ("gauge", "1 if messages about the stream are held back."),
    "reprior_stream_version": ("gauge", "Number of the model version."),
    "reprior_stream_shift": ("gauge", "Total variation between the estimated and the source prior."),
    "reprior_correction_share": ("gauge", "Share of the correction that is applied."),
    "reprior_class_share": ("gauge", "Estimated share of a class that moved much."),
    "reprior_class_source": ("gauge", "Share of that class at the source."),
}


def line(name: str, value: float, **labels: str) -> str:
    """Return one sample of a series."""
    inside = ",".join(f'{key}="{text.translate(ESCAPES)}"' for key, text in sorted(labels.items()))
    return f"{name}{{{inside}}} {float(value)!r}\n" if inside else f"{name} {float(value)!r}\n"


def family(name: str, kind: str, about: str, lines: Iterable[str]) -> str:
    """Return a family of series with its help."""
    return f"# HELP {name} {about}\n# TYPE {name} {kind}\n{''.join(lines)}"


def buckets(name: str, histogram: Histogram, **labels: str) -> Iterator[str]:
    """Yield the series of a histogram."""
    counts = np.cumsum(histogram.buckets).tolist()
    for end, count in zip((*SECONDS, float("inf")), counts, strict=True):
        yield line(f"{name}_bucket", count, le="+Inf" if end == float("inf") else repr(end), **labels)
    yield line(f"{name}_sum", histogram.total, **labels)
    yield line(f"{name}_count", counts[-1], **labels)


def of_server(hub: Hub, undelivered: int | None) -> Iterator[str]:
    """Yield what is counted for the server as a whole."""
    counters, streams = hub.counters, hub.present()
    alarms = sum(bool(served.watch.open()) for served in streams)
    sizes = hub.store.usage() if hub.store else {}
    totals = (
        ("samples_total", "counter", "Samples learned since the server started.", counters.learned),
        ("streams", "gauge", "Streams on the server.", len(streams)),
        ("streams_unreadable", "gauge", "Stored streams that cannot be read.", len(hub.unreadable)),
        ("alarms", "gauge", "Streams with an open alarm.", alarms),
        ("storage_ok", "gauge", "1 if the last commit succeeded.", hub.trouble is None),
        ("webhook_undelivered", "gauge", "Alarms that no webhook has taken yet.", undelivered),
        ("forward_dropped_total", "counter", "Events that no second sink took.", counters.forward_dropped),
        *((f"database_{part}_bytes", "gauge", f"Size of the database's {part}.", size) for part, size in sizes.items()),
    )
    for name, kind, about, labelled in (
        *((name, kind, about, [({}, value)]) for name, kind, about, value in totals if value is not None),
        ("requests_total", "counter", "Requests answered, by route and status.",
         (({"route": route, "status": str(status)}, n) for (route, status), n in counters.requests.items())),
        ("refused_total", "counter", "Posts and messages that were not learned, by stream and reason.",
         (({"stream": stream, "reason": reason}, n) for (stream, reason), n in counters.refused.items())),
        ("task_failures_total", "counter", "Unexpected ends of background tasks.",
         (({"task": task}, n) for task, n in hub.tasks.failures.items())),
        ("intake_ok", "gauge", "1 if the broker is connected and the stream exists.",
         (({"intake": intake}, problem is None) for intake, problem in hub.intakes.items())),
    ):  # fmt: skip
        lines = (line(f"reprior_{name}", value, **labels) for labels, value in labelled)
        yield family(f"reprior_{name}", kind, about, lines)
    yield family("reprior_request_seconds", "histogram", "Time to answer a request, by route.", (
        text for route, histogram in counters.latency.items()
        for text in buckets("reprior_request_seconds", histogram, route=route)
    ))  # fmt: skip
    yield family("reprior_commit_seconds", "histogram", "Time of a commit to the database.",
                 buckets("reprior_commit_seconds", counters.commits))  # fmt: skip


def of_stream(served: ServedStream, now: float, most: int) -> Iterator[tuple[str, str]]:
    """Yield the families and lines of one stream."""
    prior, source, name = served.stream.prior, served.stream.source.prior, served.name
    values = {
        "reprior_stream_samples_total": served.stream.n, "reprior_stream_labels_total": served.labels,
        "reprior_stream_rate": served.activity.rate(now), "reprior_stream_last_seen_seconds": served.last_post,
        "reprior_stream_alarm": served.watch.shift is not None, "reprior_stream_stale": served.watch.stale is not None,
        "reprior_stream_silenced": served.watch.silenced(now) is not None, "reprior_stream_shift": served.shift(prior),
        "reprior_stream_version": served.version, "reprior_correction_share": served.stream.acts.share,
    }  # fmt: skip
    for key, value in values.items():
        yield key, line(key, value, stream=name)
    for k in np.argsort(-np.abs(prior - source), kind="stable")[:most].tolist():
        labels: dict[str, Any] = {"stream": name, "class": served.classes[k]}
        yield "reprior_class_share", line("reprior_class_share", prior[k], **labels)
        yield "reprior_class_source", line("reprior_class_source", source[k], **labels)


async def get_metrics(hub: Hub, _: Request) -> Response:
    """Return the metrics in Prometheus' text format."""
    undelivered, _problem = await hub.alarms.undelivered()
    parts = list(of_server(hub, undelivered))
    streams = sorted(hub.present(), key=lambda served: served.id)
    lines: dict[str, list[str]] = {name: [] for name in STREAM_FAMILIES}
    now = hub.clock()
    for number, served in enumerate(streams[: hub.settings.metric_streams]):
        if number % AT_ONCE == AT_ONCE - 1:
            await asyncio.sleep(0)
        for name, text in of_stream(served, now, hub.settings.metric_classes):
            lines[name].append(text)
    parts += [family(name, *about, lines[name]) for name, about in STREAM_FAMILIES.items()]
    return Response("".join(parts), media_type=CONTENT_TYPE)
