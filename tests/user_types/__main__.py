"""Check ``shop.py`` strictly, and the Python examples of the documentation, with mypy and
pyright.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
OF_SPARK: Final = "use-rocketmq-data-in-spark"
"""The page with parts of Spark programs, which need pyspark."""
SHOP: Final = Path(__file__).with_name("shop.py")
BEFORE: Final = 'NAME_SERVER = "127.0.0.1:9876"\n'


def write_examples(folder: Path) -> list[Path]:
    """Write each example of the pages as a module. One that awaits is the body of a function."""
    files = []
    for path in sorted(ROOT.glob("docs/**/*.md")):
        page, text = path.stem, path.read_text(encoding="utf-8")
        if page == OF_SPARK:
            continue
        for number, code in enumerate(re.findall(r"```python\n(.*?)```", text, flags=re.S)):
            file = folder / f"{path.parent.name}_{page}_{number}.py".replace("-", "_")
            if re.search(r"^async with", code, flags=re.M):
                code = "async def example() -> None:\n" + textwrap.indent(code, "    ")
            file.write_text(BEFORE + code, encoding="utf-8")
            files.append(file)
    return files


def main() -> int:
    pyright = shutil.which("pyright")
    if pyright is None:
        print("pyright is not on the PATH", file=sys.stderr)
        return 1
    mypy = [sys.executable, "-m", "mypy", "--config-file="]
    with tempfile.TemporaryDirectory(prefix="rmqpy-user-types-") as folder:
        examples = write_examples(Path(folder))
        shop = Path(shutil.copy(SHOP, folder))
        commands = (
            [*mypy, "--strict", str(shop)],
            [*mypy, "--check-untyped-defs", *map(str, examples)],
            [pyright, "--pythonpath", sys.executable, folder],
        )
        failed = [
            subprocess.run(command, cwd=folder, check=False).returncode for command in commands
        ]
    print(f"{len(examples)} examples")
    return 2 if any(failed) else 0


if __name__ == "__main__":
    sys.exit(main())
