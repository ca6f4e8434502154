"""Alarms in the file: what was raised and resolved, who dealt with it, who silenced what, and messages to be sent."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

if TYPE_CHECKING:
    from reprior.service.store import Store


class AlarmEvent(NamedTuple):
    """An alarm that was raised or resolved, and the message about it, if one is to be sent from `due` on."""

    alarm: int
    type: str  # "raised" or "resolved"
    t: float
    about: str  # the alarm as JSON
    message: str | None
    due: float


class Acknowledgement(NamedTuple):
    """Who has dealt with an alarm, from which address, and what follows."""

    by: str
    note: str
    next: str
    address: str


class Silence(NamedTuple):
    """Until when no message about a stream is sent, and who wants that."""

    until: float
    by: str
    note: str
    address: str


def write_events(db: sqlite3.Connection, stream: int, events: Sequence[AlarmEvent]) -> None:
    """Write what happened to the alarms of a stream, inside a transaction."""
    for event in events:
        if event.type == "raised":
            db.execute("INSERT INTO alarms (id, stream, t, about) VALUES (?, ?, ?, ?)",
                       (event.alarm, stream, event.t, event.about))  # fmt: skip
        else:
            db.execute("UPDATE alarms SET resolved = ? WHERE id = ?", (event.t, event.alarm))
            db.execute("DELETE FROM since_alarm WHERE alarm = ?", (event.alarm,))
            held = db.execute("DELETE FROM outbox WHERE alarm = ? AND attempts = 0 AND due > ?", (event.alarm, event.t))
            if held.rowcount:  # a silence held the news back: nobody knows of the alarm that is over
                continue
        if event.message is not None:
            db.execute("INSERT INTO outbox VALUES (?, ?, 0, ?, ?, NULL)",
                       (f"msg_{uuid4().hex}", event.alarm, event.due, event.message))  # fmt: skip


class AlarmStore:
    """The tables of alarms, silences, messages and the audit."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # what the server reads at its start

    def unresolved(self) -> list[dict[str, Any]]:
        """Return the alarms that are not resolved, each with the number of its stream as `of`."""
        return self._store.objects("SELECT id, stream AS of, about, acknowledged FROM alarms WHERE resolved IS NULL")

    def since_alarm(self) -> list[tuple[int, bytes]]:
        """Return the stream of each open alarm with samples that came since, as float32, in their order."""
        return self._store.read("SELECT stream, rows FROM since_alarm JOIN alarms ON alarms.id = alarm"
                                " WHERE resolved IS NULL ORDER BY since_alarm.rowid")  # fmt: skip

    def silences(self) -> list[dict[str, Any]]:
        """Return the silences, each with the number of its stream as `of`."""
        return self._store.objects("SELECT stream AS of, until, by, note FROM silences")

    def last(self) -> int:
        """Return the largest number that an alarm has ever had, 0 if there was none; deleted alarms count too."""
        return int(self._store.read("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'alarms'")[0][0])

    def audit(self, stream: str | None, most: int) -> list[dict[str, Any]]:
        """Return who did what, the newest first; entries outlive the stream they are about."""
        sql = ("SELECT t, stream, action, by, address, about FROM audit WHERE ?1 IS NULL OR stream = ?1"
               " ORDER BY id DESC LIMIT ?2")  # fmt: skip
        return self._store.objects(sql, (stream, most))

    def listed(self, stream: int, most: int) -> list[dict[str, Any]]:
        """Return the last alarms of a stream, newest first."""
        sql = ("SELECT id, about, resolved, acknowledged, by, note, next FROM alarms WHERE stream = ?"
               " ORDER BY t DESC, id DESC LIMIT ?")  # fmt: skip
        return self._store.objects(sql, (stream, most))

    # messages

    def due(self, now: float, attempts: int) -> list[tuple[str, int, str]]:
        """Return messages that are to be sent now, after fewer than so many attempts: id, attempts, body.

        That an alarm is over is not said before that it was raised.
        """
        return self._store.read(
            "SELECT id, attempts, body FROM outbox WHERE due <= ?1 AND attempts < ?2 AND NOT EXISTS (SELECT 1 FROM"
            " outbox AS o WHERE o.alarm = outbox.alarm AND o.rowid < outbox.rowid AND o.attempts < ?2)"
            " ORDER BY due LIMIT 10",
            (now, attempts),
        )

    def sent(self, message: str, problem: str | None, attempts: int, due: float) -> None:
        """Note how an attempt to send a message ended, and when the next one is `due`."""
        with self._store.transaction() as db:
            if problem is None:
                db.execute("DELETE FROM outbox WHERE id = ?", (message,))
            else:
                db.execute("UPDATE outbox SET attempts = ?, due = ?, problem = ? WHERE id = ?",
                           (attempts, due, problem, message))  # fmt: skip

    def undelivered(self, now: float) -> tuple[int, str | None]:
        """Return how many messages nobody has taken, beside those that a silence holds back, and the last problem."""
        count, problem = self._store.read(
            "SELECT count(*), max(problem) FROM outbox WHERE attempts > 0 OR due <= ?", (now,)
        )[0]
        return int(count), problem
