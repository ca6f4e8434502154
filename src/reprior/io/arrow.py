"""Parquet, Arrow IPC and CSV by pyarrow: a list column, a fixed-size list column, or one column a class."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from csv import writer as csv_writer
from typing import IO, Any

import numpy as np

from reprior._check import fail, quoted
from reprior._check.frames import FLOAT, ID_NAMES, LIST, OTHER, Column, number_column
from reprior._types import Matrix
from reprior.io.files import DECIMAL_NUMBER, check_header, lines_of

from reprior.io.table import (  # isort: skip
    SET, Choice, Chosen, Chunk, Correct, Opener, Part, check_all_named, choose, refuse_absent,
    refuse_set_column, set_names,
)  # fmt: skip

try:
    import pyarrow as pa
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "Parquet, Arrow and CSV files need pyarrow. In the folder of reprior's source: pip install '.[files]'"
    ) from error


CLASSES_KEY = b"reprior.classes"  # schema metadata: the class names of a list column, as JSON
BATCH_BYTES = 1 << 20  # of decoded rows: they stay in cache until they have been checked, kept and summed
BETWEEN = "|"  # the names of a set in a CSV file
BUFFER_BYTES = 1 << 25  # read ahead for all columns together, instead of a whole row group at once


def parquet_part(name: str, opener: Opener, choice: Choice, groups: range | None = None) -> Part:
    """Return the reader of a Parquet file, or of some of its row groups, batch by batch."""
    import pyarrow.parquet as pq

    with opener() as file:
        opened = pq.ParquetFile(file)
        schema, rows, first = opened.schema_arrow, opened.metadata.num_rows, 0
        if groups is not None:
            sizes = row_groups(opened.metadata)
            first, rows = sum(sizes[: groups.start]), sum(sizes[groups.start : groups.stop])
        codec, width = "none", len(schema)
        if opened.num_row_groups and rows:
            group = opened.metadata.row_group(0)
            codec = group.column(0).compression.lower().replace("uncompressed", "none")
            numbers = max(group.column(j).num_values for j in range(group.num_columns))
            width = max(width, numbers // max(1, group.num_rows))  # of a row, lists counted by their length
        size = min(1 << 16, max(64, BATCH_BYTES // (4 * width)))

    def batches(columns: list[str] | None) -> Iterator[Any]:
        with opener() as file:
            ahead = min(1 << 20, max(1 << 14, BUFFER_BYTES // len(schema)))
            source = pq.ParquetFile(file, buffer_size=ahead, pre_buffer=False)
            some = None if groups is None else list(groups)
            yield from source.iter_batches(batch_size=size, columns=columns, row_groups=some, use_threads=False)

    def writer(file: IO[bytes], schema: Any) -> Any:
        return pq.ParquetWriter(file, schema, compression=codec)

    return batches_part(name, schema, batches, choice, writer, chosen_columns(name, schema, choice), first, rows)


def row_groups(about: Any) -> list[int]:
    """Return how many rows each row group of a Parquet file has."""
    return [about.row_group(i).num_rows for i in range(about.num_row_groups)]


def arrow_part(name: str, opener: Opener, choice: Choice) -> Part:
    """Return the reader of an Arrow IPC file or stream."""

    def open_any(file: IO[bytes]) -> tuple[Any, Iterator[Any]]:
        try:
            reader = pa.ipc.open_file(file)
        except pa.ArrowInvalid:
            file.seek(0)
            stream = pa.ipc.open_stream(file)
            return stream.schema, iter(stream)
        return reader.schema, (reader.get_batch(i) for i in range(reader.num_record_batches))

    with opener() as file:
        schema, _ = open_any(file)

    def batches(columns: list[str] | None) -> Iterator[Any]:
        with opener() as file:
            for batch in open_any(file)[1]:
                whole = batch.select(columns) if columns else batch
                yield from (whole.slice(start, 4096) for start in range(0, whole.num_rows, 4096))

    return batches_part(name, schema, batches, choice, pa.ipc.new_file, chosen_columns(name, schema, choice))


def csv_part(name: str, opener: Opener, choice: Choice) -> Part:
    """Return the reader of a CSV file with a header, one column a class."""
    from pyarrow import csv

    with opener() as file:
        header = next(lines_of(file, choice.caller, name), b"")
        if not header:
            fail(choice.caller, name, "have at least one row", "empty lines")
        check_header(header, choice.caller, name, choice.classes)
    # a row must fit in a block, and numbers are longer than names
    reading = csv.ReadOptions(block_size=max(4 << 20, min(16 * len(header), 1 << 30)), use_threads=False)
    with opener() as file, csv.open_csv(file, read_options=reading) as reader:
        schema = reader.schema
        batch = next(iter(reader), None)
        if batch is None or not batch.num_rows:
            fail(choice.caller, name, "have at least one row", "column names alone")
    columns = [text_column(field, batch.column(j)) for j, field in enumerate(schema)]
    chosen = chosen_columns(name, schema, choice, columns)
    classes = {*chosen.names}
    # all that is not a number to us stays the text it is, whatever the first block made it look like
    types = {column: pa.float64() if column in classes else pa.string() for column in schema.names}
    if chosen.label is not None and pa.types.is_integer(schema.field(chosen.label).type):
        types[chosen.label] = pa.int64()
    schema = pa.schema(types.items())

    def batches(columns: list[str] | None) -> Iterator[Any]:
        converting = csv.ConvertOptions(column_types=types, include_columns=columns or schema.names)
        with opener() as file, csv.open_csv(file, read_options=reading, convert_options=converting) as reader:
            yield from reader

    return batches_part(name, schema, batches, choice, CsvOut, chosen)


class CsvOut:
    """A CSV file under its header; text has quotes only where it needs them, so that whole numbers have none."""

    def __init__(self, file: IO[bytes], schema: Any) -> None:
        self.file = file
        text = io.StringIO()
        csv_writer(text, lineterminator="\n").writerow(schema.names)
        file.write(text.getvalue().encode())

    def __enter__(self) -> CsvOut:
        return self

    def __exit__(self, *_: Any) -> None: ...

    def write_batch(self, batch: Any) -> None:
        import pyarrow.compute as pc

        columns = []
        for column in batch.columns:
            cells = column.cast(pa.string())
            if pa.types.is_string(column.type):
                odd = pc.match_substring_regex(cells, '[",\\r\\n]')
                doubled = pc.replace_substring(cells, '"', '""')
                cells = pc.if_else(odd, pc.binary_join_element_wise('"', doubled, '"', ""), cells)
            columns.append(cells)
        lines = pc.binary_join_element_wise(*columns, ",", null_handling="replace", null_replacement="")
        self.file.write("".join(f"{line}\n" for line in lines.to_pylist()).encode())


def is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def text_column(field: Any, values: Any) -> Column:
    """Return what a column of a CSV file holds, by its first values; text with numbers in it may be a damaged class."""
    if is_number(field.type):
        return number_column(field.name, values.to_numpy()) if not values.null_count else Column(field.name, FLOAT)
    able = field.name not in ID_NAMES and pa.types.is_string(field.type)
    able = able and any(DECIMAL_NUMBER.fullmatch(text) for text in values.to_pylist() if text)
    return Column(field.name, FLOAT if able else OTHER)


def chosen_columns(name: str, schema: Any, choice: Choice, columns: Sequence[Column] | None = None) -> Chosen:
    """Return which columns hold probabilities and labels; class columns that hold no numbers are refused.

    Without `columns` the types of the schema decide what each column holds.
    """

    def kind(of: Any) -> str:
        return LIST if is_list(of) else FLOAT if pa.types.is_floating(of) else OTHER

    if columns is None:
        columns = [Column(field.name, kind(field.type)) for field in schema]
    chosen = choose(columns, {field.name: str(field.type) for field in schema}, choice, name)
    for column in chosen.names:
        stored = schema.field(column).type
        if not is_number(stored.value_type if chosen.is_list else stored):
            fail(choice.caller, name, "have numbers in the columns of the classes", f"{column!r} of type {stored}",
                 remedy=f"Name the class columns with `{choice.option} first:last` or as a,b,c")  # fmt: skip
    return chosen


def batches_part(
    name: str, schema: Any, batches: Any, choice: Choice, writer: Any, chosen: Chosen, start: int = 0,
    rows: int | None = None,
) -> Part:  # fmt: skip
    """Return a file of record batches, which `batches(columns)` yields and `writer(file, schema)` takes, as a part.

    `start` is the number of its first row.
    """
    caller, wanted = choice.caller, [*chosen.names, *([chosen.label] if chosen.label else [])]
    n_classes, classes = (
        list_classes(schema, chosen.names[0], batches(wanted), caller, name) if chosen.is_list
        else (len(chosen.names), chosen.names)
    )  # fmt: skip
    if n_classes < 2:
        fail(caller, name, "have at least two classes", f"{n_classes} ({', '.join(map(quoted, chosen.names))})",
             remedy="For a binary classifier store both probabilities")  # fmt: skip

    def read() -> Iterator[Chunk]:
        first = start
        for batch in batches(wanted):
            proba, labels = rows_from(batch, chosen.names, n_classes, (caller, name, first)), None
            if chosen.label:
                no_nulls([batch.column(chosen.label)], (caller, name, first))
                labels = np.asarray(batch.column(chosen.label).to_pylist())
            yield Chunk(proba, labels)
            first += len(proba)

    def rewrite(file: IO[bytes], fn: Correct, names: Sequence[str] | None) -> None:
        out, first = written_schema(schema, chosen, names, (caller, name), by_text=writer is CsvOut), 0
        with writer(file, out) as target:
            for batch in batches(None):
                proba = rows_from(batch, chosen.names, n_classes, (caller, name, first))
                first += len(proba)
                made = fn(np.ascontiguousarray(proba))
                sets = [] if names is None else set_names(made.inside, names)
                column = pa.array([BETWEEN.join(x) for x in sets] if writer is CsvOut else sets)
                target.write_batch(with_rows(batch, chosen.names, made.rows, out, {SET: column}))

    def column(wanted: str, choice: Choice) -> Iterator[list[Any]]:
        """Yield the values of a column: numbers as they are, dates and the like as text, None where there is none."""
        refuse_absent([wanted], {field.name: str(field.type) for field in schema}, choice, name)
        for batch in batches([wanted]):
            values = batch.column(0)
            if pa.types.is_dictionary(values.type):
                values = values.dictionary_decode()
            if is_list(values.type) or pa.types.is_struct(values.type):
                fail(caller, name, f"have text or numbers in {wanted!r}", f"type {values.type}")
            plain = is_number(values.type) or pa.types.is_boolean(values.type)
            yield (values if plain else values.cast(pa.string())).to_pylist()

    return Part(name, n_classes, read, rewrite, column, classes, rows, unused=chosen.unused,
                columns=() if chosen.is_list else chosen.names, label=chosen.label)  # fmt: skip


def list_classes(
    schema: Any, column: str, batches: Iterator[Any], caller: str, name: str
) -> tuple[int, tuple[str, ...] | None]:
    """Return how many classes a list column has, by its type or first list, and what the file calls them."""
    kind, stored = schema.field(column).type, (schema.metadata or {}).get(CLASSES_KEY)
    lengths = (batch.column(0).value_lengths()[0].as_py() or 0 for batch in batches if batch.num_rows)
    n_classes = kind.list_size if pa.types.is_fixed_size_list(kind) else next(lengths, None)
    if n_classes is None:
        fail(caller, name, "have at least one row", "none")
    classes = tuple(map(str, json.loads(stored))) if stored else None
    check_all_named(classes, n_classes, caller, name)
    return int(n_classes), classes


def written_schema(
    schema: Any, chosen: Chosen, names: Sequence[str] | None, place: tuple[str, str], *, by_text: bool
) -> Any:
    """Return the columns of a corrected file: whole numbers have become floats, and sets are added."""
    for column in () if chosen.is_list else chosen.names:
        if not pa.types.is_floating(schema.field(column).type):
            schema = schema.set(schema.get_field_index(column), pa.field(column, pa.float64()))
    if names is None:
        return schema
    refuse_set_column(schema.names, *place)
    if by_text and any(BETWEEN in name for name in names):
        fail(place[0], "--sets", f"have class names without {BETWEEN!r}, which separates them in a CSV file",
             "one with it", remedy="Write Parquet")  # fmt: skip
    return schema.append(pa.field(SET, pa.string() if by_text else pa.list_(pa.string())))


def with_rows(batch: Any, chosen: Sequence[str], rows: Matrix, schema: Any, more: Mapping[str, Any] = {}) -> Any:
    """Return the batch with `rows` (n, K) in the `chosen` columns, and with `more` columns."""
    columns = {**dict(zip(batch.schema.names, batch.columns, strict=True)), **more}
    if is_list(batch.schema.field(chosen[0]).type):
        lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
        columns[chosen[0]] = lists.cast(schema.field(chosen[0]).type)
    else:
        columns |= {column: pa.array(rows[:, j]) for j, column in enumerate(chosen)}
    arrays = [columns[field.name].cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def rows_from(batch: Any, columns: Sequence[str], n_classes: int, place: tuple[str, str, int]) -> Matrix:
    """Return the rows (n, K) that some columns of a batch hold: one of lists, which is not copied, or one per class."""
    picked = [batch.column(column) for column in columns]
    no_nulls(picked, place)
    column = picked[0]
    if not is_list(column.type):
        return np.array([numbers(column) for column in picked]).T  # stored class by class as it came
    if not pa.types.is_fixed_size_list(column.type):
        lengths = np.diff(column.offsets.to_numpy(zero_copy_only=False))
        if (lengths != n_classes).any():
            row = int(np.argmax(lengths != n_classes))
            fail(place[0], place[1], f"have {n_classes} numbers in every list, as in the first row", int(lengths[row]),
                 place=f"row {place[2] + row} of this file", count=int((lengths != n_classes).sum()))  # fmt: skip
    flat = column.flatten()
    no_nulls([flat], place, per_row=n_classes)
    return numbers(flat).reshape(-1, n_classes)


def numbers(column: Any) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = column.to_numpy(zero_copy_only=False)
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def no_nulls(columns: Sequence[Any], place: tuple[str, str, int], per_row: int = 1) -> None:
    """Refuse nulls in columns of a batch; the count is over all of them."""
    if count := sum(column.null_count for column in columns):
        first = min(int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
                    for column in columns if column.null_count)  # fmt: skip
        fail(place[0], place[1], "contain only finite numbers", "null",
             place=f"row {place[2] + first // per_row} of this file", count=count,
             remedy="Drop or repair those rows")  # fmt: skip
