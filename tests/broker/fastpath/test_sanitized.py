"""The comparisons of the fast path, of packing, and of entry batches under AddressSanitizer and
UBSan, with buffers exactly as long as their content. They run only with RMQPY_SANITIZE=1.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    os.environ.get("RMQPY_SANITIZE") != "1", reason="on demand only: RMQPY_SANITIZE=1"
)

ROOT = Path(__file__).parents[3]
COMPARISONS = (
    (
        "tests/broker/fastpath/test_engine.py",
        "tests/broker/fastpath/test_frames.py",
        "tests/broker/fastpath/test_streams.py",
        "tests/codec/test_entry_batch.py",
    ),
    (
        "tests/broker/fastpath/test_copies.py",
        "tests/broker/fastpath/test_delivery.py",
        "tests/broker/fastpath/test_gathered_units.py",
        "tests/broker/fastpath/test_held_pulls.py",
        "tests/broker/fastpath/test_offset_requests.py",
        "tests/broker/fastpath/test_sql_programs.py",
        "tests/broker/fastpath/test_sql_pulls.py",
        "tests/broker/fastpath/test_unmapped_queues.py",
        "tests/codec/test_packing.py",
        "tests/audit/test_pool_folders.py",
        "tests/store/queues/test_unit_folders.py",
    ),
)
"""The tests of two processes that run side by side and take about the same time."""

RUN = """
import importlib.util, sys, pytest
spec = importlib.util.spec_from_file_location("rmqpy._native", sys.argv[1])
native = importlib.util.module_from_spec(spec)
sys.modules["rmqpy._native"] = native
spec.loader.exec_module(native)
import rmqpy.broker.fastpath.engine as engine, rmqpy.broker.fastpath.tables as tables
import rmqpy.broker.fastpath.dispatch as dispatch, rmqpy.broker.fastpath.hold as hold
import rmqpy.store.files.staging as staging
allocate = lambda kind, count: native.ffi.new(f"{kind}[]", count)
engine.c_array = tables.c_array = hold.c_array = dispatch.c_array = allocate
hold.CAPACITY = 600
staging._memory = lambda length: memoryview(bytearray(length))

def feed(self, data, have=0):
    whole = bytes(self._in[:have]) + bytes(data)
    core = self.core
    core.in_position, core.in_length = 0, len(whole)
    exact = self._keep("in", native.ffi.new("uint8_t[]", whole or b"\\0"))
    setattr(core, "in", exact)
    self._in = memoryview(native.ffi.buffer(exact))

def unread(self, data):
    self._in = memoryview(bytes(data))
    return True

engine.FastPath.feed, engine.FastPath.unread = feed, unread
sys.exit(pytest.main(["-q", "--capture=sys", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


def _build(folder: Path) -> Path:
    """Build the extension with sanitizers and return its path."""
    spec = importlib.util.spec_from_file_location("recipe", ROOT / "native" / "build_native.py")
    assert spec is not None and spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    recipe.ffibuilder.emit_c_code(str(folder / "_native.c"))
    library = folder / "_native.so"
    import sysconfig

    sources = [str(ROOT / "native" / f"{name}.c") for name in recipe.SOURCES]
    options = "-shared -fPIC -g -O1 -std=c11 -fsanitize=address,undefined -fno-sanitize-recover=all"
    include = [f"-I{sysconfig.get_paths()['include']}", f"-I{ROOT / 'native'}"]
    command = [
        "gcc",
        *options.split(),
        *include,
        str(folder / "_native.c"),
        *sources,
        "-o",
        str(library),
    ]
    subprocess.run(command, check=True, timeout=300)
    return library


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    library = _build(tmp_path)
    runtime = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    environment = {
        **os.environ,
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(ROOT),
    }
    environment.setdefault("RMQPY_HOT_SEEDS", "60")
    words = [sys.executable, "-c", RUN, str(library), "--hypothesis-profile=quick"]
    running = [
        subprocess.Popen(
            [*words, *tests],
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for tests in COMPARISONS
    ]
    for each in running:
        print(each.communicate(timeout=900)[0])
    assert [each.returncode for each in running] == [0, 0], "see the output of both"
