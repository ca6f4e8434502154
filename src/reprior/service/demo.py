"""`--demo`: two streams fed by real classifiers whose class mix drifts, so that a newcomer sees something move."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import numpy as np

from reprior import datasets
from reprior._types import Labels, Vector
from reprior.pipelines.fit import pipeline
from reprior.service.definition import encoded
from reprior.service.errors import Conflict, Missing, Unavailable
from reprior.service.hub import Hub
from reprior.service.posts import Post

ROWS, PAUSE = 12, 0.1  # at once, and seconds between: as many samples a second as a small shop has
QUIET, PERIOD = 200, 10_000.0  # samples before anything moves, and in which one group of classes gives way to the next
RAMP = 200.0  # samples in which the first group grows to its full size
NAMES = {"banking77": "demo: bank messages", "clinc150": "demo: voice assistant"}


def mix(base: Vector, n: int, order: Labels) -> Vector:
    """Return the class mix after `n` samples: first the source's, then one group of classes after the other grows."""
    k, phase = len(base), max(0, n - QUIET) / PERIOD
    place = np.empty(k)
    place[order] = np.arange(k) / k
    distance = np.abs((place - phase + 0.5) % 1 - 0.5)
    boost = 1 + min(1.0, phase * PERIOD / RAMP) * 30 * np.exp(-((distance / 0.04) ** 2))
    return np.asarray(base * boost / (base * boost).sum())


async def feed(hub: Hub) -> None:
    """Make the streams and feed them for ever, each from when it is ready."""
    await asyncio.gather(*(feed_one(hub, name, title) for name, title in NAMES.items()))


async def feed_one(hub: Hub, name: str, title: str) -> None:
    """Feed one stream from the rows that its classifier was not trained on."""
    data = await asyncio.to_thread(datasets.load, name)
    pipe = await asyncio.to_thread(lambda: pipeline(data.heldout_proba, data.heldout_y, counts=data.counts))
    with suppress(Conflict):  # an older demo in the same file goes on
        await hub.create(title, encoded(pipe.stream(), pipe.source, list(data.classes), {"run_length": 1e5}))
    rng = np.random.default_rng(0)
    base = np.asarray(np.bincount(data.heldout_y, minlength=len(data.classes)) + 0.5, np.float64)
    base, order = base / base.sum(), rng.permutation(len(base))
    by_class = [np.flatnonzero(data.pool_y == k) for k in range(len(base))]
    while title in hub.streams:
        n = hub.get(title).stream.n
        chosen = rng.choice(len(base), ROWS if n else QUIET, p=mix(base, n, order))  # the quiet time is over at once
        rows = [int(rng.choice(by_class[k])) for k in chosen]
        try:
            await hub.posts.samples(title, Post(data.pool_proba[rows], correct=False))
        except Unavailable:
            await asyncio.sleep(1.0)
        except Missing:
            return  # somebody deleted it
        await asyncio.sleep(PAUSE)
