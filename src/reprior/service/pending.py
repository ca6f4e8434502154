"""What a stream has to store: gathered while a commit is on its way, written with the next one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reprior.service.alarm_store import AlarmEvent

# How each thing is written, in this order: what goes, goes first.
STATEMENTS = {
    "forget client": "DELETE FROM offsets WHERE stream = ? AND client = ?",
    "forget row": "DELETE FROM rows WHERE stream = ? AND id = ?",
    "test": "INSERT OR REPLACE INTO tests VALUES (?, ?)",
    "offset": "INSERT OR REPLACE INTO offsets VALUES (?, ?, ?, ?, ?, ?)",
    "point": "INSERT OR IGNORE INTO history (stream, t, n, prior, variance) VALUES (?, ?, ?, ?, ?)",
    "event": "INSERT OR REPLACE INTO events VALUES (?, ?, ?)",
    "cursor": "INSERT OR REPLACE INTO cursors VALUES (?, ?, ?)",
    "row": "INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?)",
    "since alarm": "INSERT INTO since_alarm SELECT id, ?2 FROM alarms WHERE id = ?1 AND resolved IS NULL",
    "acknowledge": "UPDATE alarms SET acknowledged = ?, by = ?, note = ?, next = ? WHERE id = ?",
    "silence": "INSERT OR REPLACE INTO silences VALUES (?, ?, ?, ?)",
    # receivers of an alarm are also notified when it is over
    "hold back": "UPDATE outbox SET due = ? WHERE alarm IN (SELECT id FROM alarms WHERE stream = ?) AND attempts = 0"
                 " AND json_extract(body, '$.type') = 'alarm.raised'",
    "audit": "INSERT INTO audit (t, stream, action, by, address, about) VALUES (?, ?, ?, ?, ?, ?)",
}  # fmt: skip
LOGGED_BYTES = 50  # of what is stored beside samples
OF_VERSION = ("test", "row", "since alarm")  # what a new model version does not take over


@dataclass(slots=True)
class Pending:
    """What is new since the last commit, beside the state itself."""

    rows: dict[tuple[str, Any], tuple[Any, ...]] = field(default_factory=dict)  # by statement, and what is replaced
    alarms: list[AlarmEvent] = field(default_factory=list)
    versions: list[tuple[int, float, bytes]] = field(default_factory=list)  # that begin: number, time, definition

    def put(self, statement: str, key: Any, *values: Any) -> None:
        """Write these values with the next commit, instead of those that were put under the same key."""
        self.rows[statement, key] = values

    def begin_version(self, number: int, since: float, definition: bytes) -> None:
        """Begin a model version with the next commit; what is only about the old one is not written any more."""
        self.versions.append((number, since, definition))
        self.rows = self._rows_of_any_version()

    def _rows_of_any_version(self) -> dict[tuple[str, Any], tuple[Any, ...]]:
        return {key: values for key, values in self.rows.items() if key[0] not in OF_VERSION}

    def followed_by(self, later: Pending) -> Pending:
        """Return what both hold, this first."""
        rows = self._rows_of_any_version() if later.versions else self.rows
        return Pending(rows | later.rows, self.alarms + later.alarms, self.versions + later.versions)


NOTHING = Pending()


class Logged(NamedTuple):
    """Samples of a stream, so that a start of the server learns them again: `n` samples were learned with them.

    `since` is when the model version began, which tells versions and streams of the same number apart.
    """

    stream: int
    since: float
    n: int
    last_post: float
    dtype: str
    rows: bytes

    @property
    def size(self) -> int:
        """About how many bytes it takes in the file."""
        return LOGGED_BYTES + len(self.rows)


class Change(NamedTuple):
    """What one stream becomes in the file: a new state, or samples that it learned after the state there."""

    stream: int
    n: int
    labels: int
    last_post: float
    state: bytes | None
    pending: Pending
    samples: Logged | None = None
