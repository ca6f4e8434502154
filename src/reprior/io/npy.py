"""NPY and NPZ files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import IO, Any, NamedTuple, NoReturn

import numpy as np

from reprior._check import fail
from reprior._check.frames import LIST, OTHER, Column
from reprior._types import Matrix
from reprior.rows.blocks import block_rows

from reprior.io.table import (  # isort: skip
    LABEL_NAMES, SET, Choice, Chunk, Correct, Opener, Part, check_all_named, choose, refuse_absent, refuse_set_column,
)  # fmt: skip


class NpyHead(NamedTuple):
    """Shape of a stored array, whether it is stored column by column, and its type."""

    shape: tuple[int, ...]
    by_column: bool
    dtype: np.dtype[Any]


def npy_head(file: IO[bytes]) -> NpyHead:
    """Return what an NPY file says about its array, and leave the file at its first number."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return NpyHead(*read(file))


def check_shape(dtype: np.dtype[Any], shape: tuple[int, ...], caller: str, name: str) -> None:
    """Refuse an array that cannot be rows of probabilities."""
    if len(shape) != 2 or shape[1] < 2 or dtype.kind not in "fiu":
        fail(caller, name, "hold an array (n, K) of numbers, K at least 2", f"{dtype} {shape}")


def npy_part(name: str, opener: Opener, choice: Choice) -> Part:
    """Return the reader of an NPY file.

    It is not mapped: the system ends a process whose mapped file another one cuts.
    """

    def column(wanted: str, choice: Choice) -> NoReturn:
        fail(choice.caller, name, f"have the column {wanted!r}", "an array without columns",
             remedy=f"Save both with np.savez(file, proba=…, {wanted}=…)")  # fmt: skip

    for wanted in choice.aside:
        column(wanted, choice)
    with opener() as file:
        shape, by_column, stored = npy_head(file)
        check_shape(stored, shape, choice.caller, name)
        (n, k), start, size = shape, file.tell(), math.prod(shape) * stored.itemsize
        check_size(file, start, size, choice.caller, name)
    if choice.with_labels:
        refuse_unlabelled(choice, name)
    dtype, step = stored if stored.kind == "f" else np.dtype(np.float64), block_rows(k)

    def numbers(file: IO[bytes], first: int, count: int) -> np.ndarray[Any, Any]:
        file.seek(start + first * stored.itemsize)
        data = file.read(count * stored.itemsize)
        if len(data) < count * stored.itemsize:
            check_size(file, start, size, choice.caller, name)
        return np.frombuffer(data, stored)

    def read() -> Iterator[Chunk]:
        with opener() as file:
            for first in range(0, n, step):
                rows = min(step, n - first)
                if by_column:
                    block = np.array([numbers(file, first + j * n, rows) for j in range(k)]).T
                else:
                    block = numbers(file, first * k, rows * k).reshape(rows, k)
                yield Chunk(block.astype(dtype, copy=False))

    def rewrite(file: IO[bytes], fn: Correct, names: Sequence[str] | None) -> None:
        assert names is None  # an array has no room for sets: `correct` has refused that
        write_head(file, (n, k), dtype)
        for chunk in read():
            file.write(np.ascontiguousarray(fn(chunk.proba).rows).data)

    return Part(name, k, read, rewrite, column, rows=n, cheap=True)


def check_size(file: IO[bytes], start: int, size: int, caller: str, name: str) -> None:
    """Refuse a file that is, or has become, too short for the rows that begin at byte `start`."""
    there = file.seek(0, 2) - start
    if there < size:
        fail(caller, name, "be a readable, whole file", f"{max(0, there)} of the {size} bytes that its rows take")


def write_head(file: IO[bytes], shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
    """Write what an NPY file begins with; its numbers come row by row."""
    head = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, head)


def array_columns(archive: Any) -> list[Column]:
    """Return the arrays of an NPZ file: those of two dimensions may hold the rows."""
    columns = []
    for key in (name.removesuffix(".npy") for name in archive.zip.namelist() if name.endswith(".npy")):
        with archive.zip.open(f"{key}.npy") as file:
            columns.append(Column(key, LIST if len(npy_head(file).shape) == 2 else OTHER))
    return columns


def npz_part(name: str, opener: Opener, choice: Choice) -> Part:
    """Return the reader of an NPZ file: of rows, and perhaps labels, groups and class names."""
    with opener() as file, np.load(file) as archive:
        there = array_columns(archive)
        if choice.with_labels and {choice.label, *LABEL_NAMES}.isdisjoint(archive.files):
            refuse_unlabelled(choice, name)
        chosen = choose(there, dict.fromkeys([column.name for column in there], ""), replace(choice, classes=()), name)
        key, rows = chosen.names[0], archive[chosen.names[0]]
        classes = tuple(map(str, archive["classes"])) if "classes" in archive else None
        labels = archive[chosen.label] if chosen.label else None
    check_shape(rows.dtype, rows.shape, choice.caller, name)
    proba: Matrix = rows if rows.dtype.kind == "f" else rows.astype(np.float64)
    check_all_named(classes, rows.shape[1], choice.caller, name)

    def rewrite(file: IO[bytes], fn: Correct, names: Sequence[str] | None) -> None:
        with opener() as source, np.load(source) as archive:
            arrays = dict(archive)
        if names is not None:
            refuse_set_column(arrays, choice.caller, name)
        made = fn(proba)
        np.savez(file, **arrays | {key: made.rows} | ({} if names is None else {SET: made.inside}))

    def column(wanted: str, choice: Choice) -> Iterator[list[Any]]:
        refuse_absent([wanted], dict.fromkeys((array.name for array in there), ""), choice, name)
        with opener() as source, np.load(source) as archive:
            values = archive[wanted]
        if values.shape != rows.shape[:1]:
            fail(choice.caller, name, f"have {len(rows)} values in {wanted!r}, one per row", f"shape {values.shape}")
        return iter([values.tolist()])

    return Part(name, rows.shape[1], lambda: iter([Chunk(proba, labels)]), rewrite, column, classes, len(rows),
                label=chosen.label)  # fmt: skip


def refuse_unlabelled(choice: Choice, name: str) -> NoReturn:
    """Refuse held-out rows without labels."""
    fail(choice.caller, name, "hold labels beside the predictions", "predictions alone",
         remedy="Save both with np.savez(file, proba=…, y=…), or give the training counts instead")  # fmt: skip
