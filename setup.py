"""The one thing pyproject.toml cannot say: build the native kernel if there is a compiler, else go on without."""

from pathlib import Path

from setuptools import Extension, setup

native = Path("src/reprior/_kernels/native.c")
setup(
    ext_modules=[
        Extension(
            "reprior._kernels.native",
            [str(native), str(native.with_name("small.c"))],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            extra_compile_args=["-O3", "-std=c11", "-fno-math-errno", "-ffp-contract=off", "-g0"],
            py_limited_api=True,
            optional=True,
        )
    ]
    if native.exists()
    else [],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
