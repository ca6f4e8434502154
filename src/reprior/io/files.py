"""Prediction files as rows to estimate from: NPY, NPZ, Parquet, Arrow IPC, CSV, NDJSON, a folder of parts, a pipe.

A `Table` is one or several parts, each of which can be read again and again as chunks of rows. `FileBlocks` makes a
target of it: rows are checked in the first pass and kept decoded in a scratch file, so that later passes only read.
"""

from __future__ import annotations

import atexit
import io
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np

from reprior._check import Fault, InputError, counted, difference, fail, listed, perhaps, quoted
from reprior._types import Matrix

Opener = Callable[[], IO[bytes]]
KINDS = {
    "parquet": (".parquet",), "arrow": (".arrow", ".feather", ".ipc"), "npy": (".npy",), "npz": (".npz",),
    "csv": (".csv",), "ndjson": (".ndjson", ".jsonl", ".json"),
}  # fmt: skip


SUFFIXES = tuple(suffix for suffixes in KINDS.values() for suffix in suffixes)
MAGIC = {
    b"\x93NUMPY": "npy", b"PK\x03\x04": "npz", b"PAR1": "parquet", b"ARROW1": "arrow", b"\xff\xff\xff\xff": "arrow",
}  # fmt: skip


LABEL_NAMES = ("label", "y")
FLOATS = ("double", "float", "halffloat")  # what probabilities are, and labels are not
RECORD_BYTES = 1 << 24  # a line or record longer than this is none: it would hold a million probabilities
ID_NAMES = ("id", "row_id")


class Sets(NamedTuple):
    """A column to write beside corrected rows: its name, the classes (K,), and `last()`, which of them are in the sets
    (n, K) of the rows corrected last."""

    name: str
    classes: tuple[str, ...]
    last: Callable[[], Any]

    def names(self) -> list[list[str]]:
        """Return the sets of the rows corrected last as lists of names."""
        return [[self.classes[k] for k in np.flatnonzero(row)] for row in self.last()]

    def refuse_taken(self, there: Iterable[str], caller: str, part: str) -> None:
        """Refuse a file that has a column of that name already."""
        if self.name in there:
            fail(caller, part, f"have no column {self.name!r}, where sets are written", "one", remedy="Rename it")


class Rewrite(Protocol):
    """What writes a file again, with other rows and perhaps with sets."""

    def __call__(self, file: IO[bytes], fn: Callable[[Matrix], Matrix], sets: Sets | None = None, /) -> None: ...


class Chunk(NamedTuple):
    """Rows as they came: `proba` (n, K) of any float type, `labels` (n,) if they were asked for."""

    proba: Matrix  # or NpyRows, which are sliced alike
    labels: Any = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Which columns the user asked for; None: those called like the source's `classes`, else the obvious ones."""

    columns: str | None = None
    label: str | None = None
    with_labels: bool = False
    caller: str = "read"
    classes: tuple[str, ...] = ()
    by: str | None = None  # what holds the group of each row, or what else `by_option` asks for
    by_option: str = "--by"
    names: tuple[str, ...] = ()  # what to call the class columns, whatever the file calls them

    @property
    def option(self) -> str:
        """What the user names the class columns with."""
        return "--source-columns" if self.with_labels and self.caller != "simulate" else "--columns"


@dataclass(frozen=True, slots=True)
class Part:
    """One file of rows: `read()` starts again at its first row each time.

    `rewrite(file, fn)` writes a file of the same kind with each block of rows replaced by fn(rows), all else as it was,
    and with a column of sets if there is a third argument.
    `groups()` yields the keys of the groups of all rows, some at a time, if a column of them was asked for.
    `columns` are those taken as classes, where each class has one; `unused` are columns of numbers that were passed
    over since the source does not name them.
    """

    name: str
    n_classes: int
    read: Callable[[], Iterator[Chunk]]
    rewrite: Rewrite
    classes: tuple[str, ...] | None = None
    rows: int | None = None
    mapped: bool = False
    unused: tuple[str, ...] = ()
    kind: str = ""
    columns: tuple[str, ...] = ()
    groups: Callable[[], Iterator[list[Any]]] | None = None
    label: str | None = None  # what holds the labels, if they were asked for


@dataclass(frozen=True, slots=True)
class Table:
    """Parts that together hold the rows of one data set, all with the same classes in the same order."""

    parts: tuple[Part, ...]
    choice: Choice = field(repr=False, default_factory=Choice)

    @property
    def n_classes(self) -> int:
        return self.parts[0].n_classes

    @property
    def classes(self) -> tuple[str, ...] | None:
        return self.parts[0].classes

    @property
    def rows(self) -> int | None:
        sizes = [part.rows for part in self.parts]
        return None if None in sizes else sum(filter(None, sizes))

    def chunks(self) -> Iterator[tuple[Part, int, Chunk]]:
        """Yield each chunk with its part and the number of its first row within the part."""
        for part in self.parts:
            first = 0
            with readable(part.name, self.choice.caller):
                for chunk in part.read():
                    if len(chunk.proba):
                        yield part, first, chunk
                    first += len(chunk.proba)

    def load(self) -> Chunk:
        """Return all rows at once; for held-out data, which fits in memory."""
        chunks = [Chunk(chunk.proba[:], chunk.labels) for _, _, chunk in self.chunks()]
        if not chunks:
            fail(self.choice.caller, self.parts[0].name, "have at least one row", "none")
        if len(chunks) == 1:
            return chunks[0]
        labels = None if chunks[0].labels is None else np.concatenate([np.asarray(c.labels) for c in chunks])
        return Chunk(np.concatenate([chunk.proba for chunk in chunks]), labels)


class readable:
    """Turn whatever a reader raises about a file into the one sentence that names the file."""

    def __init__(self, name: str, caller: str) -> None:
        self.name, self.caller = name, caller

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        ours = (InputError, ImportError, AssertionError, AttributeError, NameError, MemoryError)
        if not isinstance(error, Exception) or isinstance(error, ours) or getattr(error, "filename", None):
            return  # no libraries agree on what a damaged file raises, so all else that they raise is taken for one
        if isinstance(error, (LookupError, TypeError)) and raised_here(error):
            return  # a mistake of this library, and not of the file
        if isinstance(error, UnicodeDecodeError):
            fail(self.caller, self.name, "be text in UTF-8", "other bytes", remedy="Save it as UTF-8")
        reason = " ".join(str(error).split())[:200]
        try:
            fail(self.caller, self.name, "be a readable, whole file", repr(reason))
        except InputError as told:
            raise told from error


def raised_here(error: BaseException) -> bool:
    """Return whether an error comes from a line of this library, and not from one of another that it called."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith("reprior.")


def open_table(path: str | Path, choice: Choice) -> Table:
    """Return the rows of a file, of a folder's parts in the order of their names, or of standard input (`-`)."""
    place = Path(path)
    if not place.is_dir():
        name = "standard input" if str(path) == "-" else str(place)
        return renamed(Table((open_part(name, opener_of(place), choice),), choice))
    files = sorted(f for f in place.rglob("*") if f.suffix in SUFFIXES and f.is_file() and f.name[0] not in "._")
    if not files:
        fail(choice.caller, str(place), f"hold files that end in {', '.join(SUFFIXES)}", "none")
    parts = tuple(open_part(str(f), lambda f=f: f.open("rb"), choice) for f in files)  # type: ignore[misc]
    for part in parts[1:]:
        if part.n_classes != parts[0].n_classes or part.classes != parts[0].classes:
            fail(choice.caller, part.name, f"have the classes of {parts[0].name}",
                 classes_apart(part.classes, part.n_classes, parts[0].classes))  # fmt: skip
    return renamed(Table(parts, choice))


def renamed(table: Table) -> Table:
    """Return the table with its class columns called as the user says."""
    part = table.parts[0]
    names = called(part.classes, part.n_classes, table.choice, part.name)
    return replace(table, parts=tuple(replace(part, classes=names) for part in table.parts))


def called(columns: tuple[str, ...] | None, n_classes: int, choice: Choice, name: str) -> tuple[str, ...] | None:
    """Return what the class columns are called: as the user says, unless they have these names already, in whatever
    order. Names of which only some agree are refused."""
    names = choice.names
    if not names or (columns is not None and set(columns) == set(names)):
        return columns
    if len(names) != n_classes:
        fail(choice.caller, "--classes", f"name all {n_classes} classes of {name}", f"{len(names)} names")
    if columns is not None and set(columns) & set(names):
        fail(choice.caller, "--classes", f"agree with the columns of {name}, which have names",
             classes_apart(names, n_classes, columns),
             remedy="Leave it out to use the names of the columns")  # fmt: skip
    return names


def classes_apart(found: tuple[str, ...] | None, n_classes: int, wanted: tuple[str, ...] | None) -> str:
    """Return a short phrase for what a set of classes lacks, and has besides, of those wanted."""
    if found is None or wanted is None:
        said = counted(n_classes, "class", "classes")
        return said + (" without names" if found is None else f": {listed(found)}")
    return f"{n_classes} classes in another order" if sorted(found) == sorted(wanted) else difference(found, wanted)


SPOOLED: dict[tuple[str, int, int], IO[bytes]] = {}  # a pipe yields its bytes once, and readers want them again
atexit.register(lambda: [file.close() for file in SPOOLED.values()])


def opener_of(path: Path) -> Opener:
    """Return what opens a file, as often as needed; what comes through a pipe (`-`, a FIFO) is copied once."""
    if str(path) != "-" and (path.is_file() or not path.exists()):
        return lambda: path.open("rb")
    about = None if str(path) == "-" else path.stat()
    key = (str(path), about.st_dev, about.st_ino) if about else ("-", 0, 0)
    if about is None or key not in SPOOLED:
        file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # no crash can leave it behind
        with path.open("rb") if about else nullcontext(sys.stdin.buffer) as stream:
            shutil.copyfileobj(stream, file, 1 << 20)
        SPOOLED[key] = file
    return lambda: again(SPOOLED[key])


class again(io.BufferedReader):
    """The same open file from its start; closing this view leaves the file open for the next pass."""

    def __init__(self, file: IO[bytes]) -> None:
        file.seek(0)
        super().__init__(io.FileIO(file.fileno(), closefd=False))


def open_part(name: str, opener: Opener, choice: Choice) -> Part:
    """Return the reader that a file's first bytes, not its name, ask for."""
    with readable(name, choice.caller):
        with opener() as file:
            head = file.read(4096)
        if not head:
            fail(choice.caller, name, "have at least one row", "an empty file")
        kind = next((kind for magic, kind in MAGIC.items() if head.startswith(magic)), "")
        head = head.removeprefix(b"\xef\xbb\xbf")  # a mark that some programs put before UTF-8
        kind = kind or ("ndjson" if head.lstrip()[:1] in (b"{", b"[") else "csv")
        if kind in ("npy", "npz"):
            from reprior.io.npy import numpy_part

            part = numpy_part(name, opener, choice, kind)
        elif kind == "ndjson":
            from reprior.io.ndjson import ndjson_part

            part = ndjson_part(name, opener, choice)
        else:
            from reprior.io import arrow

            makers = {"parquet": arrow.parquet_part, "arrow": arrow.ipc_part, "csv": arrow.csv_part}
            part = makers[kind](name, opener, choice)
        check_names(part.classes, choice.caller, name)
        return replace(part, kind=kind)


def check_names(classes: tuple[str, ...] | None, caller: str, name: str) -> None:
    """Refuse class names that are no text, as half a surrogate pair in JSON: nothing could print or store them."""
    for label in classes or ():
        try:
            label.encode()
        except UnicodeEncodeError:
            fail(caller, name, "have class names that are text", ascii(label), remedy="Rename that class")


def lines_of(file: IO[bytes], caller: str, name: str) -> Iterator[bytes]:
    """Yield the lines of a file that hold anything, none of them beyond measure."""
    while line := file.readline(RECORD_BYTES + 1):
        if len(line) > RECORD_BYTES:
            too_long(caller, name)
        if line.strip():
            yield line


def too_long(caller: str, name: str) -> None:
    """Refuse what goes on for ever without an end of a line or record."""
    fail(caller, name, f"have lines or records of at most {RECORD_BYTES >> 20} MiB", "a longer one",
         remedy="Write one row on each line")  # fmt: skip


SOUGHT = {"--by": "groups", "--id": "names of the rows", "--labels": "labels"}


def missing(choice: Choice, name: str, wanted: str, there: dict[str, str]) -> None:
    """Refuse a column that is not there, and list what is: first what may hold labels, if it is those that lack."""
    labels = wanted in (choice.by, choice.label, *LABEL_NAMES)
    how = f"Name what holds the probabilities with `{choice.option}`, labels with `--label`"
    some = wanted == choice.label and not choice.with_labels  # labels of some rows, which also come as a list
    if wanted == choice.by or some:
        held = "labels with `--labels`" if some else f"{SOUGHT[choice.by_option]} with `{choice.by_option}`"
        how = f"Name what holds the {held}"
    order = sorted(there, key=lambda column: labels and there[column] in FLOATS)
    among = [column for column in order if there[column] not in FLOATS] if wanted in LABEL_NAMES else order
    how = perhaps_column(wanted, among) + how
    rule = f"have the column {wanted!r}"
    if some:
        rule += ", since there is no file of that name"
        how = perhaps_file(wanted) + how
    shown = [quoted(column) + (there[column] and f" ({there[column]})") for column in order]
    fail(choice.caller, name, rule, listed(shown, 30, str) or "no column", remedy=how)


def perhaps_column(wanted: str, there: Collection[str]) -> str:
    """Return which of the columns may have been meant; where labels are wanted, the only one that can hold them, which
    is none that names rows."""
    able = [column for column in there if column not in ID_NAMES]
    only = able[0] if wanted in LABEL_NAMES and len(able) == 1 else wanted
    meant = perhaps(only, there)
    return meant and f"{meant}. "


def perhaps_file(wanted: str) -> str:
    """Return which file of the folder may have been meant."""
    path = Path(wanted)
    try:
        there = [file.name for file in path.parent.iterdir() if file.is_file()]
    except OSError:
        return f"There is no folder {path.parent}. "
    meant = perhaps(path.name, there, lambda name: f"the file {str(path.parent / name)!r}")
    return meant and f"{meant}. "


def left_aside(fault: Fault, n_classes: int, unused: tuple[str, ...], kind: str = "numeric columns") -> str:
    """Return what to say of rows that break a rule on their sum where the source names only some of the columns."""
    if not unused or not ("sum" in fault.rule or "zero" in fault.rule):
        return ""
    rest = listed(unused, 10)
    return f"The source names {n_classes} of the {n_classes + len(unused)} {kind}; unused: {rest}. {fault.shell}"


def taken(rule: str, part: Part, choice: Choice) -> str:
    """Return which columns rows were made of, where those break the rule on their sum."""
    if not part.columns or "sum to 1" not in rule:
        return ""
    shown = part.columns if len(part.columns) < 6 else (*part.columns[:3], "…", part.columns[-1])
    return f". The columns taken as classes are {listed(shown)}: choose others with `{choice.option}`"


def beside(numbers: dict[str, Any]) -> set[str]:
    """Return which columns {name: its first values} hold whole numbers beside probabilities: they are no classes."""
    whole = {
        name for name, x in numbers.items() if x.dtype.kind in "iu" and (name in ID_NAMES or x.min() < 0 or x.max() > 1)
    }
    rest = [x for name, x in numbers.items() if name not in whole]
    if len(rest) < 2 or not any(x.dtype.kind == "f" for x in rest):
        return set()
    sums = np.sum(rest, axis=0)
    return whole if (np.abs(sums - 1) < 0.05).all() else whole.intersection(ID_NAMES)  # rounded, or no shares yet


def pick(choice: Choice, columns: list[str]) -> list[str]:
    """Return the columns meant by "a,b,c" or by "first:last", in the order of the file."""
    wanted = choice.columns or ""
    first, colon, last = wanted.partition(":")
    if colon and wanted not in columns and first in columns and last in columns:
        chosen = columns[columns.index(first) : columns.index(last) + 1]
        if not chosen:
            fail(choice.caller, choice.option, "name the first column before the last", wanted,
                 remedy=f"In the file {last} comes before {first}")  # fmt: skip
        return chosen
    return [wanted] if wanted in columns else [column.strip() for column in wanted.split(",")]
