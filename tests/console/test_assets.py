"""What pages load: little, from this host only, and as it was published."""

from __future__ import annotations

import hashlib
import json
import re

from harness.console import console  # skips without the extra

from rmqpy.console.web.rendering import ASSETS, TEMPLATES

ASSET_BYTES_MAX = 100_000
VENDOR = ASSETS / "vendor"
BILL = "vendored.cdx.json"
LOADED = (".js", ".css", ".svg")


def test_all_assets_together_are_small() -> None:
    assert console is not None
    sizes = {path.name: path.stat().st_size for path in ASSETS.rglob("*") if path.suffix in LOADED}
    assert sum(sizes.values()) <= ASSET_BYTES_MAX, sizes


def test_vendored_files_are_those_that_were_published() -> None:
    listed: dict[str, str] = {}
    for component in json.loads((VENDOR / BILL).read_text())["components"]:
        files = {file["name"]: file["hashes"][0]["content"] for file in component["components"]}
        assert any(name.endswith(".LICENSE") for name in files), component["name"]
        listed |= files
    assert listed.keys() == {path.name for path in VENDOR.iterdir()} - {BILL, "README.md"}
    for name, digest in listed.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name


def test_pages_have_no_inline_script_or_style_and_load_nothing_from_elsewhere() -> None:
    for path in sorted(TEMPLATES.glob("*.html")):
        text = path.read_text()
        assert not re.search(
            r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=|javascript:", text
        ), path
        assert not re.search(r"(src|href|action|hx-get|hx-post)=.(https?:)?//", text), path
        assert "|safe" not in text, path


def test_every_asset_is_used() -> None:
    pages = "".join(path.read_text() for path in TEMPLATES.glob("*.html"))
    for path in ASSETS.rglob("*"):
        if path.suffix in LOADED:
            assert f"/static/{path.relative_to(ASSETS)}" in pages, path
