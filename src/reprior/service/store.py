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

from reprior._check import InputError, fail
from reprior._types import Vector

SCHEMA = 1
APPLICATION = 0x7265_7072  # "repr": the file says whose it is
TABLES = """
CREATE TABLE streams (
  id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, created REAL NOT NULL, definition BLOB NOT NULL,
  n INTEGER NOT NULL, labels INTEGER NOT NULL, seen REAL NOT NULL, state BLOB NOT NULL, alarm BLOB);
CREATE TABLE offsets (
  stream INTEGER NOT NULL REFERENCES streams ON DELETE CASCADE, client TEXT NOT NULL, seq INTEGER NOT NULL,
  n INTEGER NOT NULL, seen REAL NOT NULL, missing TEXT NOT NULL, PRIMARY KEY (stream, client)) WITHOUT ROWID;
CREATE TABLE history (
  id INTEGER PRIMARY KEY, stream INTEGER NOT NULL REFERENCES streams ON DELETE CASCADE, t INTEGER NOT NULL,
  n INTEGER NOT NULL, prior BLOB NOT NULL, variance BLOB NOT NULL);
CREATE UNIQUE INDEX history_by_time ON history (stream, t, n);
CREATE TABLE alarms (
  id INTEGER PRIMARY KEY, stream INTEGER NOT NULL REFERENCES streams ON DELETE CASCADE, t REAL NOT NULL,
  about TEXT NOT NULL, acknowledged REAL, by TEXT, note TEXT, next TEXT);
CREATE INDEX alarms_by_stream ON alarms (stream, t);
CREATE TABLE outbox (
  alarm INTEGER PRIMARY KEY REFERENCES alarms ON DELETE CASCADE, attempts INTEGER NOT NULL, due REAL NOT NULL,
  body TEXT NOT NULL, problem TEXT);
CREATE TABLE cursors (stream INTEGER NOT NULL REFERENCES streams ON DELETE CASCADE, origin TEXT NOT NULL,
  position TEXT NOT NULL, PRIMARY KEY (stream, origin)) WITHOUT ROWID;
CREATE TABLE taken (stream INTEGER NOT NULL REFERENCES streams ON DELETE CASCADE, id TEXT NOT NULL, t REAL NOT NULL,
  PRIMARY KEY (stream, id)) WITHOUT ROWID;
CREATE INDEX taken_by_time ON taken (t);
"""

# A point stays for `age` seconds; of older ones the last of every `spacing` seconds does.
SPACINGS = ((300, 10), (3_600, 60), (12 * 3_600, 600), (7 * 86_400, 6 * 3_600))
LONGEST = 366 * 86_400  # seconds after which a point goes
FORGET_CLIENTS = 7 * 86_400  # seconds after which the offset of a silent client goes
REMEMBER_IDS = 3_600  # seconds for which the id of an event is known


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
    points: list[Point]
    taken: list[tuple[str, float]]
    alarms: list[tuple[int, float, str, str | None]]  # id, time, about, what the webhook is to say
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
    """The file cannot be written now; the sentence says why. What was to be written is still known, and is retried."""


class Store:
    """The file, opened once by one process.

    A second process that opens the same file is refused: two would each believe they alone know the streams.
    """

    def __init__(self, path: Path, *, wait: float = 5.0) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._guard = open(path.with_name(path.name + ".lock"), "w")  # noqa: SIM115  (held as long as the store)
        try:
            _claim(self._guard, path)
            self._writer = _connect(path, wait)
            try:
                _prepare(self._writer, path)
            except sqlite3.DatabaseError as error:
                raise _as_input_error(path, error) from None
            self._reader = _connect(path, wait)
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
        except sqlite3.OperationalError as error:
            raise StoreError(_reason(error)) from error

    def read(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return the rows of a query; any thread may ask."""
        with self._lock:
            return self._reader.execute(sql, values).fetchall()

    # what the server reads at its start

    def streams(self) -> Iterator[Kept]:
        """Yield every stream."""
        for row in self.read(STREAMS):
            yield Kept(*row)

    def offsets(self) -> Iterator[tuple[int, str, Offset]]:
        """Yield the offset of every client of every stream."""
        for stream, client, seq, n, seen, missing in self.read("SELECT * FROM offsets"):
            yield stream, client, Offset(seq, n, seen, json.loads(missing))

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

    def delete(self, stream: int) -> None:
        """Remove a stream with all that belongs to it."""
        with self.transaction() as db:
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
                insert(
                    "INSERT OR REPLACE INTO offsets VALUES (?, ?, ?, ?, ?, ?)",
                    [(c.stream, name, o.seq, o.n, o.seen, json.dumps(o.missing)) for name, o in c.offsets.items()],
                )
                insert(
                    "INSERT OR IGNORE INTO history (stream, t, n, prior, variance) VALUES (?, ?, ?, ?, ?)",
                    [(c.stream, *point) for point in c.points],
                )
                insert("INSERT INTO taken VALUES (?, ?, ?)", [(c.stream, *seen) for seen in c.taken])
                insert(
                    "INSERT OR REPLACE INTO cursors VALUES (?, ?, ?)",
                    [(c.stream, origin, position) for origin, position in c.cursors.items()],
                )
                for alarm, t, about, body in c.alarms:
                    db.execute("INSERT INTO alarms (id, stream, t, about) VALUES (?, ?, ?, ?)",
                               (alarm, c.stream, t, about))  # fmt: skip
                    if body is not None:
                        db.execute("INSERT INTO outbox VALUES (?, 0, ?, ?, NULL)", (alarm, t, body))

    def compact(self, now: float, streams: Sequence[int]) -> None:
        """Thin out the history of some streams by its age, and forget clients and events of long ago."""
        with self.transaction() as db:
            for stream in streams:
                db.execute("DELETE FROM history WHERE stream = ? AND t < ?", (stream, int((now - LONGEST) * 1000)))
                for age, spacing in SPACINGS:
                    before, width = int((now - age) * 1000), spacing * 1000
                    before -= before % width  # whole spaces only: of a space cut in two both halves would keep one
                    db.execute(
                        "DELETE FROM history WHERE stream = ?1 AND t < ?2 AND id NOT IN (SELECT id FROM"
                        " (SELECT id, max(t) FROM history WHERE stream = ?1 AND t < ?2 GROUP BY t / ?3))",
                        (stream, before, width),
                    )
                db.execute("DELETE FROM offsets WHERE stream = ? AND seen < ?", (stream, now - FORGET_CLIENTS))
            db.execute("DELETE FROM taken WHERE t < ?", (now - REMEMBER_IDS,))
        self._writer.execute("PRAGMA incremental_vacuum(1000)").fetchall()

    # what pages ask for

    def points(self, stream: int, first: float, last: float, points: int) -> list[tuple[int, int, bytes, bytes]]:
        """Return the last point (t, n, prior, variance) in each of `points` equal parts of a time range."""
        low, high = int(first * 1000), int(last * 1000)
        width = max(1, -(-(high - low + 1) // points))
        return self.read(
            "SELECT t, n, prior, variance FROM history WHERE id IN (SELECT id FROM (SELECT id, max(t) FROM history"
            " WHERE stream = ? AND t BETWEEN ? AND ? GROUP BY (t - ?) / ?)) ORDER BY t",
            (stream, low, high, low, width),
        )

    def usage(self) -> dict[str, int]:
        """Return how large the file and its log are, in bytes."""
        log = self.path.with_name(self.path.name + "-wal")
        return {"file": self.path.stat().st_size, "log": log.stat().st_size if log.exists() else 0}


def floats(values: Vector) -> bytes:
    """Return numbers as little-endian float32."""
    return np.asarray(values, "<f4").tobytes()


def _connect(path: Path, wait: float) -> sqlite3.Connection:
    try:
        db = sqlite3.connect(path, timeout=wait, isolation_level=None, check_same_thread=False)
    except sqlite3.OperationalError as error:
        raise _as_input_error(path, error) from None
    try:
        db.execute("PRAGMA foreign_keys=ON")
    except BaseException:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    version, owner = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("user_version", "application_id"))
    if version == 0 and not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        db.execute("PRAGMA auto_vacuum=INCREMENTAL")
        db.execute("PRAGMA journal_mode=WAL")
        db.executescript(f"BEGIN; {TABLES} PRAGMA application_id={APPLICATION}; PRAGMA user_version={SCHEMA}; COMMIT;")
    elif owner != APPLICATION:
        fail("serve", "db", "be a file that `reprior serve` made, or a new one", f"another database, {path.name}")
    elif version > SCHEMA:
        fail("serve", "db", f"have a schema number of at most {SCHEMA}", version,
             remedy="A newer release of reprior wrote it; upgrade to read it")  # fmt: skip
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("PRAGMA journal_size_limit=67108864")  # a log that a slow reader let grow is cut back


def _claim(guard: Any, path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # Windows keeps a file that is open for writing to one process anyway
        return
    try:
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        fail("serve", "db", "be served by one process", f"{path.name}, which another one has open")


def _reason(error: sqlite3.OperationalError) -> str:
    text = str(error)
    if "locked" in text or "busy" in text:
        return "Another process holds the database."
    if "full" in text:
        return "The disk is full."
    return "The database cannot be written." if "attempt to write" in text or "disk I/O" in text else f"SQLite: {text}."


def _as_input_error(path: Path, error: sqlite3.Error) -> InputError:
    return InputError(f"serve: `db` must be a database that can be opened; got {path.name} ({error}).")


def check(path: Path) -> tuple[list[str], dict[str, int]]:
    """Return what is wrong with a file, as sentences (none: it is sound), and how much it holds."""
    from reprior.service.live import restored

    if not path.exists():
        fail("serve", "db", "be there to be checked", f"no file {path.name}")
    db, wrong = _connect(path, 5.0), []
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
