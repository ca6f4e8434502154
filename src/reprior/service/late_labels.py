"""Labels that come late, by the id of a prediction: rows wait in the file until their label comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from reprior._check import fail
from reprior._types import Matrix
from reprior.service.errors import Missing

if TYPE_CHECKING:
    from reprior.service.hub import Hub
    from reprior.service.served import ServedStream

LONGEST_ID = 200


def check_ids(ids: Any, n: int | None, caller: str) -> list[str]:
    """Return prediction ids, all different, one for each of `n` rows."""
    if not isinstance(ids, list) or not all(isinstance(x, str) and 0 < len(x) <= LONGEST_ID for x in ids):
        fail(caller, "ids", f"be a list of texts of 1 to {LONGEST_ID} characters", repr(ids)[:80])
    if n is not None and len(ids) != n:
        fail(caller, "ids", f"be one for each of the {n} rows", len(ids))
    if len({*ids}) < len(ids):
        fail(caller, "ids", "all be different", "the same one twice")
    return list(ids)


def keep(served: ServedStream, ids: Any, rows: Matrix, now: float) -> None:
    """Let rows (n, K) wait for their labels."""
    values = np.asarray(rows, "<f8")
    for name, row in zip(ids, values, strict=True):
        served.pending.put("row", name, served.id, name, now, row.tobytes())


async def waiting(hub: Hub, served: ServedStream, ids: list[str]) -> Matrix:
    """Return the rows (n, K) that wait for labels under these ids."""
    if hub.store is None:
        fail("labels", "ids", "be used with a database", "none")
    version = served.version
    waiting = dict(await hub.workers.read(hub.store.rows, served.id, ids))
    if served.version != version:  # what waited is a prediction of the old version
        waiting = {}
    missing = [name for name in ids if name not in waiting or ("forget row", name) in served.pending.rows]
    if missing:
        days = hub.settings.retention.rows / 86_400
        raise Missing(f"No sample of the stream {served.name!r} waits for a label under the id {missing[0][:80]!r},"
                      f" {len(missing)} in all. A sample waits {days:g} days and takes one label.")  # fmt: skip
    return np.array([np.frombuffer(waiting[name], "<f8") for name in ids], np.float64).reshape(-1, served.n_classes)
