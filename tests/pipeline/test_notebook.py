"""The notebook of the tutorials runs from its first cell to its last, and draws its plots."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark
nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
for package in ("deltalake", "duckdb", "ipykernel", "matplotlib", "pandas"):
    pytest.importorskip(package)

NOTEBOOK = Path(__file__).parents[2] / "docs" / "tutorials" / "look-into-a-store.ipynb"


def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("STORE", raising=False)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = [output for cell in cells for output in cell.outputs]
    plots = [output for output in shown if "image/png" in output.get("data", {})]
    assert len(plots) == 3
    text = "".join(output.get("text", "") for output in shown)
    assert "appended 300 messages" in text and "appended 0 messages in 0 commits" in text
    assert "120 keys of 300 messages" in shown[-1]["data"]["text/plain"]
    assert "6 bodies could not be read" in text


def test_the_notebook_is_committed_without_output() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
