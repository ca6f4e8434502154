"""One JSON value per line, in files and in streams of records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any, NamedTuple

import numpy as np

from reprior._check import fail
from reprior._check.columns import LIST, OTHER, Column, number_column
from reprior._types import Matrix, Vector
from reprior.io.columns import choose, no_column
from reprior.io.files import lines_of
from reprior.io.table import Choice, Chunk, Opener, Part, Sets

LINES = 4096  # parsed at once


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; one that has a key twice says two things at once."""
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!a} twice in one object")
    return value


JSON = json.JSONDecoder(object_pairs_hook=unique)


def parse_lines(lines: list[bytes], name: str, first: int, caller: str) -> list[Any]:
    """Return the values of lines, each of which must be one by itself."""
    decode = JSON.decode
    values: list[Any] = []
    for line in lines:
        try:
            text = line.decode() if values else line.removeprefix(b"\xef\xbb\xbf").decode()  # some put a mark first
            values.append(decode(text))
        except (ValueError, RecursionError) as error:
            place = f"row {first + len(values)}"
            fail(caller, name, "hold one JSON value on each line", repr(str(error)[:120]), place=place)
    return values


def json_column(key: str, value: Any) -> Column:
    """Return what a key of a JSON object holds, by its first value."""
    if type(value) in (int, float):
        return number_column(key, np.array([value]))
    return Column(key, LIST if isinstance(value, list) else OTHER)


def dump(value: Any) -> bytes:
    """Return a value as one line; half a surrogate pair, which is no text, leaves escaped as it came."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def keyed(shares: Vector, classes: tuple[str, ...] | None) -> Any:
    """Return shares (K,) as {class: share}, or as a list where classes have no names."""
    return dict(zip(classes, shares.tolist(), strict=True)) if classes else shares.tolist()


def whole_lines(data: bytes) -> tuple[list[bytes], int]:
    """Return the lines that have ended, without empty ones, and the bytes up to there."""
    end = data.rfind(b"\n") + 1
    return [line for line in data[:end].split(b"\n") if line.strip()], end


def length_of_lines(data: bytes, count: int) -> int:
    """Return the number of bytes of the first `count` lines; empty lines are not counted."""
    end = 0
    while count:
        start, end = end, data.index(b"\n", end) + 1
        count -= bool(data[start:end].strip())
    return end


@dataclass(frozen=True, slots=True)
class NdjsonForm:
    """One JSON value per line: a list of K numbers, an object with this list under `key`, or one number per class.

    Other fields of an object stay as they are. `unused` are fields of numbers that the source does not name.
    """

    key: str | None
    classes: tuple[str, ...] | None
    n_classes: int
    caller: str
    opening: str = ""
    unused: tuple[str, ...] = ()
    name: str = "input"

    cut, length, write_value = staticmethod(whole_lines), staticmethod(length_of_lines), staticmethod(dump)

    @property
    def named(self) -> tuple[str, ...] | None:
        return self.classes

    def fields(self, records: list[Any], first: int) -> list[dict[str, Any]]:
        values = parse_lines(records, self.name, first, self.caller)
        return [value if isinstance(value, dict) else {} for value in values]

    def bare(self, fields: dict[str, Any]) -> bool:
        held = (self.key,) if self.key is not None else self.classes or ()
        return bool(held and fields) and not any(name in fields for name in held)

    def rows(self, records: list[Any], first: int) -> Matrix:
        return self.numbers(parse_lines(records, self.name, first, self.caller), first)

    def write(self, records: list[Any], rows: Matrix) -> bytes:
        if self.key is None and self.classes is None:
            return json.dumps(rows.tolist(), separators=(",", ":"))[1:-1].replace("],", "]\n").encode() + b"\n"
        values = parse_lines(records, self.name, 0, self.caller)
        return b"".join(dump(self.replaced(v, r)) for v, r in zip(values, rows, strict=True))

    def own(self, value: Any) -> Any:
        """Return the numbers that a parsed line holds."""
        if self.classes is not None:
            return [value[c] for c in self.classes]
        return value if self.key is None else value[self.key]

    def numbers(self, values: list[Any], first: int) -> Matrix:
        """Return the probabilities (n, K) of parsed lines, or refuse the first that has no K numbers."""
        try:
            array = np.array([self.own(value) for value in values])
            if array.shape == (len(values), self.n_classes) and array.dtype.kind in "fiu":
                return array.astype(np.float64, copy=False)
        except (KeyError, TypeError, ValueError, OverflowError):
            pass
        for number, value in enumerate(values):
            try:
                row = self.own(value)
                good = len(row) == self.n_classes and all(type(p) in (int, float) for p in row)
            except (KeyError, TypeError, IndexError):
                good = False
            if not good:
                fail(self.caller, self.name, f"have {self.n_classes} numbers in every row", repr(value)[:80],
                     place=f"row {first + number}")  # fmt: skip
        fail(self.caller, self.name, "have numbers of ordinary size in every row", "others",
             place=f"row {first} or after")  # fmt: skip

    def replaced(self, value: Any, row: Any) -> Any:
        """Return a parsed line with other probabilities in it."""
        numbers = row.tolist()
        if self.classes is not None:
            return {**value, **dict(zip(self.classes, numbers, strict=True))}
        return numbers if self.key is None else {**value, self.key: numbers}


class Recognised(NamedTuple):
    """The form of some lines, and the key of their labels."""

    form: NdjsonForm
    label: str | None = None


def recognise_json(value: Any, choice: Choice, name: str, aside: Sequence[str | None] = ()) -> Recognised:
    """Return the form that the first value has; `aside` are keys of no probabilities."""
    if isinstance(value, list) and (choice.by is not None or choice.with_labels):
        if choice.by is None:
            no_column(choice, name, "label", {"(a list)": "list"})
        fail(choice.caller, name, f"have {choice.by!r} in every row", "a list", remedy="Write objects with both")
    if isinstance(value, list):
        return Recognised(NdjsonForm(None, None, len(value), choice.caller, name=name))
    if not isinstance(value, dict):
        fail(choice.caller, name, "hold a list or an object on each line", type(value).__name__)
    types = {key: type(item).__name__ for key, item in value.items()}
    present = [key for key in aside if key in value]
    chosen = choose([json_column(key, item) for key, item in value.items()], types, choice, name, present)
    if chosen.is_list:
        key = chosen.names[0]
        return Recognised(NdjsonForm(key, None, len(value[key]), choice.caller, name=name), chosen.label)
    form = NdjsonForm(None, chosen.names, len(chosen.names), choice.caller, unused=chosen.unused, name=name)
    return Recognised(form, chosen.label)


def ndjson_part(name: str, opener: Opener, choice: Choice) -> Part:
    """Return the reader of an NDJSON file."""
    with opener() as file:
        line = next(lines_of(file, choice.caller, name), b"")
    value = parse_lines([line], name, 0, choice.caller)[0]
    form, label = recognise_json(value, choice, name)
    if form.n_classes < 2:
        fail(choice.caller, name, "have at least two classes", form.n_classes)

    def parsed() -> Iterator[tuple[int, list[Any]]]:
        """Yield the values of some lines at a time, with the number of the first one's row."""
        first = 0
        with opener() as file:
            filled = lines_of(file, choice.caller, name)
            while lines := list(islice(filled, LINES)):
                yield first, parse_lines(lines, name, first, choice.caller)
                first += len(lines)

    def read() -> Iterator[Chunk]:
        for first, values in parsed():
            rows = form.numbers(values, first)
            labels = None
            if choice.with_labels:
                labels = np.array([value.get(label) if isinstance(value, dict) else None for value in values])
                if labels.dtype == object:
                    row = next((i for i, value in enumerate(labels) if value is None), 0)
                    fail(choice.caller, name, f"have {label!r} in every row", labels[row], place=f"row {first + row}")
            yield Chunk(rows, labels)

    def rewrite(file: IO[bytes], fn: Callable[[Matrix], Matrix], sets: Sets | None = None, /) -> None:
        if sets is not None and not isinstance(value, dict):
            fail(choice.caller, name, "have an object on each line, to have room for sets", "a list")
        for first, values in parsed():
            rows = form.numbers(values, first)
            fixed = [form.replaced(v, r) for v, r in zip(values, fn(rows), strict=True)]
            if sets is not None:
                sets.refuse_taken({k for v in fixed for k in v}, choice.caller, name)
                fixed = [{**v, sets.name: s} for v, s in zip(fixed, sets.names(), strict=True)]
            file.write(b"".join(map(dump, fixed)))

    def groups() -> Iterator[list[Any]]:
        for _, values in parsed():
            yield [value.get(choice.by) if isinstance(value, dict) else None for value in values]

    return Part(name, form.n_classes, read, rewrite, form.classes, unused=form.unused, columns=form.classes or (),
                groups=groups if choice.by else None, label=label)  # fmt: skip
