"""msgpack records of a stream: rows as lists of numbers or as raw little-endian float32, alone or under a key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reprior._check import fail
from reprior._types import Matrix
from reprior.io.columns import no_column
from reprior.io.ndjson import NdjsonForm
from reprior.io.table import Choice


def library() -> Any:
    """Return the module msgpack, or say how to get it."""
    try:
        import msgpack
    except ImportError as error:
        raise ImportError(
            "msgpack streams need msgpack. In the folder of reprior's source: pip install '.[stream]'"
        ) from error
    return msgpack


def unpacker_of(data: bytes) -> Any:
    """Return what unpacks the values in `data`, of which the last may not be whole."""
    unpacker = library().Unpacker(max_buffer_size=len(data) + 1, strict_map_key=False)
    unpacker.feed(data)
    return unpacker


@dataclass(frozen=True, slots=True)
class MsgpackForm:
    """msgpack values one after the other."""

    key: str | None
    raw: bool
    n_classes: int
    caller: str
    opening: str = ""
    unused: tuple[str, ...] = ()

    def cut(self, data: bytes) -> tuple[list[Any], int]:
        unpacker, records, end = unpacker_of(data), [], 0
        try:
            for record in unpacker:
                records.append(record)
                end = unpacker.tell()  # not only after the last: half a record behind it counts as read
        except (ValueError, library().UnpackException) as error:
            fail(self.caller, "input", "be msgpack values one after the other", repr(str(error)))
        return records, end

    def length(self, data: bytes, count: int) -> int:
        unpacker = unpacker_of(data)
        for _ in range(count):
            unpacker.skip()
        return int(unpacker.tell())

    def fields(self, records: list[Any], first: int) -> list[dict[str, Any]]:
        return [record if isinstance(record, dict) else {} for record in records]

    def bare(self, fields: dict[str, Any]) -> bool:
        return self.key is not None and bool(fields) and self.key not in fields

    def rows(self, records: list[Any], first: int) -> Matrix:
        if self.raw:
            size = 4 * self.n_classes
            try:
                joined = b"".join(records if self.key is None else [record[self.key] for record in records])
                if len(joined) == size * len(records):
                    return np.frombuffer(joined, "<f4").reshape(-1, self.n_classes)
            except (TypeError, KeyError):
                pass
            for number, record in enumerate(records):
                row = record if self.key is None else record.get(self.key) if isinstance(record, dict) else None
                if not isinstance(row, bytes) or len(row) != size:
                    fail(self.caller, "input", f"have {size} bytes of float32 in every row", repr(row)[:80],
                         place=f"row {first + number}")  # fmt: skip
        return NdjsonForm(self.key, None, self.n_classes, self.caller).numbers(records, first)

    def write(self, records: list[Any], rows: Matrix) -> bytes:
        values = [row.tobytes() for row in rows.astype("<f4")] if self.raw else rows.tolist()
        if self.key is not None:
            values = [{**record, self.key: value} for record, value in zip(records, values, strict=True)]
        return b"".join(map(library().Packer().pack, values))

    def write_value(self, value: dict[str, Any]) -> bytes:
        packed: bytes = library().packb(value)
        return packed

    @property
    def named(self) -> tuple[str, ...] | None:
        return None


def msgpack_form(data: bytes, choice: Choice, n_classes: int, label: str | None) -> tuple[MsgpackForm, int] | None:
    """Return the form of the first msgpack value that is no mere label, once it is there whole, and where it starts."""
    unpacker, key, start = unpacker_of(data), choice.columns or "proba", 0
    try:
        while isinstance(value := unpacker.unpack(), dict) and label in value and key not in value:
            start = unpacker.tell()
    except library().OutOfData:
        return None
    except (ValueError, library().UnpackException) as error:
        fail(choice.caller, "input", "be NDJSON, CSV or msgpack", repr(str(error)))
    if not isinstance(value, dict):
        return MsgpackForm(None, isinstance(value, bytes), n_classes, choice.caller), start
    if key not in value:
        no_column(choice, "input", key, {str(k): type(v).__name__ for k, v in value.items()})
    return MsgpackForm(key, isinstance(value[key], bytes), n_classes, choice.caller), start
