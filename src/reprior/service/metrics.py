"""Prometheus metrics: totals of the server, and of each stream its alarm, shift and the classes that moved most.

A thousand classes of a thousand streams would be a million series. So the streams with an alarm come first, then those
heard of last, up to a limit, and of each only a few classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from reprior.service.hub import Hub

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Collector:
    """Reads the hub when Prometheus asks; nothing is counted twice."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub

    def collect(self) -> Iterator[Any]:
        hub, settings = self.hub, self.hub.settings
        lives = [live for live in list(hub.streams.values()) if not live.gone]
        now = hub.clock()
        yield CounterMetricFamily("reprior_samples", "Samples learned since the server started.", hub.learned)
        yield GaugeMetricFamily("reprior_streams", "Streams on the server.", len(lives))
        yield GaugeMetricFamily(
            "reprior_alarms", "Streams with an open alarm.", sum(x.open_alarm is not None for x in lives)
        )
        yield GaugeMetricFamily("reprior_storage_ok", "1 if the last commit succeeded.", int(hub.trouble is None))
        yield CounterMetricFamily("reprior_forward_dropped", "Events that no second sink took.", hub.forward_dropped)
        yield CounterMetricFamily(
            "reprior_intake_refused", "Messages of brokers that could not be learned.", hub.refused
        )
        if hub.store:
            for part, size in hub.store.usage().items():
                yield GaugeMetricFamily(f"reprior_database_{part}_bytes", f"Size of the database's {part}.", size)
        lives.sort(key=lambda live: (live.open_alarm is None, -live.seen))
        lives = lives[: settings.metric_streams]
        samples = CounterMetricFamily("reprior_stream_samples", "Samples of a stream.", labels=["stream"])
        rate = GaugeMetricFamily("reprior_stream_rate", "Samples a second, of late.", labels=["stream"])
        alarm = GaugeMetricFamily("reprior_stream_alarm", "1 if an alarm is open.", labels=["stream"])
        shift = GaugeMetricFamily(
            "reprior_stream_shift", "Half the summed differences of prior and source.", labels=["stream"]
        )
        share = GaugeMetricFamily(
            "reprior_class_share", "Share of a class that moved much.", labels=["stream", "class"]
        )
        before = GaugeMetricFamily("reprior_class_source", "Its share at the source.", labels=["stream", "class"])
        for live in lives:
            prior, source = live.stream.prior, live.stream.source.prior
            samples.add_metric([live.name], live.stream.n)
            rate.add_metric([live.name], live.rate(now))
            alarm.add_metric([live.name], int(live.open_alarm is not None))
            shift.add_metric([live.name], live.shift(prior))
            for k in np.argsort(-np.abs(prior - source), kind="stable")[: settings.metric_classes].tolist():
                share.add_metric([live.name, live.classes[k]], float(prior[k]))
                before.add_metric([live.name, live.classes[k]], float(source[k]))
        yield from (samples, rate, alarm, shift, share, before)


def exposition(hub: Hub) -> bytes:
    """Return the metrics in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(hub))
    text: bytes = generate_latest(registry)
    return text
