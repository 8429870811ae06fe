"""Build sdist and wheel as a release does, and check them: tox -e wheel.

* Two builds of the same sources in different folders are equal, byte for byte.
* The wheel is for CPython 3.11 and later (abi3), needs no other library, and has its bill of
  materials.
* The C core compiles for the other platforms of a release, without warnings, and a wheel is built
  for each other Linux.
* It is installed in a clean environment of each Python that is found, and the demo runs to its end.
* With ``--root DIR``, pip chooses one of the wheels in the root file system of another platform
  (from ``debootstrap --arch=arm64 --include=python3-venv``, with qemu-user-static) and runs it.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
TARGETS = (
    "x86_64-linux-gnu.2.28",
    "aarch64-linux-gnu.2.28",
    "x86_64-linux-musl",
    "aarch64-linux-musl",
    "x86_64-macos.11.0",
    "aarch64-macos.11.0",
)
CROSS_BUILT = ("aarch64-linux-gnu.2.28", "x86_64-linux-musl", "aarch64-linux-musl")
CORE = "rmqpy/_native.abi3.so"
SDIST_BYTES_MAX = 3 << 20
WHEEL_BYTES_MAX = 3 << 20


def run(*words: str | Path, cwd: Path | None = None, **environment: str) -> str:
    """Run a command and return its output. Print it, and end, if the command fails."""
    given = {**os.environ, **environment}
    given.pop("PYTHONPATH", None)
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\nfailed ({done.returncode}): {' '.join(map(str, words))}")
    return done.stdout


def expect(holds: bool, text: str) -> None:
    """Print what was found to hold, or end."""
    if not holds:
        sys.exit(f"not true: {text}")
    print(f"ok: {text}", flush=True)


def build(kind: str, source: Path, out: Path) -> Path:
    """Build ``sdist`` or ``wheel`` in an environment of its own, and return the file."""
    run(sys.executable, "-m", "build", f"--{kind}", "--outdir", out, source)
    (found,) = out.iterdir()
    return found


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def build_twice(work: Path) -> tuple[Path, Path]:
    """Return sdist and wheel, the wheel built from the sdist."""
    sdists = [build("sdist", ROOT, work / name) for name in ("sdist-1", "sdist-2")]
    expect(digest(sdists[0]) == digest(sdists[1]), "two builds of the sdist are equal")
    expect(sdists[0].stat().st_size <= SDIST_BYTES_MAX, f"sdist: {sdists[0].stat().st_size} bytes")
    wheels = []
    for name in ("a", "another-folder/with/a-longer-name"):
        shutil.unpack_archive(sdists[0], work / name)
        (source,) = (work / name).iterdir()
        wheels.append(build("wheel", source, work / f"wheel-{name[0]}{len(name)}"))
    expect(digest(wheels[0]) == digest(wheels[1]), "two builds of the wheel are equal")
    run("twine", "check", "--strict", sdists[0], wheels[0])
    print("ok: metadata, and README.md as an index shows it (twine check --strict)")
    return sdists[0], wheels[0]


def repair(wheel: Path, work: Path) -> Path:
    """Return the wheel with the tag of the oldest systems that it runs on."""
    out = work / "repaired"
    run("auditwheel", "repair", "--wheel-dir", out, wheel)
    (repaired,) = out.iterdir()
    expect("-cp311-abi3-manylinux" in repaired.name, f"wheel: {repaired.name}")
    size = repaired.stat().st_size
    expect(size <= WHEEL_BYTES_MAX, f"wheel: {size} bytes")
    run("abi3audit", "--strict", repaired)
    print("ok: only the stable interface of CPython 3.11 is used (abi3audit)")
    return repaired


def check_content(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (bill,) = (name for name in names if name.endswith(".dist-info/sboms/rmqpy.cdx.json"))
        document = json.loads(archive.read(bill))
        (commit,) = (name for name in names if name == "rmqpy/commit.txt")
        expect(len(archive.read(commit).strip()) >= 40, "the wheel knows its commit")
    validate_bill(document)
    versions = {part["name"]: part["version"] for part in document["components"]}
    expect(bool(versions), f"bill of materials, valid CycloneDX: {versions}")
    expect(CORE in names, "the C core is in the wheel")
    foreign = [name for name in names if name.startswith(("tests/", "docs/", "bench/"))]
    expect(not foreign, "the wheel has no tests")


def validate_bill(document: object) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document))
    expect(error is None, f"the bill of materials obeys its schema{'' if error is None else error}")


def compile_for_others(work: Path) -> None:
    """Compile all C files for each platform of a release, and link them with its C library alone,
    so that a function that it lacks is found.
    """
    sources = sorted((ROOT / "native").glob("*.c"))
    flags = ["-O1", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-fPIC"]
    for target in TARGETS:
        out = work / "objects" / target
        out.mkdir(parents=True)
        compiler = (sys.executable, "-m", "ziglang", "cc", "-target", target)
        for source in sources:
            run(*compiler, "-c", *flags, source, cwd=out)
        objects = sorted(out.glob("*.o"))
        expect(len(objects) == len(sources), f"the C core compiles for {target}")
        defined = ["-Wl,-z,defs"] if "linux" in target else []
        run(*compiler, "-shared", *defined, "-o", out / "core", *objects)
        expect(True, f"{target} has every function that the C core calls")


def python_headers(work: Path) -> Path:
    """Return a folder with Python's headers. pyconfig.h is that of this machine, which fits every
    64-bit Linux: Debian's includes one by architecture, and no other is installed.
    """
    folder = work / "python-headers"
    if not folder.exists():
        headers = Path(sysconfig.get_path("include"))
        shutil.copytree(headers, folder)
        machine = sysconfig.get_config_var("MULTIARCH") or ""
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(headers.parent / machine / headers.name / "pyconfig.h", folder)
    return folder


def cross_build(source: Path, target: str, work: Path) -> Path:
    """Return a wheel for ``target``, compiled by zig, tagged with the oldest systems it runs on."""
    architecture, _, libc = target.split("-")
    out = work / "cross" / target
    zig = f"{sys.executable} -m ziglang cc -target {target}"
    compiler = f"{zig} -fno-sanitize=undefined -I{python_headers(work)}"
    # Without isolation, because pip would install cffi for the other platform.
    printed = run(
        *(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source),
        CC=compiler,
        LDSHARED=f"{compiler} -shared -s",
        _PYTHON_HOST_PLATFORM=f"linux-{architecture}",
    )
    shutil.rmtree(source / "build")
    (wheel,) = out.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        if CORE not in archive.namelist():
            errors = "\n".join(line for line in printed.splitlines() if "error:" in line)
            sys.exit(f"{errors}\nthe C core did not compile for {target}")
    if libc == "musl":
        # zig calls musl libc.so; auditwheel would take it for the linker script of that name.
        run(sys.executable, "-m", "wheel", "unpack", "--dest", out, wheel)
        (unpacked,) = (each for each in out.iterdir() if each.is_dir())
        core = unpacked / CORE
        run("patchelf", "--replace-needed", "libc.so", f"libc.musl-{architecture}.so.1", core)
        run(sys.executable, "-m", "wheel", "pack", "--dest-dir", out, unpacked)
    run("auditwheel", "repair", "--wheel-dir", out / "repaired", wheel)
    (repaired,) = (out / "repaired").iterdir()
    expect(
        ("musllinux" if libc == "musl" else "manylinux") in repaired.name,
        f"wheel: {repaired.name}, {repaired.stat().st_size} bytes",
    )
    return repaired


def run_in_root(root: Path, wheels: Sequence[Path]) -> None:
    """Let pip choose a wheel in a root file system, and run what a user would."""
    place = root / "rmqpy-wheels"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for file in (*wheels, ROOT / "tests" / "packaging" / "smoke.py"):
        shutil.copy(file, place)
    enter = ("chroot", root, "sh", "-c", f'cd /{place.name} && exec "$@"', "sh")
    run(*enter, "python3", "-m", "venv", "venv")
    pip = ("venv/bin/pip", "install", "--find-links", ".", "--only-binary", ":all:", "--pre")
    run(*enter, *pip, f"rmqpy[test]=={wheels[0].name.split('-')[1]}")
    report = run(*enter, "venv/bin/rmqpy", "--version")
    words = (
        "import platform, sysconfig; "
        "print(platform.python_version(), sysconfig.get_config_var('SOABI'))"
    )
    python = run(*enter, "venv/bin/python", "-c", words).strip()
    expect("core: C\n" in report, f"{root}: Python {python}: pip chose a wheel with the C core")
    run(*enter, "venv/bin/pytest", "-p", "no:cacheprovider", "--rootdir=.", "smoke.py")
    print("ok: brokers, clients, and tools (tests/packaging/smoke.py)", flush=True)


def pythons(given: Sequence[str]) -> list[str]:
    """Return the interpreters of the supported versions."""
    found = [shutil.which(f"python{version}") for version in PYTHONS]
    return list(given) or [path for path in found if path and works(path)] or [sys.executable]


def works(python: str) -> bool:
    return not subprocess.run(
        [python, "-c", "import venv"], capture_output=True, check=False
    ).returncode


def install_and_run(python: str, package: Path, work: Path, *, demo: bool) -> None:
    """Install in a clean environment, and run what a user would."""
    version = run(python, "-c", "import platform; print(platform.python_version())").strip()
    place = work / f"{package.suffix.strip('.')}-{version}"
    run(python, "-m", "venv", place)
    begun = time.monotonic()
    run(place / "bin" / "pip", "install", "--no-cache-dir", f"{package}[test]", cwd=work)
    seconds = time.monotonic() - begun
    report = run(place / "bin" / "rmqpy", "--version", cwd=work)
    expect(
        "core: C\n" in report,
        f"Python {version}: {package.name} in {seconds:.0f} s, with the C core",
    )
    smoke = ROOT / "tests" / "packaging" / "smoke.py"
    run(place / "bin" / "pytest", "-p", "no:cacheprovider", f"--rootdir={work}", smoke, cwd=work)
    print(f"ok: Python {version}: brokers, clients, and tools (tests/packaging/smoke.py)")
    if demo:
        begun = time.monotonic()
        run(place / "bin" / "rmqpy", "demo", cwd=work)
        seconds = time.monotonic() - begun
        expect(True, f"Python {version}: rmqpy demo to its end in {seconds:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--python", action="append", default=[], help="an interpreter to install for"
    )
    parser.add_argument(
        "--root", action="append", type=Path, default=[], help="a root file system to install in"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="copy sdist and wheel there")
    options = parser.parse_args()
    epoch = run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
    os.environ.setdefault("SOURCE_DATE_EPOCH", epoch)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        sdist, wheel = build_twice(work)
        repaired = repair(wheel, work)
        check_content(repaired)
        compile_for_others(work)
        (source,) = (work / "a").iterdir()
        wheels = [repaired, *(cross_build(source, target, work) for target in CROSS_BUILT)]
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            for file in (sdist, *wheels):
                shutil.copy(file, options.keep)
        for number, python in enumerate(pythons(options.python)):
            install_and_run(python, repaired, work, demo=number == 0)
        install_and_run(sys.executable, sdist, work, demo=False)
        for root in options.root:
            run_in_root(root, wheels)


if __name__ == "__main__":
    main()
