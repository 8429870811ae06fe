"""Hooks of mkdocs (mkdocs.yml): they carry out what ``pages.py`` computes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))  # mkdocs imports this file by its path

import api
import pages

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[2]


def _index() -> str:
    return (ROOT / pages.INDEX).read_text(encoding="utf-8")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = pages.navigation(_index())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the notebooks, and the files of the repository that pages link to."""
    for notebook in sorted((ROOT / "docs").glob("*/*.ipynb")):
        path = pages.page_path(notebook.relative_to(ROOT / "docs").as_posix())
        content = pages.notebook_page(notebook.read_text(encoding="utf-8"))
        files.append(File.generated(config, path, content=content))
    for name in pages.linked_files(ROOT):
        is_page = name.endswith(".md")
        text = (ROOT / name).read_text(encoding="utf-8") if is_page else ""
        content = text if is_page else pages.source_page(ROOT, name)
        files.append(File.generated(config, pages.outside(name), content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    path = page.file.src_uri
    if path == f"reference/{api.PAGE.name}":
        markdown = api.expanded(markdown)
    return pages.moved(markdown, path, pages.repository_path(path))


def on_post_build(config: MkDocsConfig) -> None:
    target = Path(config.site_dir) / "llms.txt"
    target.write_text(pages.llms_text(_index()), encoding="utf-8")
