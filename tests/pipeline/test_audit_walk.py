"""The tutorial docs/tutorials/audit-with-spark.md, block by block."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness.tutorial import run_tutorial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_the_commands_print_the_documented_results(spark: SparkSession, tmp_path: Path) -> None:
    parts, errors = run_tutorial("audit-with-spark.md", {}, tmp_path)
    _, audited, damaged, compared, asked = parts
    assert audited.count("1000 records, 2 queues: clean") == 2, (parts, errors)
    assert "exit code 2" in damaged and "RECORD_BODY_CRC commitlog/" in damaged, (parts, errors)
    assert "good and bad: DIFFERENT" in compared and "exit code 2" in compared, (parts, errors)
    assert "500" in asked, (parts, errors)
