"""NPY and NPZ files."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import IO, Any, NamedTuple, NoReturn

import numpy as np

from reprior._check import fail
from reprior._check.frames import LIST, OTHER, Column
from reprior._types import Matrix

from reprior.io.table import (  # isort: skip
    LABEL_NAMES, SET, Choice, Chunk, Correct, Opener, Part, check_all_named, choose, refuse_absent, refuse_set_column,
)  # fmt: skip

STEP_BYTES = 1 << 18  # bytes that are corrected and written at once; they stay in cache


class NpyRows:
    """The rows of an NPY file (n, K), read when they are sliced.

    They are not mapped: the system ends a process whose mapped file another one cuts.
    """

    def __init__(self, file: IO[bytes], caller: str, name: str) -> None:
        self.file = open(os.dup(file.fileno()), "rb", buffering=0)  # noqa: SIM115
        self.caller, self.name = caller, name
        shape, self.by_column, self.stored = npy_head(file)
        check_shape(self.stored, shape, caller, name)
        self.shape: tuple[int, int] = (shape[0], shape[1])
        self.dtype = self.stored if self.stored.kind == "f" else np.dtype(np.float64)
        self.start, self.size = file.tell(), math.prod(shape) * self.stored.itemsize
        self.check_size(self.size)

    def __del__(self) -> None:
        self.file.close()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Matrix:
        first, stop, _ = rows.indices(len(self))
        n, k = max(0, stop - first), self.shape[1]
        out = np.empty((k, n) if self.by_column else (n, k), self.stored)
        if self.by_column:
            for j in range(k):
                self.read(out[j], first + j * len(self))
        else:
            self.read(out.reshape(-1), first * k)
        return (out.T if self.by_column else out).astype(self.dtype, copy=False)

    def read(self, out: np.ndarray[Any, Any], first: int) -> None:
        """Fill `out` with the numbers from number `first` on."""
        view = out.view(np.uint8).data
        self.file.seek(self.start + first * self.stored.itemsize)
        while view:
            done = self.file.readinto(view)
            if not done:
                self.check_size(self.size)
                raise OSError(f"no more data at byte {self.file.tell()}")
            view = view[done:]

    def check_size(self, needed: int) -> None:
        """Refuse a file that is, or has become, too short for its rows."""
        there = os.fstat(self.file.fileno()).st_size - self.start
        if there < needed:
            fail(self.caller, self.name, "be a readable, whole file",
                 f"{max(0, there)} of the {self.size} bytes that its rows take")  # fmt: skip


def check_shape(dtype: np.dtype[Any], shape: tuple[int, ...], caller: str, name: str) -> None:
    """Refuse an array that cannot be rows of probabilities."""
    if len(shape) != 2 or shape[1] < 2 or dtype.kind not in "fiu":
        fail(caller, name, "hold an array (n, K) of numbers, K at least 2", f"{dtype} {shape}")


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


def array_columns(archive: Any) -> list[Column]:
    """Return the arrays of an NPZ file: those of two dimensions may hold the rows."""
    columns = []
    for key in (name.removesuffix(".npy") for name in archive.zip.namelist() if name.endswith(".npy")):
        with archive.zip.open(f"{key}.npy") as file:
            columns.append(Column(key, LIST if len(npy_head(file).shape) == 2 else OTHER))
    return columns


def npy_part(name: str, opener: Opener, choice: Choice) -> Part:
    """Return the reader of an NPY file."""

    def column(wanted: str, choice: Choice) -> NoReturn:
        fail(choice.caller, name, f"have the column {wanted!r}", "an array without columns",
             remedy=f"Save both with np.savez(file, proba=…, {wanted}=…)")  # fmt: skip

    for wanted in choice.aside:
        column(wanted, choice)
    with opener() as source:
        array: Any = NpyRows(source, choice.caller, name)
    if choice.with_labels:
        refuse_unlabelled(choice, name)

    def rewrite(file: IO[bytes], fn: Correct, names: Sequence[str] | None) -> None:
        assert names is None  # an array has no room for sets: `correct` has refused that
        file.write(npy_header(array))
        step = max(1, STEP_BYTES // (array.shape[1] * array.dtype.itemsize))
        for start in range(0, len(array), step):
            file.write(np.ascontiguousarray(fn(array[start : start + step]).rows).data)

    return Part(name, array.shape[1], lambda: iter([Chunk(array)]), rewrite, column, rows=len(array), mapped=True)


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
    rows = rows if rows.dtype.kind == "f" else rows.astype(np.float64)
    check_all_named(classes, rows.shape[1], choice.caller, name)

    def rewrite(file: IO[bytes], fn: Correct, names: Sequence[str] | None) -> None:
        with opener() as source, np.load(source) as archive:
            arrays = dict(archive)
        if names is not None:
            refuse_set_column(arrays, choice.caller, name)
        made = fn(rows)
        np.savez(file, **arrays | {key: made.rows} | ({} if names is None else {SET: made.inside}))

    def column(wanted: str, choice: Choice) -> Iterator[list[Any]]:
        refuse_absent([wanted], dict.fromkeys((array.name for array in there), ""), choice, name)
        with opener() as source, np.load(source) as archive:
            values = archive[wanted]
        if values.shape != rows.shape[:1]:
            fail(choice.caller, name, f"have {len(rows)} values in {wanted!r}, one per row", f"shape {values.shape}")
        return iter([values.tolist()])

    return Part(name, rows.shape[1], lambda: iter([Chunk(rows, labels)]), rewrite, column, classes, len(rows),
                label=chosen.label)  # fmt: skip


def refuse_unlabelled(choice: Choice, name: str) -> NoReturn:
    """Refuse held-out rows without labels."""
    fail(choice.caller, name, "hold labels beside the predictions", "predictions alone",
         remedy="Save both with np.savez(file, proba=…, y=…), or give the training counts instead")  # fmt: skip


def npy_header(array: Any) -> bytes:
    """Return what an NPY file of the same shape and type, in C order, begins with."""
    file = io.BytesIO()
    header = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": array.shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()
