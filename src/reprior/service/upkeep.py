"""`reprior serve check`, `backup` and `restore`: the file of a server, verified, copied and put back."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from reprior._check import fail
from reprior.service.damage import Damage, intact
from reprior.service.database import APPLICATION, as_input_error, claim, connect, make_private
from reprior.service.definition import StreamDefinition
from reprior.service.served import restored
from reprior.service.store import StoredStream, stored_streams

BESIDE = ("-wal", "-shm")  # what SQLite keeps beside a file
TABLES = ("streams", "offsets", "history", "alarms", "outbox")  # whose rows are counted


class FileReport(NamedTuple):
    """The `problems` of a file, one sentence each, and the number of `rows` per table."""

    problems: list[str]
    rows: dict[str, int]


def check(path: Path) -> FileReport:
    """Return the problems of a file, and the number of rows per table; no rows if SQLite cannot read it."""
    if not path.exists():
        fail("serve", "db", "exist", f"no file {path.name}")
    with closing(connect(path, 5.0)) as db:
        problems: list[str] = []
        try:
            if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
                fail("serve", "db", "be a file that `reprior serve` made", f"another one, {path.name}")
            db.execute("PRAGMA query_only=ON")
            problems += [f"SQLite: {row[0]}." for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"]
            orphans = db.execute("PRAGMA foreign_key_check")
            problems += [f"A row of {table} belongs to none of {parent}." for table, _, parent, _ in orphans]
            definitions: dict[bytes, StreamDefinition] = {}
            damage = Damage()
            for stored in stored_streams(lambda sql: db.execute(sql).fetchall(), damage):
                problems += problems_of(db, stored, definitions)
            problems += damage.sentences()
            rows = {table: int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]) for table in TABLES}
            return FileReport(problems, rows)
        except sqlite3.DatabaseError as error:
            return FileReport([*problems, f"SQLite: {error}."], {})


def problems_of(db: sqlite3.Connection, stored: StoredStream, definitions: dict[bytes, StreamDefinition]) -> list[str]:
    """Return the problems of one stream: its bytes, its counts, its history and its offsets."""
    name = f"Stream {stored.name!r}"
    try:
        served = restored(stored, definitions)
    except Exception as error:  # damaged bytes may be anything
        return [f"{name} cannot be read: {error}"]
    problems = []
    if served.stream.n != stored.n:
        problems.append(f"{name} has learned {served.stream.n} samples, but {stored.n} were counted.")
    before, since = 0, int(1000 * stored.version_since)
    query = "SELECT t, n, prior, variance FROM history WHERE stream = ? ORDER BY t, n"
    for t, n, prior, variance in db.execute(query, (stored.id,)):
        if intact(variance, stored.id, t, n, prior) is None or (t > since and not before <= n <= stored.n):
            problems.append(f"{name} has a damaged point in its history, at {t / 1000:.3f}.")
            break
        before = n if t > since else 0  # each model version counts its own samples
    ahead = db.execute("SELECT client FROM offsets WHERE stream = ? AND n > ?", (stored.id, stored.n))
    if stored.version == 1:
        problems += [f"{name} has an offset of client {client!r} ahead of its state." for (client,) in ahead]
    return problems


def copy(source: Path, target: Path) -> None:
    """Write a copy of a database, whole or not at all; the source may be served meanwhile."""
    draft = target.with_name(target.name + ".part")
    draft.unlink(missing_ok=True)
    make_private(draft)
    try:
        with closing(connect(source, 30.0)) as old, closing(sqlite3.connect(draft)) as new:
            if old.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
                fail("serve", "file", "be one that `reprior serve` made", f"another one, {source.name}")
            old.backup(new)
            new.execute("PRAGMA journal_mode=DELETE")  # one file, nothing beside it
        with draft.open("rb") as written:
            os.fsync(written.fileno())
        draft.replace(target)
    except sqlite3.Error as error:
        raise as_input_error(source, error) from None
    finally:
        draft.unlink(missing_ok=True)


def backup(db: Path, target: Path) -> FileReport:
    """Copy a database, also one that is being served, and return a report on the copy."""
    if not db.exists():
        fail("serve backup", "--db", "name an existing file", db.name)
    if target.exists():
        fail("serve backup", "FILE", "be a new file", f"{target.name}, which exists already")
    copy(db, target)
    return check_readable(target, "serve backup")


def restore(db: Path, source: Path, *, replace: bool = False) -> FileReport:
    """Put a copy in the place of a database that no server has open, and return a report on it."""
    if not source.exists():
        fail("serve restore", "FILE", "name an existing file", source.name)
    if db.exists() and not replace:
        fail("serve restore", "--db", "be a new file", f"{db.name}, which exists already",
             remedy="Pass --replace to overwrite it")  # fmt: skip
    report = check_readable(source, "serve restore")
    lock = db.with_name(db.name + ".lock")
    make_private(lock)
    with lock.open("w") as guard:
        claim(guard, db)
        copy(source, db)
        for ending in BESIDE:  # they belong to the file that is gone
            db.with_name(db.name + ending).unlink(missing_ok=True)
    return report


def check_readable(file: Path, caller: str) -> FileReport:
    """Return a report on a file; one that SQLite cannot read is refused.

    Other problems, such as one damaged stream, do not stop a copy: a server can still serve the other streams.
    """
    report = check(file)
    if not report.rows:
        fail(caller, "file", "be sound", f"{file.name}: {report.problems[0]}")
    return report
