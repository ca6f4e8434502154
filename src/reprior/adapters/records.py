"""Records of a stream: bytes cut into whole records, their rows, and corrected records as bytes of the same form.

Three forms, told apart by their first byte: NDJSON, CSV with a header, and msgpack (rows as lists of numbers or as raw
little-endian float32, alone or under a key).
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from reprior._check import fail
from reprior._types import Matrix, Vector
from reprior.adapters.files import LABEL_NAMES, MAGIC, Choice, missing, pick
from reprior.adapters.ndjson import dump, layout, numeric_rest, parse_lines, replaced, rows_of


class Form(Protocol):
    """How records look. `cut` returns the whole records of what has arrived and the bytes they take; `opening` goes
    before the first record written, `unused` are columns that the source does not name."""

    def cut(self, data: bytes) -> tuple[list[Any], int]: ...

    def rows(self, records: list[Any], first: int) -> Matrix: ...

    def write(self, records: list[Any], rows: Matrix) -> bytes: ...

    def write_prior(self, n: int, prior: Vector) -> bytes: ...

    @property
    def opening(self) -> str: ...

    @property
    def unused(self) -> tuple[str, ...]: ...


def whole_lines(data: bytes) -> tuple[list[bytes], int]:
    """Return the lines that have ended, without empty ones, and the bytes up to there."""
    end = data.rfind(b"\n") + 1
    return [line for line in data[:end].split(b"\n") if line.strip()], end


@dataclass(frozen=True, slots=True)
class NdjsonForm:
    """One JSON value a line; a number of other fields may stand beside the probabilities and stay as they are."""

    key: str | None
    classes: tuple[str, ...] | None
    n_classes: int
    caller: str
    opening: str = ""
    unused: tuple[str, ...] = ()

    def cut(self, data: bytes) -> tuple[list[Any], int]:
        return whole_lines(data)

    def rows(self, records: list[Any], first: int) -> Matrix:
        values = parse_lines(records, "input", first, self.caller)
        return rows_of(values, self.key, self.classes, self.n_classes, "input", first, self.caller)

    def write(self, records: list[Any], rows: Matrix) -> bytes:
        if self.key is None and self.classes is None:
            return json.dumps(rows.tolist(), separators=(",", ":"))[1:-1].replace("],", "]\n").encode() + b"\n"
        values = json.loads(b"[" + b",".join(records) + b"]")
        return b"".join(dump(replaced(v, self.key, self.classes, r)) for v, r in zip(values, rows, strict=True))

    def write_prior(self, n: int, prior: Vector) -> bytes:
        shares = prior.tolist()
        return dump({"n": n, "prior": dict(zip(self.classes, shares, strict=True)) if self.classes else shares})


@dataclass(frozen=True, slots=True)
class CsvForm:
    """Lines of values under a header; `columns` are the places of the classes, in order."""

    opening: str
    columns: tuple[int, ...]
    width: int
    caller: str
    unused: tuple[str, ...] = ()

    def cut(self, data: bytes) -> tuple[list[Any], int]:
        return whole_lines(data)

    def rows(self, records: list[Any], first: int) -> Matrix:
        for number, line in enumerate(records):
            try:
                fields = next(csv.reader([line.decode()]))
                np.array([fields[j] for j in self.columns], dtype=np.float64)
                good = len(fields) == self.width
            except (ValueError, IndexError, csv.Error):
                good = False
            if not good:
                fail(self.caller, "input", f"have {self.width} values, numbers for the classes, on each line",
                     repr(line.decode(errors="replace"))[:80], place=f"row {first + number}")  # fmt: skip
        table = csv.reader(line.decode() for line in records)
        return np.array([[row[j] for j in self.columns] for row in table], dtype=np.float64)

    def write(self, records: list[Any], rows: Matrix) -> bytes:
        text = io.StringIO()
        out = csv.writer(text, lineterminator="\n")
        for line, row in zip(csv.reader(line.decode() for line in records), rows.tolist(), strict=True):
            for j, value in zip(self.columns, row, strict=True):
                line[j] = repr(value)
            out.writerow(line)
        return text.getvalue().encode()

    def write_prior(self, n: int, prior: Vector) -> bytes:
        return b""  # a line of another kind would break the table


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

    def write_prior(self, n: int, prior: Vector) -> bytes:
        import msgpack

        packed: bytes = msgpack.packb({"n": n, "prior": prior.tolist()})
        return packed


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


def recognise(data: bytes, choice: Choice, n_classes: int) -> tuple[Form, int] | None:
    """Return the form that the first record has, and the bytes that belong to no record; None if more is needed."""
    caller = choice.caller
    if not data:
        return None
    kind = next((kind for magic, kind in MAGIC.items() if data.startswith(magic)), None)
    if kind and b"\0" in data[:4096]:  # a CSV header may begin with PAR1, too
        fail(caller, "input", "be NDJSON, CSV or msgpack", f"a file of the kind {kind}",
             remedy="Use `reprior correct` for files")  # fmt: skip
    if data[0] >= 0x80:
        return msgpack_form(data, choice, n_classes)
    end = data.find(b"\n") + 1
    if not end:
        return None
    line = data[:end]
    if not line.strip():
        found = recognise(data[end:], choice, n_classes)
        return found and (found[0], found[1] + end)
    if line.lstrip()[:1] in (b"{", b"["):
        (value,) = parse_lines([line], "input", 0, caller)
        key, classes, _ = layout(value, choice, "input")
        return NdjsonForm(key, classes, n_classes, caller, unused=numeric_rest(value, classes, choice)), 0
    try:
        header = next(csv.reader([line.decode()]))
    except ValueError:
        fail(caller, "input", "be NDJSON, msgpack or CSV in UTF-8", repr(line[:40]))
    names = [name.strip() for name in header]
    known = choice.classes and set(choice.classes) <= set(names)
    wanted = pick(choice.columns, names) if choice.columns else list(choice.classes) if known else names
    for name in wanted:
        if name not in names:
            missing(choice, "input", name, {column: "" for column in names})
    if len(wanted) != n_classes:
        fail(caller, "input", f"have one column for each of the {n_classes} classes", ", ".join(wanted[:30]),
             remedy="Name them with `--columns a,b,c` or `--columns first:last`")  # fmt: skip
    unused = () if choice.columns else tuple(name for name in names if name not in {*wanted, *LABEL_NAMES})
    return CsvForm(line.decode(), tuple(names.index(name) for name in wanted), len(names), caller, unused), end


def msgpack_form(data: bytes, choice: Choice, n_classes: int) -> tuple[Form, int] | None:
    """Return the form of the first msgpack value, if it has arrived whole."""
    try:
        import msgpack
    except ImportError as error:
        raise ImportError("msgpack streams need msgpack: pip install 'reprior[stream]'") from error
    unpacker = msgpack.Unpacker(max_buffer_size=len(data) + 1, strict_map_key=False)
    unpacker.feed(data)
    try:
        value = unpacker.unpack()
    except msgpack.OutOfData:
        return None
    except (ValueError, msgpack.UnpackException) as error:
        fail(choice.caller, "input", "be NDJSON, CSV or msgpack", repr(str(error)))
    key = None
    if isinstance(value, dict):
        key = choice.columns or "proba"
        if key not in value:
            missing(choice, "input", key, {str(k): type(v).__name__ for k, v in value.items()})
        value = value[key]
    return MsgpackForm(key, isinstance(value, bytes), n_classes, choice.caller), 0


def form_to_json(form: Form) -> list[Any]:
    """Return a form as JSON values."""
    return [type(form).__name__, asdict(form)]  # type: ignore[call-overload]


def form_from_json(value: list[Any]) -> Form:
    """Return the form that `form_to_json` described."""
    kinds: dict[str, Any] = {kind.__name__: kind for kind in (NdjsonForm, CsvForm, MsgpackForm)}
    fields = {name: tuple(item) if isinstance(item, list) else item for name, item in value[1].items()}
    form: Form = kinds[value[0]](**fields)
    return form
