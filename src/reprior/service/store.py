"""One SQLite file: state, offsets and history of every stream, changed together or not at all.

Write-ahead log, `synchronous=FULL`: what was committed survives a killed process and a lost power supply. One thread
writes; readers have a connection of their own and never wait for it.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from reprior._types import Matrix, Vector
from reprior.service.alarm_store import AlarmEvent, write_events
from reprior.service.damage import Damage, intact, with_checksum
from reprior.service.database import as_input_error, claim, connect, make_private, prepare, reason
from reprior.service.definition import Recipe
from reprior.service.errors import StoreError
from reprior.service.pending import NOTHING, STATEMENTS, Change, Logged
from reprior.service.receipts import Offset
from reprior.service.settings import Retention

log = logging.getLogger("reprior.service")

# A point stays for `age` seconds; of older ones the last of every `spacing` seconds does.
SPACINGS = ((300, 10), (3_600, 60), (12 * 3_600, 600), (7 * 86_400, 6 * 3_600))


@dataclass(frozen=True, slots=True)
class StoredStream:
    """A stream as it was read from the file: a state, and samples that it learned after that state."""

    id: int
    name: str
    created: float
    version: int
    version_since: float
    definition: bytes
    n: int
    labels: int
    last_post: float
    state: bytes
    test: bytes | None
    samples: tuple[Logged, ...] = ()


STREAMS = (
    "SELECT s.id, s.name, s.created, v.number, v.since, v.definition, t.n, t.labels, t.last_post, t.state, a.test"
    " FROM streams AS s JOIN states AS t ON t.stream = s.id LEFT JOIN tests AS a ON a.stream = s.id"
    " JOIN versions AS v ON v.stream = s.id AND v.definition IS NOT NULL ORDER BY s.id"
)


STATES_AT_ONCE = 16  # states that one statement writes
DROP_COMMITS = 64  # commits between two removals of samples that are not needed any more
WRITE_STATES = {
    count: "INSERT INTO states (stream, n, labels, last_post, state) VALUES " + ", ".join(["(?, ?, ?, ?, ?)"] * count)
    + " ON CONFLICT (stream) DO UPDATE SET n = excluded.n, labels = excluded.labels, last_post = excluded.last_post,"
    " state = excluded.state"
    for count in (1, STATES_AT_ONCE)
}  # fmt: skip


class Store:
    """The file, opened once by one process.

    A second process that opens the same file is refused: two would each believe they alone know the streams.
    """

    def __init__(self, path: Path, *, wait: float = 5.0) -> None:
        self.path, self.damage = path, Damage()
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
            self.read("SELECT count(*) FROM streams")  # with the first query the log is there
            self._opened_inodes = self._inodes()
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

    def _inodes(self) -> list[int]:
        """Return the inodes that the names of the file and of its log have now."""
        return [os.stat(f"{self.path}{ending}").st_ino for ending in ("", "-wal")]

    def _check_in_place(self) -> None:
        """Refuse to write to a deleted or replaced file: SQLite would write, and nobody could open the result."""
        with suppress(FileNotFoundError):
            if self._inodes() == self._opened_inodes:
                return
        raise StoreError("The database file was moved, deleted or replaced. Put it back, or restart the server.")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Change the file, all or nothing; only the writing thread may."""
        self._check_in_place()
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

    def objects(self, sql: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Return the rows of a query as objects by column; the JSON object in a column `about` is merged into them."""
        try:
            with self._lock:
                found = self._reader.execute(sql, values)
                names = [column[0] for column in found.description]
                rows = [dict(zip(names, row, strict=True)) for row in found]
        except sqlite3.Error as error:
            raise StoreError(reason(error)) from error
        return [row | json.loads(row.pop("about", "{}")) for row in rows]

    # what the server reads at its start

    def streams(self) -> Iterator[StoredStream]:
        """Yield every stream."""
        return stored_streams(self.read, self.damage)

    def last_commit(self) -> int:
        """Return the number of the last commit that wrote samples."""
        return self.read("SELECT max(number) FROM samples")[0][0] or 0

    def receipts(self) -> Iterator[tuple[int, str, str, Any]]:
        """Yield stored receipts: the stream, the field of `Receipts`, and a key and value of that field."""
        for stream, client, seq, n, last_post, missing in self.read("SELECT * FROM offsets"):
            yield stream, "offsets", client, Offset(seq, n, last_post, json.loads(missing))
        for stream, event, t in self.read("SELECT stream, id, t FROM events"):
            yield stream, "events", event, t
        for stream, origin, position in self.read("SELECT stream, origin, position FROM cursors"):
            yield stream, "cursors", origin, position

    def newest(self) -> float:
        """Return the latest time in the file, in seconds since 1970; 0 for a new file."""
        point = self.read("SELECT max(t) FROM history")[0][0]
        post = self.read("SELECT max(last_post) FROM states")[0][0]
        last = self.read("SELECT number, posts FROM samples ORDER BY number DESC LIMIT 1")
        logged = logged_in(last, self.damage)
        return max((point or 0) / 1000, post or 0.0, *(each.last_post for each in logged))

    # what the server writes

    def create(self, name: str, now: float, recipe: Recipe) -> int:
        """Store a new stream and return its number; an old stream of that name is deleted with its history."""
        with self.transaction() as db:
            db.execute("DELETE FROM streams WHERE name = ?", (name,))
            made = db.execute("INSERT INTO streams (name, created) VALUES (?, ?)", (name, now))
            assert made.lastrowid is not None
            number = made.lastrowid
            db.execute("INSERT INTO versions VALUES (?, 1, ?, ?)", (number, now, recipe.definition))
            state = with_checksum(recipe.state, number, 0)
            db.execute("INSERT INTO states VALUES (?, ?, 0, ?, ?)", (number, recipe.n, now, state))
            if recipe.test is not None:
                db.execute("INSERT INTO tests VALUES (?, ?)", (number, recipe.test))
            return number

    def delete(self, stream: int, alarms: Sequence[AlarmEvent] = ()) -> None:
        """Remove a stream with all that belongs to it; messages about its alarms are still sent."""
        with self.transaction() as db:
            write_events(db, stream, alarms)
            db.execute("DELETE FROM streams WHERE id = ?", (stream,))
        self.damage.forget(stream)

    def write(self, changes: Sequence[Change], number: int, needed: int) -> None:
        """Commit the changes of several streams together, as commit `number`; samples before `needed` can go."""
        with self.transaction() as db:
            write_states(db, [c for c in changes if c.state is not None])
            samples = [tuple(c.samples) for c in changes if c.samples is not None]
            if samples:
                db.execute("INSERT INTO samples VALUES (?, ?)", (number, with_checksum(msgpack.packb(samples), number)))
            if number % DROP_COMMITS == 0:
                db.execute("DELETE FROM samples WHERE number < ?", (needed,))
            changes = [c for c in changes if c.pending is not NOTHING]
            for c in changes:
                begin_versions(db, c.stream, c.pending.versions)
                write_events(db, c.stream, c.pending.alarms)
            rows: dict[str, list[Any]] = {statement: [] for statement in STATEMENTS}
            for c in changes:
                for (statement, _), values in c.pending.rows.items():
                    rows[statement].append(values)
            for statement, sql in STATEMENTS.items():
                if rows[statement]:  # a statement without rows would still stop the other threads twice
                    db.executemany(sql, rows[statement])

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
                db.execute("DELETE FROM offsets WHERE stream = ? AND last_post < ?", (stream, now - keep.clients))
            db.execute("DELETE FROM events WHERE t < ?", (now - keep.events,))
            db.execute("DELETE FROM rows WHERE t < ?", (now - keep.rows,))
            db.execute("PRAGMA incremental_vacuum(1000)").fetchall()

    def forget_pages(self) -> None:
        """Empty SQLite's page cache: it skips a write that equals the cached value, so a damaged page would stay."""
        self._writer.execute("PRAGMA shrink_memory")

    # what pages and webhooks ask for

    def versions(self, stream: int) -> list[dict[str, Any]]:
        """Return the model versions of a stream and since when each was in use, the newest first."""
        sql = "SELECT number AS version, since FROM versions WHERE stream = ? ORDER BY number DESC"
        return self.objects(sql, (stream,))

    def points(self, stream: int, first: float, last: float, points: int) -> list[tuple[int, int, bytes, bytes]]:
        """Return the last point (t, n, prior, variance) in each of `points` equal parts of a time range."""
        low, high = int(first * 1000), int(last * 1000)
        width = max(1, -(-(high - low + 1) // points))
        return self._intact_points(stream, self.read(
            "SELECT t, n, prior, variance FROM history WHERE id IN (SELECT id FROM (SELECT id, max(t) FROM history"
            " WHERE stream = ? AND t BETWEEN ? AND ? GROUP BY (t - ?) / ?)) ORDER BY t",
            (stream, low, high, low, width),
        ))  # fmt: skip

    def _intact_points(self, stream: int, rows: Sequence[Any]) -> list[tuple[int, int, bytes, bytes]]:
        """Return points (t, n, prior, variance) without those that are damaged."""
        points = [(t, n, prior, intact(variance, stream, t, n, prior)) for t, n, prior, variance in rows]
        good = [(t, n, prior, variance) for t, n, prior, variance in points if variance is not None]
        if len(good) < len(points):
            self.damage.note(("history", stream), f"The history of {self._named(stream)} lacks damaged points.")
        return good

    def damaged_states(self, streams: Sequence[int]) -> list[int]:
        """Return the streams whose state in the file is damaged, and update `damage` for all of them."""
        damaged = []
        for stream in streams:
            rows = self.read("SELECT labels, state FROM states WHERE stream = ?", (stream,))
            bad = any(intact(state, stream, labels) is None for labels, state in rows)
            why = f"The stored state of {self._named(stream)} is damaged. The server writes it again." if bad else None
            self.damage.note(("state", stream), why)
            damaged += [stream] * bad
        return damaged

    def _named(self, stream: int) -> str:
        """Return what a sentence calls a stream."""
        names = self.read("SELECT name FROM streams WHERE id = ?", (stream,))
        return f"the stream {names[0][0]!r}" if names else f"the deleted stream number {stream}"

    def rows(self, stream: int, ids: Sequence[str]) -> list[tuple[str, bytes]]:
        """Return the ids and the bytes of rows that wait for a label."""
        asked = "SELECT value FROM json_each(?)"
        return self.read(f"SELECT id, row FROM rows WHERE stream = ? AND id IN ({asked})", (stream, json.dumps(ids)))

    def priors(self, stream: int, most: int) -> list[Vector]:
        """Return the last priors (K,) of a stream's history, newest first."""
        sql = "SELECT t, n, prior, variance FROM history WHERE stream = ? ORDER BY t DESC LIMIT ?"
        points = self._intact_points(stream, self.read(sql, (stream, most)))
        return [np.frombuffer(prior, "<f4").astype(np.float64) for _, _, prior, _ in points]

    def usage(self) -> dict[str, int]:
        """Return how large the file and its log are, in bytes."""
        sizes = {"file": 0, "log": 0}
        for part, ending in (("file", ""), ("log", "-wal")):
            with suppress(FileNotFoundError):
                sizes[part] = os.stat(f"{self.path}{ending}").st_size
        return sizes


def logged_in(rows: Sequence[tuple[int, bytes]], damage: Damage) -> Iterator[Logged]:
    """Yield the samples of commits (number, posts) in order; those that are damaged are noted and left out."""
    for number, posts in rows:
        data = intact(posts, number)
        if data is None:
            damage.note(("samples", number), f"The samples of commit {number} are damaged. Streams may lack them.")
        else:
            yield from (Logged(*each) for each in msgpack.unpackb(data))


def stored_streams(read: Callable[[str], Sequence[Any]], damage: Damage) -> Iterator[StoredStream]:
    """Yield every stream of a file that `read` queries, with the samples that are to be learned again.

    A damaged state is returned empty, which `restored` refuses.
    """
    logged = defaultdict(list)
    for each in logged_in(read("SELECT number, posts FROM samples ORDER BY number"), damage):
        logged[each.stream, each.since].append(each)
    for row in read(STREAMS):
        stored = StoredStream(*row)
        stored = replace(stored, state=intact(stored.state, stored.id, stored.labels) or b"")
        later = [each for each in logged[stored.id, stored.version_since] if each.n > stored.n]
        if later:
            last = later[-1]
            stored = replace(stored, n=last.n, last_post=max(last.last_post, stored.last_post), samples=tuple(later))
        yield stored


def write_states(db: sqlite3.Connection, changes: Sequence[Change]) -> None:
    """Write the states of streams, inside a transaction.

    Other threads have to wait for each statement, so one statement writes several states.
    """
    rows = [(*c[:4], with_checksum(c.state or b"", c.stream, c.labels)) for c in changes]
    while rows:
        count = STATES_AT_ONCE if len(rows) >= STATES_AT_ONCE else 1
        db.execute(WRITE_STATES[count], [value for row in rows[:count] for value in row])
        rows = rows[count:]


def begin_versions(db: sqlite3.Connection, stream: int, versions: Sequence[tuple[int, float, bytes]]) -> None:
    """Begin new model versions of a stream, inside a transaction: history and offsets stay.

    Rows that wait for a label go: they are predictions of the old version.
    """
    for version in versions:
        db.execute("UPDATE versions SET definition = NULL WHERE stream = ?", (stream,))
        db.execute("INSERT INTO versions VALUES (?, ?, ?, ?)", (stream, *version))
        for table in ("tests", "rows"):
            db.execute(f"DELETE FROM {table} WHERE stream = ?", (stream,))


def floats(values: Vector | Matrix) -> bytes:
    """Return numbers as little-endian float32."""
    return np.asarray(values, "<f4").tobytes()
