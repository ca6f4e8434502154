"""Every error about user input is worded here, once, and raised before anything has changed.

Template: ``{caller}: `{name}` must {rule}; got {value}, first at {place}, {count} in all. {remedy}.``
"""

from __future__ import annotations

import math
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, NamedTuple, NoReturn
from unicodedata import normalize

import numpy as np

from reprior._kernels import loops, reference
from reprior._types import Labels, Matrix, PriorEstimate, Source, Vector

# what to do where names meet columns without any, whatever function was called
UNNAMED = "Name the columns, by a DataFrame, or by `classes` where that is an argument, as of `pipeline`"
# what to do where a method needs more than counts
UNLABELLED = "Give held-out rows with labels, by `summarize(proba, y)` (on the command line: `--source`)"
P_LIMITS = (0.001, 0.05)  # p-values below which something is refused, or said
ROW_SUM_TOLERANCE = 1e-3  # half of this is what rounding to float16 can cost a row


class InputError(ValueError):
    """Bad input: the message is one sentence that says what is wrong, where, and what to do next.

    It is a ValueError. Nothing has changed when it is raised.

    Parameters
    ----------
    message : str
        The sentence.
    shell : str
        The same for whoever gave the input on the command line, if options have other names there.

    Examples
    --------
    >>> check_proba([[0.5, 0.7]], "estimate")
    Traceback (most recent call last):
        ...
    reprior._check.InputError: estimate: `proba` must have rows that sum to 1 (±0.001); got a sum of 1.2...
    """

    def __init__(self, message: str = "", shell: str = "") -> None:
        super().__init__(message)
        self.shell = shell or message


def fail(
    caller: str, name: str, rule: str, got: object, *, place: str = "", count: int = 0, remedy: str = "",
    shell: str = "",
) -> NoReturn:  # fmt: skip
    """Raise the one kind of error that users see for their input; `shell` is the remedy on the command line, if it is
    another one there."""
    where = f", first at {place}" if place else ""
    total = f", {count} in all" if count else ""
    said = f"{caller}: `{name}` must {rule}; got {got}{where}{total}."
    raise InputError(*(said + (f" {how}." if how else "") for how in (remedy, shell or remedy)))


def warn(message: str) -> None:
    """Warn at the user's own line: the first one, from here outwards, that is not of this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "reprior":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def quoted(name: Any) -> str:
    """Return a name as sentences have it: in quotes if nobody could see where it ends.

    >>> quoted("cat"), quoted("cat, big"), quoted("cat ")
    ('cat', "'cat, big'", "'cat '")
    """
    text = str(name)
    return repr(text) if "," in text or not text or text != text.strip() else text


def listed(names: Sequence[Any], most: int = 8, quote: Callable[[Any], str] = quoted) -> str:
    """Return the first of some names, as sentences have them."""
    return ", ".join(map(quote, names[:most])) + ", …" * (len(names) > most)


def spelled(name: Any) -> str:
    """Return a name as names are compared: é is one character or two (NFC), which nobody can see."""
    text = str(name)
    return text if text.isascii() else normalize("NFC", text)


def perhaps(wanted: str, known: Iterable[str], quote: Callable[[str], str] = repr) -> str:
    """Return a sentence that tells which of the `known` names may have been meant, if one looks like it."""
    from difflib import get_close_matches

    lower = {name.lower(): name for name in known}
    close = get_close_matches(wanted.lower(), lower, n=1)
    return f"Perhaps you mean {quote(lower[close[0]])}" if close else ""


def percent(share: float, digits: int = 0) -> str:
    """Return a share as sentences have it."""
    return f"{100 * share:.{digits}f} %"


def counted(n: float, noun: str, many: str = "") -> str:
    """Return how many there are of something, as sentences have it."""
    return f"{n:,.0f} {noun if n == 1 else many or noun + 's'}"


def told_p(p: float) -> str:
    """Return a p-value as it is read, with digits enough to see on which side of a limit it is.

    >>> told_p(0.27123), told_p(0.00098), told_p(0.0010012), told_p(0.04996), told_p(1e-20)
    ('p = 0.27', 'p = 0.00098', 'p = 0.001001', 'p = 0.04996', 'p < 1e-12')
    """
    if p < 1e-12:
        return "p < 1e-12"
    shown = (f"{p:.{digits}g}" for digits in range(2, 18))
    return "p = " + next(text for text in shown if p in P_LIMITS or float(text) not in P_LIMITS)


def missing(noun: str, key: object, known: Iterable[object]) -> KeyError:
    """Return the error about a key that is not there, which says some that are."""
    some = listed(list(known), 5, repr)
    return KeyError(f"There is no {noun} {key!r}. " + (f"The {noun}s are {some}." if some else "There is none yet."))


def check_estimate(x: Any, caller: str) -> PriorEstimate:
    """Return `x` if it is an estimate."""
    if not isinstance(x, PriorEstimate):
        fail(caller, "estimate", "be what a method or a pipeline's `estimate` returned", f"a {type(x).__name__}")
    return x


def refuse_where(
    bad: Any, caller: str, name: str, rule: str, values: Any, *, place: Callable[[int], str] = "row {}".format,
    remedy: str = "",
) -> None:  # fmt: skip
    """Refuse the first of `values` (n, ...), or what they are called, that `bad` (n,) marks, if it marks any.

    `place` says where one of them is.
    """
    if bad.any():
        got = values if isinstance(values, str) else values[bad][0]
        got = got.tolist() if hasattr(got, "tolist") else got
        count = int(bad.sum()) if len(bad) > 1 else 0
        fail(caller, name, rule, got, place=place(int(np.argmax(bad))), count=count, remedy=remedy)


def names_of(
    x: Any, classes: Sequence[Any] | None = None, caller: str = "", name: str = "proba"
) -> tuple[Any, tuple[Any, ...] | None]:
    """Return the numbers of `x`, and what it calls its classes: the keys of a mapping, the index of a Series, the
    columns of a DataFrame.

    The numbers 0 to K − 1 are column indices and no names, unless `classes` are called so: the numbers of `x` are then
    put in their order. Beside names that are no numbers they must come in order. False and True are put in theirs where
    `classes` have no names. What pandas numbers by itself has no names; beside classes that are the same numbers in
    another order it is refused.
    """
    names = columns_of(x)
    values = np.asarray(list(x.values())) if isinstance(x, Mapping) else x.to_numpy() if hasattr(x, "to_numpy") else x
    if names is None:
        return values, None
    if isinstance(values, np.ndarray) and values.dtype.kind == "O" and values.ndim == 2:
        refuse_text(values, names, caller, name)
    told = None if classes is None else values_of(classes)
    if is_default(names) and told is not None and told != sorted(told) and set(told) == set(names):
        fail(caller, name, f"have names of its own beside the classes {listed(classes or ())}",
             f"0 to {len(names) - 1}, which pandas writes where there are none",
             remedy=f"Pass `{name}.to_numpy()` if it comes in the order of the classes, else name it by a list, as"
             " `set_axis` does")  # fmt: skip
    order = index_order(names, classes)
    if order is None:
        return values, tuple(names)
    if classes is not None and told is None and order.tolist() != list(range(len(order))):
        fail(caller, name, f"name its numbers as the classes, {listed(classes)}",
             f"the whole numbers {listed(list(names))}", remedy="Call them as the classes are called, or pass the"
             " numbers alone, in the order of the classes")  # fmt: skip
    return values[..., order], (False, True) if are_truths(names) else None


def refuse_text(values: Any, names: Any, caller: str, name: str) -> None:
    """Refuse the first column of a DataFrame (n, K) that holds text, by its name."""
    for column, cells in zip(names, values.T, strict=True):
        text = next((cell for cell in cells.tolist() if isinstance(cell, (str, bytes))), None)
        if text is not None:
            fail(caller, name, "hold numbers alone", f"text, as {text!r}, in the column {column!r}",
                 remedy="Leave that column out, or turn it into numbers")  # fmt: skip


def columns_of(x: Any) -> Any:
    """Return what `x` calls its numbers, as it has it: keys, columns or an index; None if it calls them nothing."""
    if isinstance(x, Mapping):
        return tuple(x)
    return getattr(x, "columns", getattr(x, "index", None)) if hasattr(x, "to_numpy") else None


def own_names(x: Any, classes: Sequence[Any] | None) -> Sequence[Any] | None:
    """Return by what to match the columns of rows that tell what the classes are: by `classes`, else by their own
    names in their own order. None: they have none, or are numbered from 0 on."""
    names = columns_of(x)
    if names is None or is_default(names):
        return None
    plain = not are_truths(names) and list(names) == list(range(len(names)))
    return classes if classes is not None else None if plain else tuple(names)


def is_default(names: Any) -> bool:
    """Return whether pandas has numbered the columns by itself."""
    return type(names).__name__ == "RangeIndex" and (names.start, names.step) == (0, 1)


def are_truths(names: Any) -> bool:
    """Return whether names are False and True themselves."""
    return len(names) == 2 and all(isinstance(label, (bool, np.bool_)) for label in names) and names[0] != names[1]


def values_of(names: Iterable[Any]) -> list[float] | None:
    """Return the numbers that names say, False and True as 0 and 1; None unless all say one.

    >>> values_of(["2", "0", 1]), values_of(["True", "False"]), values_of(["True", "2"])
    ([2.0, 0.0, 1.0], [1.0, 0.0], None)
    """
    told = [str(name) for name in names]
    truths = {"False": 0.0, "True": 1.0}
    if truths.keys() == {*told}:
        return [truths[name] for name in told]
    try:
        return [float(name) for name in told]
    except ValueError:
        return None


def index_order(names: Any, classes: Sequence[Any] | None) -> Labels | None:
    """Return the order that sorts names which are column indices; None where they are names."""
    if is_default(names):
        return np.arange(len(names))
    try:
        indices = set(names) == set(range(len(names)))
    except TypeError:  # what cannot be hashed is no index
        indices = False
    if not indices:
        return None
    if classes is not None:
        told = values_of(classes)
        same = {str(label) for label in names} == {str(label) for label in classes}
        if same or are_truths(names) or (told is not None and told != sorted(told) and set(told) == set(names)):
            return None
    return np.argsort(np.asarray(names, int))


def difference(found: Sequence[str], wanted: Sequence[str]) -> str:
    """Return a short phrase for what a set of class names lacks, and has besides, of those wanted."""
    there, asked = Counter(found), {*wanted}
    twice = [c for c, times in there.items() if times > 1]
    lacks, more = [c for c in wanted if c not in there], [c for c in found if c not in asked]
    phrases = [
        say.format(listed(some, 5))
        for say, some in (("without {}", lacks), ("with {} besides", more), ("with {} twice", twice))
        if some
    ]
    return f"{counted(len(found), 'class', 'classes')}, " + " and ".join(phrases)


def order_of(names: Sequence[Any], classes: Sequence[Any], caller: str, name: str) -> list[int]:
    """Return the place in `names` of each of `classes`: the one way in which names are matched."""
    found, classes = [spelled(label) for label in names], [spelled(label) for label in classes]
    if len(found) != len(classes) or set(found) != set(classes):
        fail(caller, name, f"have the {len(classes)} classes of the source", difference(found, classes),
             remedy=f"The classes are {listed(classes)}")  # fmt: skip
    place = {label: i for i, label in enumerate(found)}
    return [place[label] for label in classes]


def in_order(
    x: Any, caller: str, name: str, classes: Sequence[str] | None = None
) -> tuple[np.ndarray[Any, Any], tuple[str, ...] | None]:
    """Return one number a class (K,), put in the order of `classes` by name, and the names if there are any.

    Where the columns have no names, those of `x` must come in the order that classifiers use, which is sorted: the
    counts of `value_counts`, largest first, would else meet the wrong columns in silence.
    """
    values, names = names_of(x, classes, caller, name)
    array = as_array(values, caller, name)
    if names is None or array.ndim != 1:
        return array, None if classes is None else tuple(classes)
    if classes is not None:
        return array[order_of(names, classes, caller, name)], tuple(classes)
    try:
        ordered = sorted(names)
    except TypeError:  # of mixed types
        ordered = sorted(names, key=str)
    if list(names) != ordered:
        fail(caller, name, "come in the sorted order of its names, since the rows have no names to match",
             f"{names[0]} first", remedy=f"{UNNAMED}. Or sort it by name, if the columns are sorted. Or pass the"
             " numbers alone, in the order of the columns")  # fmt: skip
    return array, tuple(map(str, names))


def is_masked(x: Any) -> bool:
    """Return whether `x` is an array with a mask; np.ma, which is slow to import, is asked only about one that may."""
    return hasattr(x, "mask") and isinstance(x, np.ma.MaskedArray)


def as_array(x: Any, caller: str, name: str) -> np.ndarray[Any, Any]:
    """Return `x` as an array without copying what NumPy can share; tensors leave their graph and device."""
    if hasattr(x, "detach"):  # a torch tensor, perhaps with a gradient, on a device, in bfloat16
        x = x.detach().cpu()
        x = x.float() if "bfloat16" in str(x.dtype) else x
    if is_masked(x) and np.ma.is_masked(x):
        count = int(np.ma.getmaskarray(x).sum())
        fail(caller, name, "have no masked value", f"{count} of them", remedy="Drop or fill them")
    try:
        array = np.asarray(x)
    except (ValueError, TypeError):
        fail(caller, name, "be a rectangular array of numbers", "ragged or mixed values")
    if array.dtype == object or array.dtype.kind not in "fiub":
        refuse_other(x, array, caller, name)
    return array if array.flags.aligned else array.copy()  # as one at an odd offset in a packet is not


def refuse_other(x: Any, array: np.ndarray[Any, Any], caller: str, name: str) -> NoReturn:
    """Refuse what is no array of numbers, and say how to make one of it."""
    first = array.flat[0] if array.size else None
    got, remedy = f"dtype {array.dtype}", ""
    if isinstance(x, (str, PurePath)):
        got, remedy = f"the text {str(x)[:80]!r}", "If that is a file, read it first, as by `pandas.read_csv`"
    elif x is None:
        got = "None"
    elif hasattr(x, "toarray"):
        got, remedy = "a sparse matrix", f"Pass `{name}.toarray()`"
    elif isinstance(first, Mapping):
        got, remedy = "a list of dicts", f"Pass `pandas.DataFrame({name})`"
    elif array.dtype.kind in "US" or isinstance(first, str):
        got, remedy = f"text, as {str(first)[:40]!r}", "Leave text out, or turn it into numbers"
    elif array.dtype == object and array.ndim:
        got, remedy = f"objects, as {str(first)[:40]}", f"Pass `{name}.astype(float)`"
    fail(caller, name, "be an array of numbers", got, remedy=remedy)


def check_matrix(x: Any, caller: str, name: str, n_classes: int | None = None) -> Matrix:
    """Return `x` as an (n, K) array of floats with n > 0 and the right K; values are not looked at yet."""
    array = as_array(x, caller, name)
    if array.ndim != 2:
        remedy = "For one row pass `p[None, :]`, of a Series `p.to_frame().T`" if array.ndim == 1 else ""
        fail(caller, name, "have shape (n, K)", f"shape {array.shape}", remedy=remedy)
    if array.shape[0] == 0:
        fail(caller, name, "have at least one row", f"shape {array.shape}", remedy="Skip empty batches")
    if array.shape[1] < 2:
        fail(caller, name, "have at least two classes", f"shape {array.shape}",
             remedy="For a binary classifier pass both columns, [1 - p, p]")  # fmt: skip
    if n_classes is not None and array.shape[1] != n_classes:
        fail(caller, name, f"have {n_classes} columns, one for each class of the source", f"{array.shape[1]}",
             remedy="Give the columns in the order of the source's classes")  # fmt: skip
    return array if array.dtype.kind == "f" else array.astype(np.float64)


class Fault(NamedTuple):
    """The first row that is no probability vector, what it breaks and by what value, how many rows do so, and what to
    do about it, in Python and on the command line."""

    row: int
    rule: str
    value: str
    rows: int
    remedy: str
    shell: str


def row_fault(block: Matrix) -> Fault | None:
    """Return what is wrong with the rows of a block (n, K), or None if all are probability vectors."""
    bad = loops.first_bad_row(block)
    if bad == reference.REFUSED:  # a type or order that only NumPy can read
        bad = reference.first_bad_row(block)
    if bad == reference.DONE:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        sums = (block @ np.ones(block.shape[1]))[:, None]
    off = ~(np.abs(sums - 1) <= reference.SUM_TOLERANCE)
    total = "a sum of {:.10g}"  # digits enough to show the fault
    drop, silent = "Drop or repair those rows", "Drop those rows: they say nothing about any class"
    rounded = "If these are rounded probabilities or counts, "
    for bad, values, shown, rule, remedy, shell in (
        (~np.isfinite(block), block, "{}", "contain only finite numbers", drop, drop),
        (block < 0, block, "{}", "contain no negative number",
         "If these are logits, apply softmax first, or fit a `pipeline` with `logits=True`",
         "If these are logits, say `--logits`"),
        (sums == 0, sums, total, "have no all-zero row", silent, silent),
        (off, sums, total, f"have rows that sum to 1 (±{ROW_SUM_TOLERANCE:g})",
         rounded + "divide each row by its sum first. If these are logits, apply softmax first, or fit a `pipeline`"
         " with `logits=True`",
         rounded + "say `--normalize`, which divides each row by its sum. If these are logits, say `--logits`"),
    ):  # fmt: skip
        rows = bad.any(axis=1)
        if rows.any():
            first = int(np.argmax(rows))
            value = shown.format(float(values[first][bad[first]][0]))
            return Fault(first, rule, value, int(rows.sum()), remedy, shell)
    return None  # a sum at the very edge, which rounding puts on either side


def check_rows(blocks: Iterable[tuple[int, Matrix]], caller: str, name: str, summed: str = "") -> None:
    """Refuse the first row, over (first row number, block) pairs, that is no probability vector.

    `summed` is added to the remedy where a sum is wrong.
    """
    found: Fault | None = None
    for first, block in blocks:
        fault = row_fault(block)
        if fault and found is None:
            found = fault._replace(row=first + fault.row)
        elif fault and found and fault.rule == found.rule:
            found = found._replace(rows=found.rows + fault.rows)
    if found:
        place = f"row {found.row} (the first is row 0)"
        more = summed * ("sum to 1" in found.rule)
        fail(caller, name, found.rule, found.value, place=place, count=found.rows, remedy=found.remedy + more,
             shell=found.shell + more)  # fmt: skip


def check_proba(x: Any, caller: str, name: str = "proba", n_classes: int | None = None) -> Matrix:
    """Return `x` as an (n, K) array of floats whose rows are probability vectors; it is not copied as a whole."""
    array = check_matrix(x, caller, name, n_classes)
    size = max(16, (1 << 16) // array.shape[1])  # of a block that stays in cache
    starts = range(0, len(array), size)
    kind = np.result_type(array.dtype, np.float32)
    check_rows(((first, np.asarray(array[first : first + size], kind)) for first in starts), caller, name)
    return array


def check_logits(x: Any, caller: str, n_classes: int | None = None) -> Matrix:
    """Return `x` as an (n, K) array of finite numbers."""
    array = check_matrix(x, caller, "logits", n_classes)
    bad = ~np.isfinite(array)
    first = array[np.arange(len(array)), bad.argmax(axis=1)]
    refuse_where(bad.any(axis=1), caller, "logits", "contain only finite numbers", first)
    # no row but one in ten thousand of logits adds up to 1; as logits, probabilities would say next to nothing
    if len(array) and (array >= 0).all() and (np.abs(array.sum(axis=1, dtype=np.float64) - 1) < 1e-4).all():
        fail(caller, "logits", "be logits", "rows of probabilities",
             remedy="Pass them as probabilities, or take their logarithm")  # fmt: skip
    return array


def check_classes(classes: Any, names: tuple[Any, ...] | None, n_classes: int, caller: str) -> tuple[str, ...] | None:
    """Return the names of the K columns: `classes` if given, else what the rows call them."""
    if isinstance(classes, (str, int)):
        fail(caller, "classes", f"be the names of the {n_classes} classes", repr(classes))
    check_order(classes, caller)
    found = names if classes is None else tuple(classes)
    if found is None:
        return None
    told = tuple(str(label) for label in found)
    if len(told) != n_classes or len({*map(spelled, told)}) < n_classes:
        alike = len({*told}) == n_classes == len(told)
        fail(caller, "classes", f"name {n_classes} classes, each once", f"{len(told)} names: {listed(told)}",
             remedy="Two of them look the same: only their Unicode differs (NFC and NFD)" * alike)  # fmt: skip
    return told


def check_order(classes: Any, caller: str) -> None:
    """Refuse names of classes that come in no order, or among which one is missing."""
    if isinstance(classes, (set, frozenset)):
        fail(caller, "classes", "come in the order of the columns", "a set, which has no order",
             remedy="Pass a list, as `list(model.classes_)`")  # fmt: skip
    for at, label in enumerate(() if classes is None or isinstance(classes, (str, int)) else classes):
        if label is None or type(label).__name__ in ("NAType", "NaTType") or label != label:
            fail(caller, "classes", "have a name for every class", label, place=f"column {at}",
                 remedy="Give that class a name")  # fmt: skip


def check_row(p: Any, caller: str, name: str, n_classes: int) -> Vector:
    """Return one sample's probabilities (K,) as float64, or refuse it."""
    array = as_array(p, caller, name)
    if array.shape != (n_classes,):
        fail(caller, name, f"have shape ({n_classes},)", f"shape {array.shape}")
    row = np.ascontiguousarray(array, dtype=np.float64)
    fault = row_fault(row[None, :])
    if fault:
        rule = fault.rule.replace("have rows that sum", "sum").replace("have no all-zero row", "not be all zero")
        fail(caller, name, rule, fault.value, remedy=fault.remedy, shell=fault.shell)
    return row


def check_prior(
    x: Any, caller: str, name: str, *, allow_zero: bool = False, n_classes: int | None = None, like: str = "",
    classes: Sequence[str] | None = None,
) -> Vector:  # fmt: skip
    """Return class counts or a prior (K,) as a prior that sums to one; zeros are refused unless allowed.

    `like` names what has the `n_classes` that it must have too. One with names is put in the order of `classes`.
    """
    array = in_order(x, caller, name, classes)[0].astype(np.float64)
    if array.ndim != 1 or array.size < 2:
        fail(caller, name, "be a vector of at least two class counts or probabilities", f"shape {array.shape}")
    least, most, class_at = array.min(), array.max(), "class {}".format
    if not 1e-100 * most < least <= most < math.inf:  # else there is no fault to look for
        refuse_where(~np.isfinite(array), caller, name, "contain only finite numbers", array, place=class_at)
        if allow_zero:
            refuse_where(array < 0, caller, name, "contain no negative number", array, place=class_at)
        else:  # beyond a factor of 1e100 between two classes their squared weights would leave the range of a float
            remedy = "Leave out classes the classifier was never trained on, or give them a small count"
            tiny = array <= 1e-100 * most
            refuse_where(tiny, caller, name, "be positive for every class", array, place=class_at, remedy=remedy)
        if not array.any():
            fail(caller, name, "have a positive sum", 0.0)
    if n_classes is not None and len(array) != n_classes:
        fail(caller, name, f"have {n_classes} classes" + (like and f" like {like}"), len(array))
    if most <= 1 and abs(array.sum() - 1) < 1e-14:
        return array  # bit for bit what was given
    array = array / most
    return np.asarray(array / array.sum())


def check_source(source: Any, caller: str, names: Sequence[Any] | None = None) -> Source:
    """Return a `Source` from one, or from class counts or a prior; `names` (K,) are what the rows call the classes."""
    if isinstance(source, Source):
        prior = check_prior(source.prior, caller, "source.prior")
        called = check_classes(source.classes, None if names is None else tuple(names), len(prior), caller)
        return replace(source, prior=prior, classes=called)
    if isinstance(getattr(source, "source", None), Source):
        raw = (
            "; rows must then be calibrated, by its `calibrate`. Its own `estimate`, `stream` and `table` take raw rows"
        )
        fail(caller, "source", "be a Source, class counts or a prior", f"a {type(source).__name__}",
             remedy="Pass its `source`" + raw * hasattr(source, "calibrate"))  # fmt: skip
    told = None if names is None else [str(label) for label in names]
    numbers, classes = in_order(source, caller, "source", told)
    prior = check_prior(numbers, caller, "source")
    return Source(prior, classes=check_classes(classes, None, len(prior), caller))


def check_number(
    value: Any, caller: str, name: str, *, low: float = -math.inf, high: float = math.inf, open_low: bool = False,
    whole: bool = False,
) -> float:  # fmt: skip
    """Return a finite number inside [low, high] (or (low, high])."""
    kind, least = "a whole number" if whole else "a number", "above" if open_low else "of at least"
    rule = f"be {kind} {least} {low:g}" + (f" and at most {high:g}" if high < math.inf else "")
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        fail(caller, name, rule, repr(value))
    try:
        number = float(value)
    except OverflowError:
        fail(caller, name, rule, "a whole number too large for a float")
    inside = math.isfinite(number) and low <= number <= high and not (open_low and number == low)
    if not inside or (whole and not number.is_integer()):
        fail(caller, name, rule, value)
    return number


def check_level(level: Any, caller: str) -> float:
    """Return the level of an interval, a number above 0 and below 1."""
    bad = isinstance(level, bool) or not isinstance(level, (int, float, np.integer, np.floating))
    if bad or not 0 < level < 1:
        fail(caller, "level", "be a number above 0 and below 1", repr(level))
    return float(level)


def check_int(value: Any, caller: str, name: str, *, low: float = 1) -> int:
    """Return a whole number of at least `low`."""
    return int(check_number(value, caller, name, low=low, whole=True))


def check_choice(value: Any, caller: str, name: str, choices: Sequence[str]) -> str:
    """Return `value` if it is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        meant = perhaps(value, choices) if isinstance(value, str) else ""
        fail(caller, name, "be one of " + ", ".join(repr(c) for c in choices), repr(value), remedy=meant)
    return str(value)


def as_rng(rng: int | np.random.Generator | None) -> np.random.Generator:
    """Return a generator from a seed or a generator."""
    if rng is not None and not isinstance(rng, (int, np.integer, np.random.Generator)):
        fail("rng", "rng", "be a whole number or a numpy Generator", repr(rng))
    return rng if isinstance(rng, np.random.Generator) else np.random.default_rng(rng)


def check_flag(value: Any, caller: str, name: str) -> bool:
    """Return `value` if it is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        fail(caller, name, "be True or False", repr(value))
    return bool(value)
