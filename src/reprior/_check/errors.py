"""How bad input is refused, how a warning finds the user's own line, and numbers and names as sentences have them."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any, NoReturn
from unicodedata import normalize

import numpy as np

REJECTED, NOTED = 0.001, 0.05  # p-values below which something is clear, and refused, or is worth a word
# what to do where a method needs more than counts
UNLABELLED = "Pass held-out samples with labels: `summarize(proba, y)` (on the command line: `--source`)"
# what to do where names meet columns without any, whatever function was called
UNNAMED = "Name the columns with a DataFrame, or with `classes`, for example in `pipeline`"
SOFTMAX = "If these are logits, apply softmax first, or fit a `pipeline` with `logits=True`"
DIVIDE = "divide each row by its sum first"
IN_SHELL = {  # what to do instead on the command line
    UNNAMED: "Count labels from 0, write names of classes, or name the columns with `--classes FILE`",
    SOFTMAX: "If these are logits, pass `--logits`", DIVIDE: "pass `--normalize`, which divides each row by its sum",
}  # fmt: skip


class InputError(ValueError):
    """The input is not valid. The message names what is wrong, where, and how to fix it.

    It is a ValueError. Nothing has changed when it is raised.

    Parameters
    ----------
    message : str
        The message.

    Examples
    --------
    >>> check_proba([[0.5, 0.7]], "estimate")
    Traceback (most recent call last):
        ...
    reprior._check.InputError: estimate: `proba` must have rows that sum to 1 (±0.001); got a sum of 1.2...
    """

    __module__ = "reprior._check"  # what tracebacks call it

    @property
    def shell(self) -> str:
        """The message for the command line, where options have other names."""
        return reduce(lambda text, advice: text.replace(*advice), IN_SHELL.items(), str(self))


def fail(
    caller: str, name: str, rule: str, got: object, *, place: str = "", count: int = 0, remedy: str = ""
) -> NoReturn:
    """Raise the one kind of error that users see for their input."""
    where = f", first at {place}" if place else ""
    total = f", {count} in all" if count else ""
    how = f" {remedy}." if remedy else ""
    raise InputError(f"{caller}: `{name}` must {rule}; got {got}{where}{total}.{how}")


def refuse_where(
    bad: Any, caller: str, name: str, rule: str, values: Any, *, place: Callable[[int], str] = "row {}".format,
    remedy: str = "",
) -> None:  # fmt: skip
    """Refuse the first of `values` (n, ...) that `bad` (n,) marks, if it marks any; `place` says where it is."""
    if bad.any():
        got = values if isinstance(values, str) else values[bad][0]
        got = got.tolist() if hasattr(got, "tolist") else got
        count = int(bad.sum()) if len(bad) > 1 else 0
        fail(caller, name, rule, got, place=place(int(np.argmax(bad))), count=count, remedy=remedy)


def missing(noun: str, key: object, keys: Iterable[object]) -> KeyError:
    """Return the error about a key that is not there, which says some that are."""
    some = listed(list(keys), 5, repr)
    return KeyError(f"There is no {noun} {key!r}. " + (f"The {noun}s are {some}." if some else "There is none yet."))


def warn(message: str, kind: type[Warning] = UserWarning) -> None:
    """Warn at the user's own line: the first one, from here outwards, that is not of this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "reprior":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, kind, stacklevel=level)


def quoted(name: Any) -> str:
    """Return a name as sentences have it: in quotes if nobody could see all of it.

    >>> quoted("cat"), quoted("cat, big"), quoted("cat ")
    ('cat', "'cat, big'", "'cat '")
    """
    text = str(name)
    plain = text and "," not in text and text == text.strip() and text.isprintable()
    return text if plain else repr(text)


def listed(names: Sequence[Any], most: int = 8, quote: Callable[[Any], str] = quoted) -> str:
    """Return the first of some names, as sentences have them."""
    return ", ".join(map(quote, names[:most])) + ", …" * (len(names) > most)


def spelled(name: Any) -> str:
    """Return a name as names are compared: é is one character or two (NFC), which nobody can see."""
    text = str(name)
    return text if text.isascii() else normalize("NFC", text)


def counted(n: float, noun: str, many: str = "") -> str:
    """Return how many there are of something, as sentences have it."""
    return f"{n:,.0f} {noun if n == 1 else many or noun + 's'}"


def percent(share: float, digits: int = 0) -> str:
    """Return a share as sentences have it."""
    return f"{100 * share:.{digits}f} %"


def p_text(p: float) -> str:
    """Return a p-value as it is read, with digits enough to see on which side of a limit it is.

    >>> p_text(0.27123), p_text(0.00098), p_text(0.0010012), p_text(0.04996), p_text(1e-20)
    ('p = 0.27', 'p = 0.00098', 'p = 0.001001', 'p = 0.04996', 'p < 1e-12')
    """
    if p < 1e-12:
        return "p < 1e-12"
    shown = (f"{p:.{digits}g}" for digits in range(2, 18))
    limits = (REJECTED, NOTED)
    return "p = " + next(text for text in shown if p in limits or float(text) not in limits)


def perhaps(wanted: str, candidates: Iterable[str], quote: Callable[[str], str] = repr) -> str:
    """Return a sentence that tells which of the candidates may have been meant, if one looks like it."""
    from difflib import get_close_matches

    lower = {name.lower(): name for name in candidates}
    close = get_close_matches(wanted.lower(), lower, n=1)
    return f"Perhaps you mean {quote(lower[close[0]])}" if close else ""
