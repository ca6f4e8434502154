"""Files of one JSON value per line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import IO, Any

import numpy as np

from reprior._check import fail
from reprior.io.files import lines_of
from reprior.io.records import dump, form_of, parse_lines
from reprior.io.table import SET, Choice, Chunk, Correct, Opener, Part, refuse_set_column, set_names

LINES = 4096  # parsed at once


def ndjson_part(name: str, opener: Opener, choice: Choice) -> Part:
    """Return the reader of an NDJSON file."""
    with opener() as file:
        line = next(lines_of(file, choice.caller, name), b"")
    value = parse_lines([line], name, 0, choice.caller)[0]
    form, label = form_of(value, choice, name=name)
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

    def rewrite(file: IO[bytes], fn: Correct, names: Sequence[str] | None) -> None:
        if names is not None and not isinstance(value, dict):
            fail(choice.caller, name, "have an object on each line, to have room for sets", "a list")
        for first, values in parsed():
            made = fn(form.numbers(values, first))
            fixed = [form.replaced(v, r) for v, r in zip(values, made.rows.tolist(), strict=True)]
            if names is not None:
                refuse_set_column({k for v in fixed for k in v}, choice.caller, name)
                fixed = [{**v, SET: s} for v, s in zip(fixed, set_names(made.inside, names), strict=True)]
            file.write(b"".join(map(dump, fixed)))

    def groups() -> Iterator[list[Any]]:
        for _, values in parsed():
            yield [value.get(choice.by) if isinstance(value, dict) else None for value in values]

    return Part(name, form.n_classes, read, rewrite, form.named, unused=form.unused, columns=form.columns,
                groups=groups if choice.by else None, label=label)  # fmt: skip
