"""Alarms in the file: what was raised and resolved, and messages to be sent."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple
from uuid import uuid4


class AlarmEvent(NamedTuple):
    """An alarm that was raised or resolved, and the message about it, if one is to be sent from `due` on."""

    alarm: int
    type: str  # "raised" or "resolved"
    t: float
    about: str  # the alarm as JSON
    message: str | None
    due: float


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
