"""Compile the hot modules where a compiler is found; install the same files as plain Python where none is.

Knows: which modules are compiled and how. Refuses to know: anything about the package's contents beyond that.
`BRAIDLOG_PURE=1 pip install .` skips the compiler on purpose; with `BRAIDLOG_PURE=0`, as for wheels, it may not be missing.
"""

import os

from setuptools import setup
from setuptools.extension import Extension

COMPILED = (
    "codec.batch.kernel",
    "codec.batch.record_slice",
    "codec.batch.rows",
    "codec.batch.schema_ids",
    "codec.columns.arrow_to_records",
    "codec.columns.column_blocks",
    "codec.columns.json_to_arrow",
    "codec.columns.records_to_arrow",
    "kv.feed.feed_rows",
    "kv.replicated.log_kernel",
    "wire.mayfly.bursts",
)
KERNEL = [
    Extension(
        f"braidlog.{name}",
        [f"src/braidlog/{name.replace('.', '/')}.py"],
        depends=["src/braidlog/codec/batch/record.pxd"],
        extra_compile_args=["-O3", "-g0"],  # Python was built with -g: a third of the time a compiler takes
    )
    for name in COMPILED
]


def extensions() -> list[Extension]:
    if os.environ.get("BRAIDLOG_PURE") == "1":
        return []
    from Cython.Build import cythonize  # noqa: PLC0415 - a build without a compiler needs no Cython

    modules: list[Extension] = cythonize(  # type: ignore[no-untyped-call]
        KERNEL,
        language_level=3,
        annotate=False,
        include_path=["src"],
        build_dir="build",  # what is compiled is no part of the package
    )
    for module in modules:
        # A failed compilation is a slower install, not a failed one; cythonize forgets it.
        module.optional = os.environ.get("BRAIDLOG_PURE") != "0"
    return modules


setup(ext_modules=extensions())
