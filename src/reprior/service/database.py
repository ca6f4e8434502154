"""The SQLite file itself: whose it is, its tables, how it is opened, and by one process at a time."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

from reprior._check import InputError, fail

SCHEMA = 5
APPLICATION = 0x7265_7072  # "repr": the file says whose it is
CHECKPOINT_PAGES = 8_000  # of the log before it is folded into the file: 32 MB, in which a busy page is folded once
# A row that changes is written whole, so what changes often (states) is apart from what does not. Most commits write
# the samples that streams have learned since their state was written: a state is fifty times as large. `state`, `posts`
# and `variance` end with a checksum (damage.py).
TABLES = """
CREATE TABLE streams (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, created REAL NOT NULL);
CREATE TABLE versions (
  stream INTEGER NOT NULL REFERENCES streams ON DELETE CASCADE, number INTEGER NOT NULL, since REAL NOT NULL,
  definition BLOB, PRIMARY KEY (stream, number));
CREATE TABLE states (
  stream INTEGER PRIMARY KEY REFERENCES streams ON DELETE CASCADE, n INTEGER NOT NULL, labels INTEGER NOT NULL,
  last_post REAL NOT NULL, state BLOB NOT NULL);
CREATE TABLE samples (number INTEGER PRIMARY KEY, posts BLOB NOT NULL);
CREATE TABLE tests (stream INTEGER PRIMARY KEY REFERENCES streams ON DELETE CASCADE, test BLOB NOT NULL);
CREATE TABLE offsets (
  stream INTEGER NOT NULL REFERENCES streams ON DELETE CASCADE, client TEXT NOT NULL, seq INTEGER NOT NULL,
  n INTEGER NOT NULL, last_post REAL NOT NULL, missing TEXT NOT NULL, PRIMARY KEY (stream, client)) WITHOUT ROWID;
CREATE TABLE history (
  id INTEGER PRIMARY KEY, stream INTEGER NOT NULL REFERENCES streams ON DELETE CASCADE, t INTEGER NOT NULL,
  n INTEGER NOT NULL, prior BLOB NOT NULL, variance BLOB NOT NULL);
CREATE UNIQUE INDEX history_by_time ON history (stream, t, n);
CREATE TABLE alarms (
  id INTEGER PRIMARY KEY AUTOINCREMENT, stream INTEGER NOT NULL REFERENCES streams ON DELETE CASCADE, t REAL NOT NULL,
  about TEXT NOT NULL, resolved REAL, acknowledged REAL, by TEXT, note TEXT, next TEXT);
CREATE INDEX alarms_by_stream ON alarms (stream, t);
CREATE TABLE since_alarm (alarm INTEGER NOT NULL REFERENCES alarms ON DELETE CASCADE, rows BLOB NOT NULL);
CREATE INDEX since_alarm_by_alarm ON since_alarm (alarm);
CREATE TABLE outbox (
  id TEXT PRIMARY KEY, alarm INTEGER NOT NULL, attempts INTEGER NOT NULL, due REAL NOT NULL, body TEXT NOT NULL,
  problem TEXT);
CREATE TABLE silences (
  stream INTEGER PRIMARY KEY REFERENCES streams ON DELETE CASCADE, until REAL NOT NULL, by TEXT NOT NULL,
  note TEXT NOT NULL);
CREATE TABLE audit (
  id INTEGER PRIMARY KEY, t REAL NOT NULL, stream TEXT NOT NULL, action TEXT NOT NULL, by TEXT NOT NULL,
  address TEXT NOT NULL, about TEXT NOT NULL);
CREATE TABLE cursors (stream INTEGER NOT NULL REFERENCES streams ON DELETE CASCADE, origin TEXT NOT NULL,
  position TEXT NOT NULL, PRIMARY KEY (stream, origin)) WITHOUT ROWID;
CREATE TABLE events (stream INTEGER NOT NULL REFERENCES streams ON DELETE CASCADE, id TEXT NOT NULL, t REAL NOT NULL,
  PRIMARY KEY (stream, id)) WITHOUT ROWID;
CREATE INDEX events_by_time ON events (t);
CREATE TABLE rows (stream INTEGER NOT NULL REFERENCES streams ON DELETE CASCADE, id TEXT NOT NULL, t REAL NOT NULL,
  row BLOB NOT NULL, PRIMARY KEY (stream, id)) WITHOUT ROWID;
CREATE INDEX rows_by_time ON rows (t);
"""


def connect(path: Path, wait: float) -> sqlite3.Connection:
    """Return a connection to a file, each of whose statements is a transaction of its own unless one is begun."""
    try:
        db = sqlite3.connect(path, timeout=wait, isolation_level=None, check_same_thread=False)
    except sqlite3.OperationalError as error:
        raise as_input_error(path, error) from None
    db.execute("PRAGMA foreign_keys=ON")
    return db


def make_private(path: Path) -> None:
    """Make a file that only its owner can read; SQLite gives the files beside a database the same rights."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    with suppress(PermissionError):
        path.chmod(0o600)


def prepare(db: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new file; refuse one that is not ours, or of a later release."""
    version, owner = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("user_version", "application_id"))
    if version == 0 and not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        db.execute("PRAGMA auto_vacuum=INCREMENTAL")
        db.execute("PRAGMA journal_mode=WAL")
        db.executescript(f"BEGIN; {TABLES} PRAGMA application_id={APPLICATION}; PRAGMA user_version={SCHEMA}; COMMIT;")
    elif owner != APPLICATION:
        fail("serve", "db", "be a file that `reprior serve` made, or a new one", f"another database, {path.name}")
    elif version != SCHEMA:
        fail("serve", "db", f"have the schema number {SCHEMA}", version,
             remedy="Another release of reprior wrote it; serve it with that release")  # fmt: skip
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
    db.execute("PRAGMA journal_size_limit=67108864")  # a log that a slow reader let grow is cut back


def claim(guard: Any, path: Path) -> None:
    """Hold a file for this process alone, as long as `guard` is open."""
    try:
        import fcntl
    except ImportError:  # Windows keeps a file that is open for writing to one process anyway
        return
    try:
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        fail("serve", "db", "be served by one process", f"{path.name}, which another one has open")


def reason(error: sqlite3.Error) -> str:
    """Return why a file cannot be read or written, as a sentence."""
    text = str(error)
    if "locked" in text or "busy" in text:
        return "Another process holds the database."
    if "full" in text:
        return "The disk is full."
    if "malformed" in text or "not a database" in text:
        return "The database file is damaged. Stop the server and restore a backup."
    if "attempt to write" in text or "disk I/O" in text:
        return "The database cannot be written."
    return f"SQLite: {text}."


def as_input_error(path: Path, error: sqlite3.Error) -> InputError:
    """Return the error about a file that cannot be opened."""
    return InputError(f"serve: `db` must be a database that can be opened; got {path.name} ({error}).")
