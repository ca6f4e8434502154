"""Alarms and the page for keyed streams on Spark: each micro-batch is posted to the service, once per key.

    rows.writeStream.foreachBatch(feeder("http://localhost:8733")).start()

Send this file to the workers by `spark-submit --py-files`. `rows` has the columns `key` and `proba`, as the input of
`reprior.adapters.spark.follow`. A stream of the service has the name of its key. Make it before, by
`PUT /streams/{key}`. A micro-batch that Spark repeats after a failure carries the same event ids, so the service counts
it once within an hour. At most `most` samples per key and micro-batch are sent: the first ones. An alarm needs a few
hundred samples, not all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any
from urllib.request import Request, urlopen

RESPONSE = "org.kubeflow.serving.inference.response"


def feeder(url: str, *, query: str = "spark", token: str | None = None, most: int = 256) -> Callable[[Any, int], None]:
    """Return what `foreachBatch` calls with a data frame and the number of its micro-batch.

    Parameters
    ----------
    url : address of the service, or of the proxy before its shards.
    query : name of this Spark query, different for each query that feeds the service.
    token : a token with the role `ingest`.
    most : samples per key and micro-batch that are sent.
    """

    def feed(frame: Any, batch: int) -> None:
        post = partial(post_partition, url=url, prefix=f"{query}-{batch}", token=token, most=most)
        frame.select("key", "proba").repartition("key").sortWithinPartitions("key").foreachPartition(post)

    return feed


def post_partition(rows: Iterator[Any], *, url: str, prefix: str, token: str | None = None, most: int = 256) -> None:
    """Post rows that are sorted by key, one event per key; raise if the service does not take one of them."""
    for key, group in groupby(rows, key=itemgetter("key")):
        sent = [list(row["proba"]) for _, row in zip(range(most), group, strict=False)]
        headers = {"Content-Type": "application/json", "ce-specversion": "1.0", "ce-id": f"{prefix}-{key}",
                   "ce-type": RESPONSE, "ce-source": "spark", "ce-inferenceservicename": str(key)}  # fmt: skip
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        body = json.dumps({"predictions": sent}).encode()
        with urlopen(Request(f"{url}/events/cloudevents", body, headers), timeout=60) as reply:
            reply.read()
