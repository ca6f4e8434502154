"""`reprior serve check`, `backup` and `restore`: the file of a server, verified, copied and put back."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from reprior._check import fail
from reprior.service.database import APPLICATION, as_input_error, claim, connect, make_private
from reprior.service.store import check

BESIDE = ("-wal", "-shm")  # what SQLite keeps beside a file


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


def backup(db: Path, target: Path) -> dict[str, int]:
    """Copy a database, also one that is being served, and return what the copy holds."""
    if not db.exists():
        fail("serve backup", "--db", "name a file that is there", db.name)
    if target.exists():
        fail("serve backup", "FILE", "be a new file", f"{target.name}, which is there already")
    copy(db, target)
    return sound(target, "serve backup")


def restore(db: Path, source: Path, *, replace: bool = False) -> dict[str, int]:
    """Put a copy in the place of a database that no server has open, and return what it holds."""
    if not source.exists():
        fail("serve restore", "FILE", "name a file that is there", source.name)
    if db.exists() and not replace:
        fail("serve restore", "--db", "be a new file", f"{db.name}, which is there already",
             remedy="Give --replace to lose what it holds")  # fmt: skip
    held = sound(source, "serve restore")
    lock = db.with_name(db.name + ".lock")
    make_private(lock)
    with lock.open("w") as guard:
        claim(guard, db)
        copy(source, db)
        for ending in BESIDE:  # they belong to the file that is gone
            db.with_name(db.name + ending).unlink(missing_ok=True)
    return held


def sound(file: Path, caller: str) -> dict[str, int]:
    """Return what a file holds; one that SQLite finds damaged is refused."""
    wrong, held = check(file)
    if not held:
        fail(caller, "file", "be sound", f"{file.name}: {wrong[0] if wrong else 'nothing in it'}")
    return held
