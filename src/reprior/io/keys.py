"""The groups of the rows of files: a column of keys, as numbers in the order in which they are met."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reprior._check import fail
from reprior.io.table import Part, Table, readable

CHANGED = "The file was changed while it was read. Run the command again"


def group_codes(table: Table, part: Part, slots: dict[Hashable, int], *, fixed: bool = False) -> NDArray[np.int64]:
    """Return the number in `slots` of each row's key (n,); a new key is added, or refused if `fixed`."""
    assert part.groups is not None
    choice, codes, first = table.choice, [], 0
    with readable(part.name, choice.caller):
        for keys in part.groups():
            for row, key in enumerate(keys):
                if not is_key(key):
                    lacks = key is None or key == "" or key != key
                    rule = f"name a group in {choice.by!r} in every row" if lacks else "have text or numbers as keys"
                    fail(choice.caller, part.name, rule, "none" if lacks else repr(key)[:60],
                         place=f"row {first + row} of this file (the first is row 0)",
                         remedy="Drop those rows, or give them a key of their own")  # fmt: skip
                if fixed and key not in slots:
                    fail(choice.caller, part.name, "have the same groups in every pass", repr(key)[:60], remedy=CHANGED)
            codes.append(np.array([slots.setdefault(key, len(slots)) for key in keys], np.int64))
            first += len(keys)
    return np.concatenate([np.empty(0, np.int64), *codes])


def is_key(key: Any) -> bool:
    """Return whether a value can name a group: text that is not empty, or a finite number."""
    return bool(key) if isinstance(key, str) else isinstance(key, (int, float)) and math.isfinite(key)


def group_keys(table: Table) -> NDArray[np.object_]:
    """Return the keys of all rows (n,)."""
    slots: dict[Hashable, int] = {}
    codes = np.concatenate([group_codes(table, part, slots) for part in table.parts])
    return np.asarray(np.array([*slots], object)[codes])
