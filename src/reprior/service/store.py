"""One SQLite file: state, offsets and history of every stream, changed together or not at all.

Write-ahead log, `synchronous=FULL`: what was committed survives a killed process and a lost power supply. One thread
writes; readers have a connection of their own and never wait for it.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reprior._check import fail
from reprior._types import Vector
from reprior.service.alarm_store import AlarmEvent, write_events
from reprior.service.database import APPLICATION, as_input_error, claim, connect, make_private, prepare, reason
from reprior.service.settings import Retention

# A point stays for `age` seconds; of older ones the last of every `spacing` seconds does.
SPACINGS = ((300, 10), (3_600, 60), (12 * 3_600, 600), (7 * 86_400, 6 * 3_600))


@dataclass(slots=True)
class Offset:
    """The last number a client has sent, how many samples there were after it, and the numbers it has left out."""

    seq: int
    n: int
    seen: float
    missing: list[list[int]] = field(default_factory=list)  # closed ranges, in order


class Point(NamedTuple):
    """A moment of a stream: milliseconds since 1970, samples so far, prior and variance (K,) as float32."""

    t: int
    n: int
    prior: bytes
    variance: bytes


@dataclass(slots=True)
class Change:
    """What one stream's row becomes, and what is new beside it."""

    stream: int
    n: int
    labels: int
    seen: float
    state: bytes
    alarm: bytes | None
    offsets: dict[str, Offset]
    forgotten: set[str]  # clients whose offsets go
    points: list[Point]
    taken: list[tuple[str, float]]
    alarms: list[AlarmEvent]
    rows: list[tuple[str, float, bytes]]  # that wait for a label: id, time, float64
    labelled: set[str]  # ids of those whose label came
    cursors: dict[str, str]  # where in a broker's log the next message is


@dataclass(frozen=True, slots=True)
class Kept:
    """A stream as it was read from the file."""

    id: int
    name: str
    created: float
    definition: bytes
    n: int
    labels: int
    seen: float
    state: bytes
    alarm: bytes | None


STREAMS = f"SELECT {', '.join(column.name for column in fields(Kept))} FROM streams ORDER BY id"


class StoreError(Exception):
    """The file cannot be read or written now; the sentence says why. What was to be written is kept and retried."""


class Store:
    """The file, opened once by one process.

    A second process that opens the same file is refused: two would each believe they alone know the streams.
    """

    def __init__(self, path: Path, *, wait: float = 5.0) -> None:
        self.path = path
        self._lock = threading.Lock()
        lock = path.with_name(path.name + ".lock")
        make_private(lock)
        self._guard = open(lock, "w")  # noqa: SIM115  (held as long as the store)
        try:
            claim(self._guard, path)
            make_private(path)
            self._writer = connect(path, wait)
            try:
                prepare(self._writer, path)
            except sqlite3.DatabaseError as error:
                raise as_input_error(path, error) from None
            self._reader = connect(path, wait)
            self._reader.execute("PRAGMA query_only=ON")
        except BaseException:
            for name in ("_writer", "_reader", "_guard"):
                if (opened := getattr(self, name, None)) is not None:
                    opened.close()
            raise

    def close(self) -> None:
        """Fold the log into the file and let it go."""
        with self._lock:
            self._reader.close()
        self._writer.close()
        self._guard.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Change the file, all or nothing; only the writing thread may."""
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise StoreError(reason(error)) from error

    def read(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return the rows of a query; any thread may ask."""
        try:
            with self._lock:
                return self._reader.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(reason(error)) from error

    # what the server reads at its start

    def streams(self) -> Iterator[Kept]:
        """Yield every stream."""
        for row in self.read(STREAMS):
            yield Kept(*row)

    def offsets(self) -> Iterator[tuple[int, str, Offset]]:
        """Yield the offset of every client of every stream."""
        for stream, client, seq, n, seen, missing in self.read("SELECT * FROM offsets"):
            yield stream, client, Offset(seq, n, seen, json.loads(missing))

    def taken(self) -> list[tuple[int, str, float]]:
        """Return the stream, the id and the time of every event that is remembered."""
        return self.read("SELECT stream, id, t FROM taken")

    def cursors(self) -> list[tuple[int, str, str]]:
        """Return a stream, a broker's log, and what was learned last from it, of all of them."""
        return self.read("SELECT stream, origin, position FROM cursors")

    def newest(self) -> float:
        """Return the last moment the file knows of, in seconds since 1970."""
        (points,), (seen,) = *self.read("SELECT max(t) FROM history"), *self.read("SELECT max(seen) FROM streams")
        return max((points or 0) / 1000, seen or 0.0)

    # what the server writes

    def create(
        self, name: str, created: float, definition: bytes, state: bytes, alarm: bytes | None, n: int = 0
    ) -> int:
        """Put a new stream into the file and return its number; one of that name goes, with its history."""
        with self.transaction() as db:
            db.execute("DELETE FROM streams WHERE name = ?", (name,))
            made = db.execute(
                "INSERT INTO streams (name, created, definition, n, labels, seen, state, alarm)"
                " VALUES (?, ?, ?, ?, 0, ?, ?, ?)", (name, created, definition, n, created, state, alarm),
            )  # fmt: skip
            assert made.lastrowid is not None
            return made.lastrowid

    def delete(self, stream: int, alarms: Sequence[AlarmEvent] = ()) -> None:
        """Remove a stream with all that belongs to it; messages about its alarms are still sent."""
        with self.transaction() as db:
            write_events(db, stream, alarms)
            db.execute("DELETE FROM streams WHERE id = ?", (stream,))

    def write(self, changes: Sequence[Change]) -> None:
        """Commit the changes of several streams together."""
        with self.transaction() as db:

            def insert(sql: str, rows: list[tuple[Any, ...]]) -> None:
                if rows:  # a statement without rows would still stop the other threads twice
                    db.executemany(sql, rows)

            for c in changes:
                db.execute(
                    "UPDATE streams SET n = ?, labels = ?, seen = ?, state = ?, alarm = coalesce(?, alarm)"
                    " WHERE id = ?", (c.n, c.labels, c.seen, c.state, c.alarm, c.stream),
                )  # fmt: skip
                insert("DELETE FROM offsets WHERE stream = ? AND client = ?", [(c.stream, x) for x in c.forgotten])
                insert(
                    "INSERT OR REPLACE INTO offsets VALUES (?, ?, ?, ?, ?, ?)",
                    [(c.stream, name, o.seq, o.n, o.seen, json.dumps(o.missing)) for name, o in c.offsets.items()],
                )
                insert(
                    "INSERT OR IGNORE INTO history (stream, t, n, prior, variance) VALUES (?, ?, ?, ?, ?)",
                    [(c.stream, *point) for point in c.points],
                )
                insert("INSERT OR REPLACE INTO taken VALUES (?, ?, ?)", [(c.stream, *seen) for seen in c.taken])
                insert(
                    "INSERT OR REPLACE INTO cursors VALUES (?, ?, ?)",
                    [(c.stream, origin, position) for origin, position in c.cursors.items()],
                )
                insert("INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?)", [(c.stream, *row) for row in c.rows])
                insert("DELETE FROM rows WHERE stream = ? AND id = ?", [(c.stream, x) for x in c.labelled])
                write_events(db, c.stream, c.alarms)

    def compact(self, now: float, streams: Sequence[int], keep: Retention) -> None:
        """Thin out the history of some streams by its age, and forget clients and events of long ago."""
        with self.transaction() as db:
            for stream in streams:
                db.execute("DELETE FROM history WHERE stream = ? AND t < ?", (stream, int((now - keep.history) * 1000)))
                for age, spacing in SPACINGS:
                    before, width = int((now - age) * 1000), spacing * 1000
                    before -= before % width  # whole spaces only: of a space cut in two both halves would keep one
                    db.execute(
                        "DELETE FROM history WHERE stream = ?1 AND t < ?2 AND id NOT IN (SELECT id FROM"
                        " (SELECT id, max(t) FROM history WHERE stream = ?1 AND t < ?2 GROUP BY t / ?3))",
                        (stream, before, width),
                    )
                db.execute("DELETE FROM offsets WHERE stream = ? AND seen < ?", (stream, now - keep.clients))
            db.execute("DELETE FROM taken WHERE t < ?", (now - keep.events,))
            db.execute("DELETE FROM rows WHERE t < ?", (now - keep.rows,))
            db.execute("PRAGMA incremental_vacuum(1000)").fetchall()

    # what pages and webhooks ask for

    def points(self, stream: int, first: float, last: float, points: int) -> list[tuple[int, int, bytes, bytes]]:
        """Return the last point (t, n, prior, variance) in each of `points` equal parts of a time range."""
        low, high = int(first * 1000), int(last * 1000)
        width = max(1, -(-(high - low + 1) // points))
        return self.read(
            "SELECT t, n, prior, variance FROM history WHERE id IN (SELECT id FROM (SELECT id, max(t) FROM history"
            " WHERE stream = ? AND t BETWEEN ? AND ? GROUP BY (t - ?) / ?)) ORDER BY t",
            (stream, low, high, low, width),
        )

    def rows(self, stream: int, ids: Sequence[str]) -> list[tuple[str, bytes]]:
        """Return the ids and the bytes of rows that wait for a label."""
        asked = "SELECT value FROM json_each(?)"
        return self.read(f"SELECT id, row FROM rows WHERE stream = ? AND id IN ({asked})", (stream, json.dumps(ids)))

    def priors(self, stream: int, most: int) -> list[Vector]:
        """Return the last priors (K,) of a stream's history, newest first."""
        rows = self.read("SELECT prior FROM history WHERE stream = ? ORDER BY t DESC LIMIT ?", (stream, most))
        return [np.frombuffer(prior, "<f4").astype(np.float64) for (prior,) in rows]

    def usage(self) -> dict[str, int]:
        """Return how large the file and its log are, in bytes."""
        log = self.path.with_name(self.path.name + "-wal")
        return {"file": self.path.stat().st_size, "log": log.stat().st_size if log.exists() else 0}


def floats(values: Vector) -> bytes:
    """Return numbers as little-endian float32."""
    return np.asarray(values, "<f4").tobytes()


def check(path: Path) -> tuple[list[str], dict[str, int]]:
    """Return what is wrong with a file, as sentences (none: it is sound), and how much it holds."""
    from reprior.service.live import restored

    if not path.exists():
        fail("serve", "db", "be there to be checked", f"no file {path.name}")
    db, wrong = connect(path, 5.0), []
    try:
        owner = db.execute("PRAGMA application_id").fetchone()[0]
        if owner != APPLICATION:
            fail("serve", "db", "be a file that `reprior serve` made", f"another one, {path.name}")
        db.execute("PRAGMA query_only=ON")
        wrong += [f"SQLite: {row[0]}." for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"]
        for table, _, parent, _ in db.execute("PRAGMA foreign_key_check"):
            wrong.append(f"A row of {table} belongs to none of {parent}.")
        for row in db.execute(STREAMS):
            kept = Kept(*row)
            try:
                live = restored(kept)
            except Exception as error:
                wrong.append(f"Stream {kept.name!r} cannot be read: {error}")
                continue
            if live.stream.n != kept.n:
                wrong.append(f"Stream {kept.name!r} has learned {live.stream.n} samples, but {kept.n} were counted.")
            size = 4 * live.n_classes
            query = "SELECT t, n, length(prior), length(variance) FROM history WHERE stream = ? ORDER BY t, n"
            before = 0
            for t, n, *sizes in db.execute(query, (kept.id,)):
                if not before <= n <= kept.n or sizes != [size, size]:
                    wrong.append(f"Stream {kept.name!r} has a damaged point in its history, at {t / 1000:.3f}.")
                    break
                before = n
            for client, n in db.execute("SELECT client, n FROM offsets WHERE stream = ?", (kept.id,)):
                if n > kept.n:
                    wrong.append(f"Stream {kept.name!r} has an offset of client {client!r} ahead of its state.")
        tables = ("streams", "offsets", "history", "alarms", "outbox")
        held = {table: int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]) for table in tables}
        return wrong, held
    except sqlite3.DatabaseError as error:
        return [*wrong, f"SQLite: {error}."], {}
    finally:
        db.close()
