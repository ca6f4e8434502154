"""The log: text or JSON, one line per event, without stack traces and without paths of this machine."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from reprior.service.supervise import place


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
def to_stderr(form: str, level: str) -> Iterator[None]:
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
