"""One JSON value a line: a list of K numbers, an object with such a list, or an object with one number a class."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import IO, Any, NamedTuple

import numpy as np

from reprior._check import fail
from reprior._check.columns import LIST, OTHER, Column, number_column
from reprior._types import Matrix, Vector
from reprior.io.columns import choose, no_column
from reprior.io.files import lines_of
from reprior.io.table import Choice, Chunk, Opener, Part, Sets


class Layout(NamedTuple):
    """The key of the list of probabilities, or the classes that are keys themselves; the key of the label; and keys of
    numbers that were left aside because the source does not name them."""

    key: str | None
    classes: tuple[str, ...] | None
    label: str | None
    unused: tuple[str, ...]


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


def layout(value: Any, choice: Choice, name: str, aside: Sequence[str | None] = ()) -> Layout:
    """Return where the first value has its probabilities and its label; `aside` are keys of neither."""
    if isinstance(value, list) and choice.by is None and not choice.with_labels:
        return Layout(None, None, None, ())
    if isinstance(value, list):
        if choice.by is None:
            no_column(choice, name, "label", {"(a list)": "list"})
        fail(choice.caller, name, f"have {choice.by!r} in every row", "a list", remedy="Write objects with both")
    if not isinstance(value, dict):
        fail(choice.caller, name, "hold a list or an object on each line", type(value).__name__)
    types = {key: type(item).__name__ for key, item in value.items()}
    present = [key for key in aside if key in value]
    chosen = choose([json_column(key, item) for key, item in value.items()], types, choice, name, present)
    if chosen.is_list:
        return Layout(chosen.names[0], None, chosen.label, ())
    return Layout(None, chosen.names, chosen.label, chosen.unused)


def json_column(key: str, value: Any) -> Column:
    """Return what a key of a JSON object holds, by its first value."""
    if type(value) in (int, float):
        return number_column(key, np.array([value]))
    return Column(key, LIST if isinstance(value, list) else OTHER)


def rows_of(values: list[Any], key: str | None, classes: tuple[str, ...] | None, n_classes: int, name: str, first: int,
            caller: str) -> Matrix:  # fmt: skip
    """Return the probabilities (n, K) of parsed lines, or refuse the first that has no K numbers."""

    def numbers(value: Any) -> Any:
        return [value[c] for c in classes] if classes is not None else value if key is None else value[key]

    try:
        array = np.array([numbers(value) for value in values])
        if array.shape == (len(values), n_classes) and array.dtype.kind in "fiu":
            return array.astype(np.float64, copy=False)
    except (KeyError, TypeError, ValueError, OverflowError):
        pass
    for number, value in enumerate(values):
        try:
            row = numbers(value)
            good = len(row) == n_classes and all(type(p) in (int, float) for p in row)
        except (KeyError, TypeError, IndexError):
            good = False
        if not good:
            fail(
                caller, name, f"have {n_classes} numbers in every row", repr(value)[:80], place=f"row {first + number}"
            )
    fail(caller, name, "have numbers of ordinary size in every row", "others", place=f"row {first} or after")


def ndjson_part(name: str, opener: Opener, choice: Choice) -> Part:
    """Return the reader of an NDJSON file."""
    with opener() as file:
        line = next(lines_of(file, choice.caller, name), b"")
    value = parse_lines([line], name, 0, choice.caller)[0]
    key, classes, label, unused = layout(value, choice, name)
    n_classes = len(classes) if classes else len(value if key is None else value[key])
    if n_classes < 2:
        fail(choice.caller, name, "have at least two classes", n_classes)

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
            rows = rows_of(values, key, classes, n_classes, name, first, choice.caller)
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
            rows = rows_of(values, key, classes, n_classes, name, first, choice.caller)
            fixed = [replaced(v, key, classes, r) for v, r in zip(values, fn(rows), strict=True)]
            if sets is not None:
                sets.refuse_taken({k for v in fixed for k in v}, choice.caller, name)
                fixed = [{**v, sets.name: s} for v, s in zip(fixed, sets.names(), strict=True)]
            file.write(b"".join(map(dump, fixed)))

    def groups() -> Iterator[list[Any]]:
        for _, values in parsed():
            yield [value.get(choice.by) if isinstance(value, dict) else None for value in values]

    return Part(name, n_classes, read, rewrite, classes, unused=unused, columns=classes or (),
                groups=groups if choice.by else None, label=label)  # fmt: skip


def replaced(value: Any, key: str | None, classes: tuple[str, ...] | None, row: Any) -> Any:
    """Return a parsed line with other probabilities in it."""
    numbers = row.tolist()
    if classes is not None:
        return {**value, **dict(zip(classes, numbers, strict=True))}
    return numbers if key is None else {**value, key: numbers}


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
