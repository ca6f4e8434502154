"""Columns of whatever offers the Arrow C data interface, read without pyarrow.

The structures are those of https://arrow.apache.org/docs/format/CDataInterface.html.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    byref,
    c_char,
    c_char_p,
    c_int,
    c_int64,
    c_void_p,
    cast,
    py_object,
    pythonapi,
)
from typing import Any, NamedTuple

import numpy as np

NUMBERS = dict(zip("efgcCsSiIlL", ("f2", "f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"), strict=True))
DECIMAL_FORMAT = re.compile(r"d:\d+,(\d+)(?:,128)?")  # whole numbers of 128 bits, times a power of ten
BOOL = "b"


class Schema(Structure):
    """ArrowSchema."""


Schema._fields_ = [
    ("format", c_char_p), ("name", c_char_p), ("metadata", c_void_p), ("flags", c_int64), ("n_children", c_int64),
    ("children", POINTER(POINTER(Schema))), ("dictionary", POINTER(Schema)),
    ("release", CFUNCTYPE(None, POINTER(Schema))), ("private_data", c_void_p),
]  # fmt: skip


class Array(Structure):
    """ArrowArray."""


Array._fields_ = [
    ("length", c_int64), ("null_count", c_int64), ("offset", c_int64), ("n_buffers", c_int64), ("n_children", c_int64),
    ("buffers", POINTER(c_void_p)), ("children", POINTER(POINTER(Array))), ("dictionary", POINTER(Array)),
    ("release", CFUNCTYPE(None, POINTER(Array))), ("private_data", c_void_p),
]  # fmt: skip


class Stream(Structure):
    """ArrowArrayStream."""


Stream._fields_ = [
    ("get_schema", CFUNCTYPE(c_int, POINTER(Stream), POINTER(Schema))),
    ("get_next", CFUNCTYPE(c_int, POINTER(Stream), POINTER(Array))),
    ("get_last_error", CFUNCTYPE(c_char_p, POINTER(Stream))),
    ("release", CFUNCTYPE(None, POINTER(Stream))), ("private_data", c_void_p),
]  # fmt: skip

pythonapi.PyCapsule_GetPointer.restype = c_void_p
pythonapi.PyCapsule_GetPointer.argtypes = [py_object, c_char_p]


class Field(NamedTuple):
    """Name and format of a column; the format is "" if its values are no numbers."""

    name: str
    format: str

    @property
    def is_number(self) -> bool:
        return self.format in NUMBERS or self.format == BOOL or DECIMAL_FORMAT.fullmatch(self.format) is not None

    @property
    def is_whole(self) -> bool:
        return self.format == BOOL or NUMBERS.get(self.format, "f")[0] in "iu"


class Columns(NamedTuple):
    """The columns of a table, open: `fields`, and `batches` whose memory is released when the context ends."""

    fields: list[Field]
    batches: list[Any]

    def numbers(self, places: Sequence[int], most: int | None = None) -> np.ndarray[Any, Any]:
        """Return some columns (n, len(places)) of numbers as one array of floats, NaN where a value is null."""
        formats = [self.fields[j].format for j in places]
        wide = any(NUMBERS.get(code, "f8") not in ("f2", "f4") for code in formats)
        sizes = [batch.length for batch in self.batches]
        out = np.empty((len(places), sum(sizes)), np.float64 if wide else np.float32)
        first = 0
        for batch, size in zip(self.batches, sizes, strict=True):
            for row, j, code in zip(out, places, formats, strict=True):
                row[first : first + size] = values(batch.children[j].contents, code, batch.offset, size)
            first += size
            if most is not None and first >= most:
                return out[:, :most].T
        return out.T


def is_arrow(x: Any) -> bool:
    """Return whether `x` offers its columns through the Arrow C data interface."""
    return hasattr(x, "__arrow_c_stream__") or hasattr(x, "__arrow_c_array__")


@contextmanager
def opened(x: Any) -> Iterator[Columns | None]:
    """Yield the columns of `x`; None if it has no columns but is one vector."""
    schema, batches = Schema(), []
    try:
        if hasattr(x, "__arrow_c_stream__"):
            capsule = x.__arrow_c_stream__()
            stream = pointer(capsule, b"arrow_array_stream", Stream)
            check(stream, stream.contents.get_schema(stream, byref(schema)))
            while True:
                batch = Array()
                check(stream, stream.contents.get_next(stream, byref(batch)))
                if not batch.release:
                    break
                batches.append(batch)
        else:
            parts = x.__arrow_c_array__()
            # what is moved out of a capsule is ours to release
            schema = moved(pointer(parts[0], b"arrow_schema", Schema))
            batches.append(moved(pointer(parts[1], b"arrow_array", Array)))
        if schema.format != b"+s":
            yield None
        else:
            yield Columns([field(schema.children[j].contents) for j in range(schema.n_children)], batches)
    finally:
        for part in (*batches, schema):
            if part.release:
                part.release(byref(part))


def pointer(capsule: Any, name: bytes, kind: Any) -> Any:
    """Return what a capsule points to."""
    return cast(pythonapi.PyCapsule_GetPointer(capsule, name), POINTER(kind))


def moved(there: Any) -> Any:
    """Return a copy of a structure, and mark the one `there` as released."""
    part = type(there.contents).from_buffer_copy(there.contents)
    there.contents.release = type(part.release)()
    return part


def check(stream: Any, code: int) -> None:
    """Raise what the producer of a stream says of an error."""
    if code:
        message = stream.contents.get_last_error(stream) or b""
        raise OSError(code, message.decode(errors="replace"))


def field(schema: Any) -> Field:
    """Return name and format of a child; one whose values are looked up in a dictionary holds no numbers."""
    out = Field((schema.name or b"").decode(), "" if schema.dictionary else schema.format.decode())
    return out if out.is_number else out._replace(format="")


def values(array: Any, code: str, before: int, size: int) -> np.ndarray[Any, Any]:
    """Return `size` numbers of a column, from `before` on, as floats."""
    first = array.offset + before
    if code == BOOL:
        out = bits(array.buffers[1], first, size).astype(np.float64)
    elif code in NUMBERS:
        out = memory(array.buffers[1], NUMBERS[code], first, size)
    else:
        low, high = memory(array.buffers[1], "i8", 2 * first, 2 * size).reshape(-1, 2).T
        small = high == low >> 63  # the upper half holds the sign alone
        digits = int(DECIMAL_FORMAT.fullmatch(code)[1])  # type: ignore[index]
        out = np.where(small, low, high * 2.0**64 + low.view(np.uint64)) / 10.0**digits
    if array.null_count and array.buffers[0]:
        out = np.where(bits(array.buffers[0], first, size), out, np.nan)
    return out


def memory(address: int | None, kind: str, first: int, size: int) -> np.ndarray[Any, Any]:
    """Return `size` values of a buffer, from the value `first` on."""
    if not size or address is None:
        return np.empty(0, kind)
    width = np.dtype(kind).itemsize
    return np.frombuffer(memoryview((c_char * (size * width)).from_address(address + first * width)), kind)


def bits(address: int, first: int, size: int) -> np.ndarray[Any, Any]:
    """Return `size` bits of a buffer, from the bit `first` on, as bool."""
    packed = memory(address, "u1", first // 8, (first % 8 + size + 7) // 8)
    return np.unpackbits(packed, bitorder="little")[first % 8 : first % 8 + size].astype(bool)
