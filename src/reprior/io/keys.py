"""The values that one more column of a file has in all rows, and the keys of groups among them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reprior._check import fail
from reprior.io.table import Choice, Part, Table, readable


def column_values(part: Part, choice: Choice) -> list[Any]:
    """Return the values in all rows of the column `choice.by`, each distinct one stored once."""
    assert part.groups is not None
    distinct: dict[Any, Any] = {}
    with readable(part.name, choice.caller):
        return [distinct.setdefault(value, value) if is_key(value) else value
                for some in part.groups() for value in some]  # fmt: skip


def is_key(key: Any) -> bool:
    """Return whether a value can name a group: text that is not empty, or a finite number."""
    return bool(key) if isinstance(key, str) else isinstance(key, (int, float)) and math.isfinite(key)


def group_keys(table: Table) -> list[NDArray[np.object_]]:
    """Return the keys of the rows of each part, (n,) each; a row without a key is refused."""
    return [part_keys(part, table.choice) for part in table.parts]


def part_keys(part: Part, choice: Choice) -> NDArray[np.object_]:
    """Return the keys of the rows of a part (n,)."""
    keys = column_values(part, choice)
    bad = next((row for row, key in enumerate(keys) if not is_key(key)), None)
    if bad is not None:
        key = keys[bad]
        lacks = key is None or key == "" or key != key
        rule = f"name a group in {choice.by!r} in every row" if lacks else "have text or numbers as keys"
        fail(choice.caller, part.name, rule, "none" if lacks else repr(key)[:60],
             place=f"row {bad} of this file (the first is row 0)",
             remedy="Drop those rows, or give them a key of their own")  # fmt: skip
    return np.fromiter(keys, object, len(keys))
