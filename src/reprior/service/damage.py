"""Checksums of stored values: SQLite notices damage to its own structure, but not to the values in it."""

from __future__ import annotations

import logging
from typing import Any
from zlib import crc32

log = logging.getLogger("reprior.service")
BYTES = 4  # of a checksum


def with_checksum(data: bytes, *beside: Any) -> bytes:
    """Return `data` followed by a CRC-32 of it and of the values stored `beside` it."""
    return data + crc32(repr(beside).encode(), crc32(data)).to_bytes(BYTES, "little")


def intact(stored: Any, *beside: Any) -> bytes | None:
    """Return the data without its checksum; None if it, or a value `beside` it, has changed since `with_checksum`."""
    data = stored[:-BYTES] if isinstance(stored, bytes) else b""
    return data if with_checksum(data, *beside) == stored else None


class Damage:
    """What was found damaged in a file, one sentence for each place, until it is found intact."""

    def __init__(self) -> None:
        self._found: dict[object, str] = {}

    def note(self, place: object, sentence: str | None) -> None:
        """Remember and log that a place is damaged; without a sentence it is intact."""
        if sentence is None:
            self._found.pop(place, None)
        elif place not in self._found:
            self._found[place] = sentence
            log.error("%s", sentence)

    def forget(self, stream: int) -> None:
        """Forget what is noted of a stream that is deleted."""
        for place in [("state", stream), ("history", stream)]:
            self.note(place, None)

    def sentences(self) -> list[str]:
        """Return a sentence for each damaged place."""
        return list(self._found.values())
