"""Records of a stream: bytes cut into whole records, their rows, and corrected records as bytes of the same form.

Three forms, distinguished by their first byte: NDJSON, CSV with a header, and msgpack.
"""

from __future__ import annotations

import csv
import io
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from reprior._check import fail, listed
from reprior._check.columns import FLOAT, OTHER, Column
from reprior._types import Matrix
from reprior.io.columns import LABEL_NAMES, called, choose, places_of
from reprior.io.files import FIRST_BYTES
from reprior.io.msgpack import MsgpackForm, msgpack_form
from reprior.io.ndjson import NdjsonForm, dump, length_of_lines, parse_lines, recognise_json, whole_lines
from reprior.io.prepare import check_header
from reprior.io.table import Choice


class Form(Protocol):
    """How records look. `cut` returns the whole records of what has arrived and the bytes they take, `length` what
    the first so many take; `fields` what stands in records by name, `bare` whether that is no row but, say, the label
    of an earlier one; `named` are the classes in the order of `rows`, if records name them; `opening` goes before the
    first record written, `unused` are columns that the source does not name."""

    def cut(self, data: bytes) -> tuple[list[Any], int]: ...

    def length(self, data: bytes, count: int) -> int: ...

    def fields(self, records: list[Any], first: int) -> list[dict[str, Any]]: ...

    def bare(self, fields: dict[str, Any]) -> bool: ...

    def rows(self, records: list[Any], first: int) -> Matrix: ...

    def write(self, records: list[Any], rows: Matrix) -> bytes: ...

    def write_value(self, value: dict[str, Any]) -> bytes: ...

    @property
    def named(self) -> tuple[str, ...] | None: ...

    @property
    def opening(self) -> str: ...

    @property
    def unused(self) -> tuple[str, ...]: ...


def cells(line: bytes) -> list[str] | None:
    """Return the values of a CSV line, or None if it is none."""
    try:
        return next(csv.reader([line.decode().rstrip("\r\n")], strict=True))
    except (ValueError, csv.Error, StopIteration):
        return None


@dataclass(frozen=True, slots=True)
class CsvForm:
    """Lines of values under a header; `columns` are the places of the classes, in order."""

    opening: str
    columns: tuple[int, ...]
    width: int
    caller: str
    unused: tuple[str, ...] = ()

    cut, length, write_value = staticmethod(whole_lines), staticmethod(length_of_lines), staticmethod(dump)

    def fields(self, records: list[Any], first: int) -> list[dict[str, Any]]:
        return [dict(zip(self.names, (cells(line) or [])[: self.width], strict=False)) for line in records]

    def bare(self, fields: dict[str, Any]) -> bool:
        names = self.names
        return len(fields) == len(names) and not any(fields[names[j]].strip() for j in self.columns)

    def is_header(self, line: bytes) -> bool:
        """Return whether a line is the header once more, as at the start of another file."""
        return [name.strip() for name in cells(line.removeprefix(b"\xef\xbb\xbf")) or []] == self.names

    @property
    def names(self) -> list[str]:
        return [name.strip() for name in next(csv.reader([self.opening]))]

    def rows(self, records: list[Any], first: int) -> Matrix:
        out = np.empty((len(records), len(self.columns)))
        for number, line in enumerate(records):
            values = cells(line) or []
            try:
                out[number] = [float(values[j]) for j in self.columns]
            except (ValueError, IndexError):
                values = []
            if len(values) != self.width:
                fail(self.caller, "input", f"have {self.width} values, numbers for the classes, on each line",
                     repr(line.decode(errors="replace"))[:80], place=f"row {first + number}")  # fmt: skip
        return out

    def write(self, records: list[Any], rows: Matrix) -> bytes:
        text = io.StringIO()
        out = csv.writer(text, lineterminator="\r\n" if self.opening.endswith("\r\n") else "\n")
        for line, row in zip(records, rows.tolist(), strict=True):
            values = cells(line)
            assert values is not None  # or `rows` would have refused it
            for j, value in zip(self.columns, row, strict=True):
                values[j] = repr(value)
            out.writerow(values)
        return text.getvalue().encode()

    @property
    def named(self) -> tuple[str, ...] | None:
        names = self.names
        return tuple(names[j] for j in self.columns)


class Roles(NamedTuple):
    """Where records have a label, the name by which a later label may call them, and their time: no probabilities."""

    label: str | None = None
    name: str | None = None
    time: str | None = None


def recognise(data: bytes, choice: Choice, n_classes: int, roles: Roles) -> tuple[Form, int] | None:
    """Return the form that the first record has, and the bytes that belong to no record; None if more is needed.

    A record with nothing but label and name is passed over.
    """
    if not data:
        return None
    refuse_other_files(data, choice.caller)
    start = 3 if data.startswith(b"\xef\xbb\xbf") else 0  # a mark that some programs put before UTF-8
    if data[0] >= 0x80 and not start:
        return msgpack_form(data, choice, n_classes, roles.label)
    while end := data.find(b"\n", start) + 1:
        line, value = data[start:end], None
        if line.lstrip()[:1] in (b"{", b"["):
            (value,) = parse_lines([line], "input", 0, choice.caller)
        late = isinstance(value, dict) and roles.label in value and value.keys() <= {roles.label, roles.name}
        if line.strip() and not late:
            break
        start = end
    else:
        return None
    if value is None:
        return csv_form(line, choice, n_classes, roles), end
    form = recognise_json(value, choice, "input", roles).form
    return replace(form, classes=form.classes and matched(form.classes, choice), n_classes=n_classes), start


def refuse_other_files(data: bytes, caller: str) -> None:
    """Refuse the first bytes of files that are no records: Parquet, NPY and their like, or text in UTF-16."""
    kind = next((kind for magic, kind in FIRST_BYTES.items() if data.startswith(magic)), None)
    if kind and b"\0" in data[:4096]:  # a CSV header may begin with PAR1, too
        fail(caller, "input", "be NDJSON, CSV or msgpack", f"a file of the kind {kind}",
             remedy="Use `reprior correct` for files")  # fmt: skip
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):  # marks of UTF-16
        check_header(data[:40], caller, "input")


def csv_form(line: bytes, choice: Choice, n_classes: int, roles: Roles) -> CsvForm:
    """Return the form of records under this header."""
    check_header(line, choice.caller, "input", choice.classes)
    names = [column.strip() for column in next(csv.reader([line.decode()]))]
    columns = [Column(column, OTHER if column in LABEL_NAMES else FLOAT) for column in names]
    chosen = choose(columns, dict.fromkeys(names, ""), choice, "input", roles)
    if len(chosen.names) != n_classes:
        fail(choice.caller, "input", f"have one column for each of the {n_classes} classes", listed(chosen.names, 30),
             remedy="Name them with `--columns a,b,c` or `--columns first:last`")  # fmt: skip
    places = tuple(names.index(column) for column in matched(chosen.names, choice))
    return CsvForm(line.decode(), places, len(names), choice.caller, chosen.unused)


def matched(classes: tuple[str, ...], choice: Choice) -> tuple[str, ...]:
    """Return the columns of records in the order of the source's classes; others than those are refused."""
    names = called(classes, len(classes), choice, "input")
    if names is None or not choice.classes or names == choice.classes:
        return classes
    remedy = "Choose the class columns with `--columns`; say what they are called with `--classes FILE`"
    return tuple(classes[j] for j in places_of(choice.classes, names, choice.caller, "input", remedy))


def form_to_json(form: Form) -> list[Any]:
    """Return a form as JSON values."""
    return [type(form).__name__, asdict(form)]  # type: ignore[call-overload]


def form_from_json(value: list[Any], n_classes: int) -> Form:
    """Return the form that `form_to_json` described; a ValueError says that it is none of so many classes."""
    kinds: dict[str, Any] = {kind.__name__: kind for kind in (NdjsonForm, CsvForm, MsgpackForm)}
    fields = {name: tuple(item) if isinstance(item, list) else item for name, item in value[1].items()}
    form: Form = kinds[value[0]](**fields)
    of = len(form.columns) if isinstance(form, CsvForm) else form.n_classes  # type: ignore[attr-defined]
    named = form.named
    good = isinstance(form.opening, str) and isinstance(form.unused, tuple) and isinstance(form.caller, str)  # type: ignore[attr-defined]
    if of != n_classes or not good or (named is not None and not all(isinstance(name, str) for name in named)):
        raise ValueError("no form")
    return form
