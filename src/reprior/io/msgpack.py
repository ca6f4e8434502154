"""msgpack records of a stream: rows as lists of numbers or as raw little-endian float32, alone or under a key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reprior._check import fail
from reprior._types import Matrix
from reprior.io.columns import no_column
from reprior.io.ndjson import rows_of
from reprior.io.table import Choice


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
        import msgpack

        unpacker = msgpack.Unpacker(max_buffer_size=len(data) + 1, strict_map_key=False)
        unpacker.feed(data)
        records, end = [], 0
        try:
            for record in unpacker:
                records.append(record)
                end = unpacker.tell()  # not only after the last: half a record behind it counts as read
        except (ValueError, msgpack.UnpackException) as error:
            fail(self.caller, "input", "be msgpack values one after the other", repr(str(error)))
        return records, end

    def length(self, data: bytes, count: int) -> int:
        import msgpack

        unpacker = msgpack.Unpacker(max_buffer_size=len(data) + 1, strict_map_key=False)
        unpacker.feed(data)
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
        return rows_of(records, self.key, None, self.n_classes, "input", first, self.caller)

    def write(self, records: list[Any], rows: Matrix) -> bytes:
        if self.key is None:
            return pack_raw(rows) if self.raw else pack_lists(rows)
        import msgpack

        values = [row.tobytes() for row in rows.astype("<f4")] if self.raw else rows.tolist()
        pack = msgpack.Packer().pack
        return b"".join(pack({**r, self.key: v}) for r, v in zip(records, values, strict=True))

    def write_value(self, value: dict[str, Any]) -> bytes:
        import msgpack

        packed: bytes = msgpack.packb(value)
        return packed

    @property
    def named(self) -> tuple[str, ...] | None:
        return None


def headed(head: bytes, body: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    """Return rows of bytes with the same few bytes before each."""
    out = np.empty((len(body), len(head) + body.shape[1]), np.uint8)
    out[:, : len(head)] = np.frombuffer(head, np.uint8)
    out[:, len(head) :] = body
    return out.tobytes()


def array_head(short: int, codes: tuple[int, int], size: int) -> bytes:
    """Return the msgpack header of something of `size` items or bytes."""
    if size <= short:
        return bytes([0x90 | size])
    return (
        bytes([codes[0]]) + size.to_bytes(2, "big") if size < 1 << 16 else bytes([codes[1]]) + size.to_bytes(4, "big")
    )


def pack_lists(rows: Matrix) -> bytes:
    """Return each row as a msgpack list of float64: all rows at once, since they have one layout."""
    n, k = rows.shape
    body = np.empty((n, k, 9), np.uint8)
    body[:, :, 0] = 0xCB
    body[:, :, 1:] = rows.astype(">f8").view(np.uint8).reshape(n, k, 8)
    return headed(array_head(15, (0xDC, 0xDD), k), body.reshape(n, 9 * k))


def pack_raw(rows: Matrix) -> bytes:
    """Return each row as msgpack bytes that hold its float32 values."""
    body = np.ascontiguousarray(rows, "<f4").view(np.uint8)
    size = body.shape[1]
    head = bytes([0xC4, size]) if size < 256 else array_head(0, (0xC5, 0xC6), size)
    return headed(head, body)


def msgpack_form(data: bytes, choice: Choice, n_classes: int, label: str | None) -> tuple[MsgpackForm, int] | None:
    """Return the form of the first msgpack value that is no mere label, once it is there whole, and where it starts."""
    try:
        import msgpack
    except ImportError as error:
        raise ImportError(
            "msgpack streams need msgpack. In the folder of reprior's source: pip install '.[stream]'"
        ) from error
    unpacker = msgpack.Unpacker(max_buffer_size=len(data) + 1, strict_map_key=False)
    unpacker.feed(data)
    key, start = choice.columns or "proba", 0
    try:
        while isinstance(value := unpacker.unpack(), dict) and label in value and key not in value:
            start = unpacker.tell()
    except msgpack.OutOfData:
        return None
    except (ValueError, msgpack.UnpackException) as error:
        fail(choice.caller, "input", "be NDJSON, CSV or msgpack", repr(str(error)))
    if not isinstance(value, dict):
        return MsgpackForm(None, isinstance(value, bytes), n_classes, choice.caller), start
    if key not in value:
        no_column(choice, "input", key, {str(k): type(v).__name__ for k, v in value.items()})
    return MsgpackForm(key, isinstance(value[key], bytes), n_classes, choice.caller), start
