"""Build the extension ``rmqpy._native`` with cffi, from setup.py.

The extension is optional: without a compiler, rmqpy is installed as pure Python.
"""

import sys
from pathlib import Path

from cffi import FFI

FOLDER = Path(__file__).parent
HEADER = (FOLDER / "rmqpy_native.h").read_text(encoding="utf-8")
DECLARATIONS = HEADER.partition("/* cffi: begin */")[2].partition("/* cffi: end */")[0]

SOURCES = (
    "crc32",
    "properties",
    "scan",
    "search",
    "parts",
    "tally",
    "sums",
    "header",
    "append",
    "copy",
    "replies",
    "table",
    "feed",
    "sql",
    "pull",
    "hold",
    "query",
    "access",
    "sha1",
    "base64",
    "push",
    "index",
    "dispatch",
    "pack",
    "socket",
    "mapping",
    "folders",
    "lost_pages",
)

# Debug information names the folder of the build, which differs between builds of the same sources.
FLAGS = ["-O3", "-std=c11", "-fvisibility=hidden", "-g0"]
if sys.platform == "linux":
    FLAGS.append("-fno-plt")

ffibuilder = FFI()
ffibuilder.cdef(DECLARATIONS)
ffibuilder.set_source(
    "rmqpy._native",
    '#include "rmqpy_native.h"',
    sources=[f"native/{name}.c" for name in SOURCES],
    depends=["native/rmqpy_native.h"],
    include_dirs=["native"],
    extra_compile_args=FLAGS,
    optional=True,
)

if __name__ == "__main__":
    ffibuilder.compile(verbose=True)
