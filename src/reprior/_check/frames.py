"""Which columns of a table hold the classes: one rule for frames, files and streams; and frames as numbers, and back.

Each library reads its own columns. No library is imported here: what builds a frame again is the module that the
caller's own frame comes from.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from reprior._check.errors import fail, listed, spelled

ID_NAMES = ("id", "row_id")
LIST, FLOAT, WHOLE, OTHER = "list", "float", "whole", "other"
ROW_SUM_ERROR = 0.05  # how far a sum of rounded probabilities may be from 1
ROWS_LOOKED_AT = 100  # rows that are looked at to tell ids from probabilities
NUMBER_TYPE = re.compile(r"(u?int\d+|float\d*|double|halffloat|bool(ean)?|decimal.*)", re.IGNORECASE)


class Column(NamedTuple):
    """A column: its name, what it holds, and its first numbers, if looking at them may help to choose."""

    name: Any
    kind: str
    first: np.ndarray[Any, Any] | None = None


def number_column(name: Any, first: np.ndarray[Any, Any]) -> Column:
    """Return a column of numbers; whole numbers from 0 to 1 may be the probabilities of a class."""
    whole = first.dtype.kind in "iub" and (name in ID_NAMES or first.min(initial=0) < 0 or first.max(initial=0) > 1)
    return Column(name, WHOLE if whole else FLOAT, first)


def class_places(columns: Sequence[Column], classes: Iterable[Any] | None) -> list[int]:
    """Return the places of the columns that hold the probabilities; none if there is no telling.

    Columns called like the classes come first, in the order of `classes`, if all are there. Else it is the list
    `proba`, or the only list, or all columns of floats. Whole numbers beside floats are taken for ids, unless the
    floats do not sum to 1. Columns of anything else are left aside.
    """
    if classes is not None and (places := named_places([column.name for column in columns], classes)):
        return places
    if lists := [j for j, column in enumerate(columns) if column.kind == LIST]:
        called = [j for j in lists if columns[j].name == "proba"] or lists
        return called if len(called) == 1 else []
    floats = [j for j, column in enumerate(columns) if column.kind == FLOAT]
    firsts = [columns[j].first for j in floats]
    typed = any(first is None or first.dtype.kind == "f" for first in firsts)
    if len(floats) > 1 and typed and sum_to_one(columns, floats):
        return floats
    whole = [j for j, column in enumerate(columns) if column.kind == WHOLE and column.name not in ID_NAMES]
    return sorted([*floats, *whole])


def sum_to_one(columns: Sequence[Column], places: Sequence[int]) -> bool:
    """Return whether the first rows of some columns sum to about 1; they are taken to if they were not looked at."""
    looked = [first for j in places if (first := columns[j].first) is not None]
    return len(looked) < len(places) or bool((np.abs(np.sum(looked, axis=0) - 1) < ROW_SUM_ERROR).all())


def number_of(text: str) -> float | None:
    """Return the number that a text says, a whole one exactly; None if it says none."""
    for kind in () if "_" in text else (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def named_places(names: Sequence[Any], classes: Iterable[Any]) -> list[int]:
    """Return the place among `names` of each class; none if one of them is missing, or there twice."""
    spellings = [spelled(name) for name in names]
    place = {name: j for j, name in enumerate(spellings)}
    places = [place.get(spelled(label), -1) for label in classes]
    twice = len(place) < len(names) and any(spellings.count(spellings[j]) > 1 for j in places)
    return [] if -1 in places or twice else places


class Frame(NamedTuple):
    """What a frame calls its class columns, their numbers (n, K), and their places among all of its columns.

    A Mapping or Series has one number (K,) per name. `names` is a RangeIndex where pandas has numbered the columns.
    """

    names: Any
    values: Any
    places: Sequence[int] = ()


def is_named(x: Any) -> bool:
    """Return whether `x` may name its numbers: a mapping, a Series or a frame of any library."""
    arrow = hasattr(x, "__arrow_c_stream__") or hasattr(x, "__arrow_c_array__")
    return arrow or isinstance(x, Mapping) or hasattr(x, "iloc")


def frame_of(
    x: Any, classes: Sequence[Any] | None = None, caller: str = "", name: str = "proba", *, numbers: bool = True
) -> Frame | None:
    """Return the class columns of `x`, in its own order; None if it has no names. Without `numbers` values are None."""
    if isinstance(x, (np.ndarray, Frame)) or not is_named(x):
        return x if isinstance(x, Frame) else None
    if isinstance(x, Mapping):
        if any(hasattr(value, "__len__") and not isinstance(value, (str, bytes)) for value in x.values()):
            fail(caller, name, "be an array of numbers", "a dict of columns", remedy=f"Pass `pandas.DataFrame({name})`")
        return Frame(tuple(x), np.asarray(list(x.values())))
    if hasattr(x, "iloc"):
        return pandas_frame(x, classes, numbers)
    if hasattr(x, "to_arrow_table"):  # a DuckDB relation
        x = x.to_arrow_table()
    if hasattr(x, "schema"):
        return arrow_frame(x, classes, caller, name, numbers)
    if not hasattr(x, "__array__"):
        fail(caller, name, "be an array, or a frame of pandas, polars, pyarrow or DuckDB", type(x).__name__,
             remedy=f"Pass `pyarrow.table({name})`")  # fmt: skip
    return None  # one vector


def arrow_frame(x: Any, classes: Sequence[Any] | None, caller: str, name: str, numbers: bool) -> Frame:
    """Return the class columns of a polars or pyarrow frame, as float32 or float64, stored class by class."""
    polars = hasattr(x, "get_columns")
    columns = [(c.name, c) for c in x.get_columns()] if polars else [*zip(x.schema.names, x.columns, strict=True)]
    places = [*range(len(columns))]
    if classes is None or len(classes) < len(columns):
        heads = [(label, column[:ROWS_LOOKED_AT]) for label, column in columns]
        places = class_columns([number_column(label, values_in(head)) if is_number(head) else Column(label, OTHER)
                                for label, head in heads], classes)  # fmt: skip
    own = [columns[j] for j in places]
    if other := [label for label, column in own if not is_number(column)]:
        fail(caller, name, "hold only numbers", f"another type in the column {other[0]!r}",
             remedy="Remove that column, or convert it to floats")  # fmt: skip
    names = tuple(label for label, _ in own)
    if not numbers or not own:
        return Frame(names, np.empty((0, 0)) if numbers else None, places)
    arrays = [values_in(column) for _, column in own]
    narrow = all(values.dtype in (np.float16, np.float32) for values in arrays)
    return Frame(names, np.stack(arrays, dtype=np.float32 if narrow else np.float64).T, places)


def is_number(column: Any) -> bool:
    """Return whether a polars or pyarrow column holds numbers, by what the library calls its type."""
    return NUMBER_TYPE.fullmatch(str(column.type if hasattr(column, "type") else column.dtype)) is not None


def values_in(column: Any) -> np.ndarray[Any, Any]:
    """Return the numbers of a polars or pyarrow column (n,), NaN where a value is null."""
    values = np.asarray(column)
    if values.dtype != object:
        return values
    return np.array([np.nan if value is None else float(value) for value in values])  # decimals, or booleans with gaps


def class_columns(columns: Sequence[Column], classes: Sequence[Any] | None) -> list[int]:
    """Return the places of the class columns in the frame's own order; all, where fewer than two can be classes.

    Where only all floats together sum to 1, all of them are classes: more than there should be, which is refused.
    """
    places = sorted(class_places(columns, classes))
    floats = [j for j, column in enumerate(columns) if column.kind == FLOAT]
    if {*floats} > {*places} and not sum_to_one(columns, places) and sum_to_one(columns, floats):
        return floats
    return places if len(places) > 1 else [*range(len(columns))]


def pandas_frame(x: Any, classes: Sequence[Any] | None, numbers: bool) -> Frame:
    """Return the class columns of a pandas DataFrame, or the values of a Series by its index."""
    if not hasattr(x, "columns"):
        return Frame(x.index, numbers_of(x))
    places = [*range(len(x.columns))]
    floats = classes is None and all(dtype.kind == "f" for dtype in x.dtypes)
    if not (floats or is_default(x.columns) or (classes is not None and len(classes) >= len(places))):
        head = x.iloc[:ROWS_LOOKED_AT]
        places = class_columns([pandas_column(x.columns[j], head.iloc[:, j]) for j in places], classes)
    own = x if len(places) == len(x.columns) else x.iloc[:, places]
    return Frame(own.columns, numbers_of(own) if numbers else None, places)


def pandas_column(name: Any, head: Any) -> Column:
    """Return what a column of a DataFrame holds, by its first values; text among numbers may be a damaged class."""
    values = numbers_of(head)
    if values.dtype.kind in "fiub":
        return number_column(name, values)
    texts = values if values.dtype.kind == "O" else ()
    numbers = [number_of(cell) if isinstance(cell, str) else None for cell in texts]
    able = any(isinstance(cell, (int, float)) for cell in texts) or any(x is not None and x == x for x in numbers)
    return Column(name, FLOAT if able else OTHER)


def numbers_of(x: Any) -> Any:
    """Return the numbers of a DataFrame or Series; of nullable and Arrow-backed ones as floats, NaN where missing."""
    kinds = [*x.dtypes] if hasattr(x, "columns") else [x.dtype]
    if all(isinstance(kind, np.dtype) for kind in kinds) or not all(kind.kind in "fiub" for kind in kinds):
        return x.to_numpy()
    types = [kind if isinstance(kind, np.dtype) else getattr(kind, "numpy_dtype", np.dtype(float)) for kind in kinds]
    wide = np.result_type(*types)
    if wide.kind != "f":
        wide = wide if not x.isna().to_numpy().any() else np.dtype(float)
    return x.to_numpy(dtype=wide, **({"na_value": np.nan} if wide.kind == "f" else {}))


def is_default(names: Any) -> bool:
    """Return whether pandas has numbered the columns by itself."""
    return type(names).__name__ == "RangeIndex" and (names.start, names.step) == (0, 1)


def put_back(rows: Any, x: Any, frame: Frame) -> Any:
    """Return `x` with `rows` (n, K), or (K,), in its class columns; a frame of an unknown library as an array.

    Float columns keep their type. A DuckDB relation is built of the class columns.
    """
    if isinstance(x, Mapping):
        return dict(zip(frame.names, rows.tolist(), strict=True))
    if hasattr(x, "iloc"):
        return pandas_again(rows, x, frame)
    root = type(x).__module__.partition(".")[0].removeprefix("_")
    library, columns, float_rows = sys.modules[root], np.ascontiguousarray(rows.T), rows.dtype.kind == "f"
    if root == "polars":
        kinds = [x.schema[name] for name in frame.names]
        return x.with_columns([library.Series(name, values, kind if float_rows and kind.is_float() else None)
                               for name, values, kind in zip(frame.names, columns, kinds, strict=True)])  # fmt: skip
    if root == "pyarrow":
        for place, name, values in zip(frame.places, frame.names, columns, strict=True):
            kind = x.schema.field(place).type
            array = library.array(values, kind if float_rows and library.types.is_floating(kind) else None)
            x = x.set_column(place, library.field(name, array.type), array)
        return x
    if root != "duckdb":
        return rows
    if len(x.columns) > len(frame.names):
        rest = [name for name in x.columns if name not in frame.names]
        fail("correct", "proba", "have no columns beside the classes if it is a DuckDB relation, whose rows may"
             " come in another order each time", listed(rest), remedy="Pass `proba.to_arrow_table()`")  # fmt: skip
    table = type(x.limit(0).to_arrow_table())  # of pyarrow, which DuckDB imports
    return library.from_arrow(table.from_pydict(dict(zip(frame.names, columns, strict=True))))


def pandas_again(rows: Any, x: Any, frame: Frame) -> Any:
    """Return a DataFrame or Series with other numbers; float columns of other libraries' types keep their types."""
    if not hasattr(x, "columns"):
        return type(x)(rows, index=x.index, name=x.name)
    if len(frame.places) == len(x.columns):
        out = type(x)(rows, index=x.index, columns=x.columns)
    else:
        out = x.copy()
        for place, values in zip(frame.places, rows.T, strict=True):
            out.isetitem(place, np.ascontiguousarray(values))
    for place in frame.places if rows.dtype.kind == "f" else ():
        kind = x.dtypes.iloc[place]
        if kind.kind == "f" and not isinstance(kind, np.dtype):
            out.isetitem(place, out.iloc[:, place].astype(kind))
    return out
