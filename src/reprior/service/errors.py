"""Errors: the status and the sentence that a client gets, and the line in the log.

The log has one line per event, as text or JSON, without stack traces and without paths of this machine.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any


class RequestError(Exception):
    """An expected error; `status` and `headers` are those of the answer."""

    status = 400
    headers: dict[str, str] = {}  # noqa: RUF012  (nobody changes it)


class Refused(RequestError):
    """A request that cannot be answered as it is."""

    def __init__(self, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.headers = status, headers or {}


class Missing(RequestError):
    """There is no such thing."""

    status = 404


class Conflict(RequestError):
    """It is there already, and different."""

    status = 409


class Unavailable(RequestError):
    """Try again later; the sentence says why."""

    status, headers = 503, {"Retry-After": "1"}


class StoreError(Unavailable):
    """The file cannot be read or written now. What was to be written is kept and retried."""


def place(error: BaseException) -> str:
    """Return the kind of an error and where it was raised, without a path of this machine."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {frames[-1].name}, line {frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"


class Text(logging.Formatter):
    """A line of text; of an exception its kind and where it was raised."""

    def formatException(self, ei: Any) -> str:
        return place(ei[1])

    def formatStack(self, stack_info: str) -> str:
        return ""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(super().format(record).split("\n"))


class Json(Text):
    """An object per line: time, level, logger, message and, of an exception, `error`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage(),
        }  # fmt: skip
        if record.exc_info and record.exc_info[1]:
            line["error"] = place(record.exc_info[1])
        return json.dumps(line)


@contextmanager
def log_to_stderr(form: str, level: str) -> Iterator[None]:
    """Send every log line to stderr in this form, inside the context."""
    handler, root = logging.StreamHandler(), logging.getLogger()
    handler.setFormatter(Json() if form == "json" else Text("%(asctime)s %(levelname)s %(message)s"))
    before = root.level
    root.addHandler(handler)
    root.setLevel(level.upper())
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
