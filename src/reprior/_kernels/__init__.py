"""The inner loops. `reference` (NumPy) is the specification; `native` (C, optional) holds the per-sample loops.

`loops` is the one in use: native if it was built, unless the environment says REPRIOR_NATIVE=0.
"""

import os
from contextlib import suppress
from typing import Any

from reprior._kernels import reference

loops: Any = reference
if os.environ.get("REPRIOR_NATIVE") != "0":
    with suppress(ImportError):  # there was no compiler when it was installed
        from reprior._kernels import native

        if all(hasattr(native, name) for name in reference.__all__):  # else it was built from older sources
            loops = native

NATIVE: bool = loops is not reference
SENTENCE: str = (
    "native (C): the per-sample loops are compiled"
    if NATIVE
    else "reference (NumPy): same results, slower streams; a C compiler at install time gives the native ones"
)

__all__ = ["NATIVE", "SENTENCE", "loops", "reference"]
