"""Records of NDJSON, CSV and msgpack: their probabilities, and the same records with corrected ones.

Streams have all three kinds, distinguished by their first byte. Files have NDJSON.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import IO, Any, NamedTuple

import numpy as np

from reprior._check import fail, listed
from reprior._check.frames import FLOAT, LIST, OTHER, Column, number_column
from reprior._types import Matrix
from reprior.io.files import FIRST_BYTES, check_header, lines_of

from reprior.io.table import (  # isort: skip
    LABEL_NAMES, SET, Choice, Chunk, Correct, Opener, Part, user_names, choose, no_column, places_of, refuse_absent,
    refuse_mixed, refuse_set_column, set_names,
)  # fmt: skip

JSON, CSV, MSGPACK = "json", "csv", "msgpack"
LINES = 4096  # of a file of NDJSON, parsed at once
UTF8_MARK = b"\xef\xbb\xbf"  # that some programs put before UTF-8


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; refuse one that has a key twice, because its value would be ambiguous."""
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!a} twice in one object")
    return value


DECODER = json.JSONDecoder(object_pairs_hook=unique_keys)
ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def parse_lines(lines: list[bytes], name: str, first: int, caller: str) -> list[Any]:
    """Return the JSON values of lines, one per line."""
    values: list[Any] = []
    for line in lines:
        try:
            values.append(DECODER.decode((line if values else line.removeprefix(UTF8_MARK)).decode()))
        except (ValueError, RecursionError) as error:
            place = f"row {first + len(values)}"
            fail(caller, name, "hold one JSON value on each line", repr(str(error)[:120]), place=place)
    return values


def json_line(value: Any) -> bytes:
    """Return a value as one line of JSON; half a surrogate pair, which is no text, leaves escaped as it came."""
    try:
        return ENCODER.encode(value).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def cells(line: bytes) -> list[str]:
    """Return the values of a CSV line; none if it is no such line."""
    try:
        return next(csv.reader([line.decode().rstrip("\r\n")], strict=True))
    except (ValueError, csv.Error, StopIteration):
        return []


def header_names(line: bytes) -> list[str]:
    """Return the names of the columns in the header of CSV."""
    return [name.strip() for name in cells(line.removeprefix(UTF8_MARK))]


def msgpack_library() -> Any:
    """Return the module msgpack, or say how to get it."""
    try:
        import msgpack
    except ImportError as error:
        raise ImportError(
            "msgpack streams need msgpack. In the folder of reprior's source: pip install '.[stream]'"
        ) from error
    return msgpack


def packed_values(data: bytes, caller: str, rule: str) -> Iterator[tuple[Any, int, int]]:
    """Yield each whole msgpack value, where it starts and where it ends; bytes that are none break the `rule`."""
    unpacker, start = msgpack_library().Unpacker(max_buffer_size=len(data) + 1, strict_map_key=False), 0
    unpacker.feed(data)
    try:
        for value in unpacker:
            end = unpacker.tell()
            yield value, start, end
            start = end
    except (ValueError, msgpack_library().UnpackException) as error:
        fail(caller, "input", rule, repr(str(error)))


def whole_lines(data: bytes, start: int = 0) -> Iterator[tuple[bytes, int, int]]:
    """Yield each whole line that holds anything, without its end, where it starts and where it ends."""
    while end := data.find(b"\n", start) + 1:
        if (line := data[start : end - 1]).strip():
            yield line, start, end
        start = end


@dataclass(frozen=True, slots=True)
class Form:
    """How records hold probabilities: as a list, in a field that holds a list, or in one field per class."""

    kind: str  # JSON, CSV or MSGPACK
    n_classes: int
    caller: str
    key: str | None = None  # the field with the list
    columns: tuple[str, ...] = ()  # the fields of the classes, if records name them
    raw: bool = False  # lists are little-endian float32 bytes
    opening: str = ""  # the header of CSV
    unused: tuple[str, ...] = ()  # numbers that are no classes
    name: str = "input"

    @property
    def header(self) -> list[str]:
        """The names of the columns of CSV."""
        return header_names(self.opening.encode())

    def split(self, data: bytes) -> tuple[list[Any], list[int]]:
        """Return the whole records of what has arrived, and how many bytes the first 0, 1, 2, … of them take."""
        if self.kind == MSGPACK:
            pieces = [*packed_values(data, self.caller, "be msgpack values one after the other")]
        else:
            pieces = [*whole_lines(data)]
        ends = [0, *(end for _, _, end in pieces)]
        if self.kind != MSGPACK:
            ends[-1] = data.rfind(b"\n") + 1  # empty lines at the end are read, too
        return [record for record, _, _ in pieces], ends

    def values(self, records: list[Any], first: int) -> list[Any]:
        """Return records as lists or objects; of CSV the texts by column, {} for a line of another length."""
        if self.kind == JSON:
            return parse_lines(records, self.name, first, self.caller)
        if self.kind == MSGPACK:
            return records
        names, lines = self.header, map(cells, records)
        return [dict(zip(names, line, strict=True)) if len(line) == len(names) else {} for line in lines]

    def fields(self, records: list[Any], first: int) -> list[dict[str, Any]]:
        """Return what stands in records by name."""
        return [value if isinstance(value, dict) else {} for value in self.values(records, first)]

    def lacks_probabilities(self, fields: dict[str, Any]) -> bool:
        """Return whether a record holds no probabilities, because it has the label of an earlier one, for example."""
        held = self.columns if self.key is None else (self.key,)
        if self.kind == CSV:
            return bool(fields) and not any(fields[name].strip() for name in held)
        return bool(held and fields) and not any(name in fields for name in held)

    def rows(self, records: list[Any], first: int) -> Matrix:
        """Return the probabilities (n, K) of records; the first of them has the number `first`."""
        return self.numbers(self.values(records, first), first, records if self.kind == CSV else None)

    def numbers(self, values: list[Any], first: int, shown: list[bytes] | None = None) -> Matrix:
        """Return the probabilities (n, K) of values, or refuse the first without K numbers, as `shown` in its place."""
        try:
            array = np.array([self.probabilities_in(value) for value in values])
            if array.shape == (len(values), self.n_classes) and array.dtype.kind in "fiu":
                return array if array.dtype.kind == "f" else array.astype(np.float64)
        except (KeyError, TypeError, ValueError, OverflowError):
            pass
        rule = f"have {self.n_classes} numbers in every row"
        if self.kind == CSV:
            rule = f"have {len(self.header)} values, numbers for the classes, on each line"
        elif self.raw:
            rule = f"have {4 * self.n_classes} bytes of float32 in every row"
        for number, value in enumerate(values):
            try:
                row = self.probabilities_in(value)
                good = len(row) == self.n_classes and (self.raw or all(type(p) in (int, float) for p in row))
            except (LookupError, TypeError, ValueError):
                good = False
            if not good:
                got = value if shown is None else shown[number].decode(errors="replace")
                if self.kind == CSV and got.count('"') % 2:
                    fail(self.caller, self.name, "close each quote on its line", repr(got)[:80],
                         place=f"row {first + number}", remedy="Use `reprior correct` for this file")  # fmt: skip
                fail(self.caller, self.name, rule, repr(got)[:80], place=f"row {first + number}")
        fail(self.caller, self.name, "have numbers of ordinary size in every row", "others",
             place=f"row {first} or after")  # fmt: skip

    def probabilities_in(self, value: Any) -> Any:
        """Return the probabilities that a value holds, as a list or array."""
        held: Any = value if self.key is None else value[self.key]
        held = [value[name] for name in self.columns] if self.columns else held
        if self.raw:
            return np.frombuffer(held, "<f4")
        return [float(text) for text in held] if self.kind == CSV else held

    def replaced(self, value: Any, row: Any) -> Any:
        """Return a value with other probabilities in it, a list or bytes."""
        if self.columns:
            return {**value, **dict(zip(self.columns, row, strict=True))}
        return row if self.key is None else {**value, self.key: row}

    def write(self, records: list[Any], rows: Matrix) -> bytes:
        """Return records with other probabilities (n, K) as bytes."""
        values = self.values(records, 0) if self.columns or self.key is not None else records
        lists = [row.tobytes() for row in rows.astype("<f4")] if self.raw else rows.tolist()
        replaced = [self.replaced(value, row) for value, row in zip(values, lists, strict=True)]
        if self.kind == JSON:
            return b"".join(map(json_line, replaced))
        if self.kind == MSGPACK:
            return b"".join(map(msgpack_library().Packer().pack, replaced))
        text, end = io.StringIO(), "\r\n" if self.opening.endswith("\r\n") else "\n"
        csv.writer(text, lineterminator=end).writerows(value.values() for value in replaced)
        return text.getvalue().encode()

    def write_value(self, value: dict[str, Any]) -> bytes:
        """Return another value to write between records."""
        packed: bytes = msgpack_library().packb(value) if self.kind == MSGPACK else json_line(value)
        return packed


class Roles(NamedTuple):
    """Where records have a label, the name by which a later label may call them, and their time: no probabilities."""

    label: str | None = None
    name: str | None = None
    time: str | None = None


def recognise(data: bytes, choice: Choice, n_classes: int, roles: Roles) -> tuple[Form, int] | None:
    """Return the form that the first record has, and the bytes that belong to no record; None if more is needed."""
    if not data:
        return None
    kind = next((kind for magic, kind in FIRST_BYTES.items() if data.startswith(magic)), None)
    if kind and b"\0" in data[:4096]:  # a CSV header may begin with PAR1, too
        fail(choice.caller, "input", "be NDJSON, CSV or msgpack", f"a file of the kind {kind}",
             remedy="Use `reprior correct` for files")  # fmt: skip
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):  # marks of UTF-16
        check_header(data[:40], choice.caller, "input")
    packed = data[0] >= 0x80 and not data.startswith(UTF8_MARK)
    mark = len(UTF8_MARK) if data.startswith(UTF8_MARK) else 0
    pieces = packed_values(data, choice.caller, "be NDJSON, CSV or msgpack") if packed else whole_lines(data, mark)
    for value, start, end in pieces:
        if not packed:
            if value.lstrip()[:1] not in (b"{", b"["):
                return csv_form(data[start:end], data[end:].partition(b"\n")[0], choice, n_classes, roles), end
            value = parse_lines([value], "input", 0, choice.caller)[0]
        if isinstance(value, dict) and roles.label in value and value.keys() <= {*roles}:
            continue  # the label of a record that came before
        form, _ = form_of(value, choice, MSGPACK if packed else JSON, aside=roles)
        return replace(form, columns=form.columns and matched(form.columns, choice), n_classes=n_classes), start
    return None


def value_column(key: str, value: Any) -> Column:
    """Return what a field holds, by its first value."""
    if type(value) in (int, float):
        return number_column(key, np.array([value]))
    return Column(key, LIST if isinstance(value, (list, bytes)) else OTHER)


def check_aside(value: Any, choice: Choice, name: str) -> None:
    """Refuse a first value without a field that an option names."""
    for wanted in choice.aside:
        if not isinstance(value, dict):
            fail(choice.caller, name, f"have {wanted!r} in every row", "a list", remedy="Write objects with both")
        refuse_absent([wanted], {key: type(item).__name__ for key, item in value.items()}, choice, name)


def form_of(
    value: Any, choice: Choice, kind: str = JSON, name: str = "input", aside: Sequence[str | None] = ()
) -> tuple[Form, str | None]:
    """Return the form that the first value has, and the field of its label; `aside` are fields of no probabilities."""
    form = Form(kind, 0, choice.caller, name=name)
    if isinstance(value, (list, bytes)):
        if choice.with_labels and not choice.aside:
            no_column(choice, name, "label", {"(a list)": "list"})
        check_aside(value, choice, name)
        return replace(form, n_classes=len(value), raw=isinstance(value, bytes)), None
    if not isinstance(value, dict):
        fail(choice.caller, name, "hold a list or an object on each line", type(value).__name__)
    types = {key: type(item).__name__ for key, item in value.items()}
    kinds = [type(item) for item in value.values()]
    if not choice.columns and not {list, bytes} & {*kinds} and kinds.count(int) + kinds.count(float) < 2:
        refuse_nested(value, choice, name)
    present = [key for key in aside if key in value]
    chosen = choose([value_column(key, item) for key, item in value.items()], types, choice, name, present)
    if not chosen.is_list:
        return replace(form, columns=chosen.names, n_classes=len(chosen.names), unused=chosen.unused), chosen.label
    held = value[chosen.names[0]]
    return replace(form, key=chosen.names[0], n_classes=len(held), raw=isinstance(held, bytes)), chosen.label


def refuse_nested(value: dict[str, Any], choice: Choice, name: str) -> None:
    """Refuse a record that holds its probabilities by class in an object under a key."""
    for key, item in value.items():
        if isinstance(item, dict) and item and all(type(p) in (int, float) for p in item.values()):
            fail(choice.caller, name, "have one key per class in each record, or a list of probabilities under one key",
                 f"an object under {key!r}", remedy="Move its keys to the top of the record")  # fmt: skip


def csv_form(line: bytes, row: bytes, choice: Choice, n_classes: int, roles: Roles) -> Form:
    """Return the form of records under this header; the first `row` may show that a column holds ids."""
    check_header(line, choice.caller, "input", choice.classes)
    form = Form(CSV, n_classes, choice.caller, opening=line.decode())
    columns = [Column(column, OTHER if column in LABEL_NAMES else FLOAT) for column in form.header]
    chosen = choose(columns, dict.fromkeys(form.header, ""), choice, "input", roles)
    if len(chosen.names) != n_classes:
        fail(choice.caller, "input", f"have one column for each of the {n_classes} classes", listed(chosen.names, 30),
             remedy="Name them with `--columns a,b,c` or `--columns first:last`")  # fmt: skip
    texts = dict(zip(form.header, cells(row), strict=False))
    whole = {name: int(text) for name, text in texts.items() if re.fullmatch(r"-?\d{1,18}", text)}
    if not choice.columns and {*chosen.names} != {*choice.classes}:
        refuse_mixed([value_column(name, whole.get(name, 0.5)) for name in chosen.names], choice, "input")
    return replace(form, columns=matched(chosen.names, choice), unused=chosen.unused)


def matched(classes: tuple[str, ...], choice: Choice) -> tuple[str, ...]:
    """Return the columns of records in the order of the source's classes; others than those are refused."""
    names = user_names(classes, len(classes), choice, "input")
    if names is None or not choice.classes or names == choice.classes:
        return classes
    remedy = "Choose the class columns with `--columns`; say what they are called with `--classes FILE`"
    return tuple(classes[j] for j in places_of(choice.classes, names, choice.caller, "input", remedy))


def form_from_json(fields: dict[str, Any], n_classes: int) -> Form:
    """Return the form with these stored fields; raise a ValueError if they are no form for `n_classes` classes."""
    form = Form(**fields | {name: tuple(fields[name]) for name in ("columns", "unused")})
    texts = (form.caller, form.name, form.opening, form.key or "", *form.columns, *form.unused)
    good = form.kind in (JSON, CSV, MSGPACK) and len(form.columns) in (0, n_classes)
    if form.n_classes != n_classes or not good or not all(isinstance(text, str) for text in texts):
        raise ValueError("no form")
    return form


def ndjson_part(name: str, opener: Opener, choice: Choice) -> Part:
    """Return the reader of an NDJSON file."""
    caller = choice.caller
    with opener() as file:
        line = next(lines_of(file, caller, name), b"")
    form, label = form_of(parse_lines([line], name, 0, caller)[0], choice, name=name)
    if form.n_classes < 2:
        fail(caller, name, "have at least two classes", form.n_classes)

    def parsed() -> Iterator[tuple[int, list[Any]]]:
        """Yield the values of some lines at a time, with the number of the first one's row."""
        first = 0
        with opener() as file:
            filled = lines_of(file, caller, name)
            while lines := list(islice(filled, LINES)):
                yield first, parse_lines(lines, name, first, caller)
                first += len(lines)

    def read() -> Iterator[Chunk]:
        for first, values in parsed():
            rows, labels = form.numbers(values, first), None
            if choice.with_labels:
                labels = np.array(fields_of(values, label))
                if labels.dtype == object:
                    row = next((i for i, value in enumerate(labels) if value is None), 0)
                    fail(caller, name, f"have {label!r} in every row", labels[row], place=f"row {first + row}")
            yield Chunk(rows, labels)

    def rewrite(file: IO[bytes], fn: Correct, names: Sequence[str] | None) -> None:
        if names is not None and form.key is None and not form.columns:
            fail(caller, name, "have an object on each line, to have room for sets", "a list")
        for first, values in parsed():
            made = fn(form.numbers(values, first))
            fixed = [form.replaced(v, r) for v, r in zip(values, made.rows.tolist(), strict=True)]
            if names is not None:
                refuse_set_column({k for v in fixed for k in v}, caller, name)
                fixed = [{**v, SET: s} for v, s in zip(fixed, set_names(made.inside, names), strict=True)]
            file.write(b"".join(map(json_line, fixed)))

    def column(wanted: str, choice: Choice) -> Iterator[list[Any]]:
        for first, values in parsed():
            if not first:
                check_aside(values[0], choice, name)
            yield fields_of(values, wanted)

    return Part(name, form.n_classes, read, rewrite, column, form.columns or None, unused=form.unused,
                columns=form.columns, label=label)  # fmt: skip


def fields_of(values: list[Any], name: str | None) -> list[Any]:
    """Return one field of each value; None where there is none."""
    return [value.get(name) if isinstance(value, dict) else None for value in values]
