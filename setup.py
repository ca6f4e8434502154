"""What pyproject.toml cannot say: build the native kernel if there is a compiler, else go on without.

REPRIOR_PURE=1 leaves it out, for a wheel that installs anywhere.
"""

import os
from pathlib import Path

from setuptools import Extension, setup

# -fwrapv is among the flags of most Pythons; without it GCC 12 fails on the kernel
FLAGS = "-O3 -std=c11 -fno-math-errno -fno-trapping-math -fwrapv -ffp-contract=off -Wno-psabi -g0"
native = Path("src/reprior/_kernels/native.c")
pure = os.environ.get("REPRIOR_PURE") == "1" or not native.exists()
setup(
    ext_modules=[]
    if pure
    else [
        Extension(
            "reprior._kernels.native",
            [str(native), *(str(native.with_name(name)) for name in ("small.c", "rows_json.c"))],
            depends=[str(native.with_name(name)) for name in ("buffers.h", "ebls.h", "lanes.h")],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            extra_compile_args=FLAGS.split(),
            py_limited_api=True,
            optional=True,
        )
    ],
    options={} if pure else {"bdist_wheel": {"py_limited_api": "cp311"}},
)
