"""Numbers and names as sentences have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from unicodedata import normalize

REJECTED, NOTED = 0.001, 0.05  # p-values below which something is clear, and refused, or is worth a word


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
