"""What the site is made of: the index of all pages, links out of docs/, and ``llms.txt``.

`docs/README.md` lists every page once, by kind: ``- [title](address): description``. The navigation
of the site and ``llms.txt`` are this list. Pages link to files of the repository that are not in
docs/; on the site these become pages below ``repository/``, so that it needs no other host.

Only text goes in and comes out here, so tests need no mkdocs.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

INDEX: Final = "docs/README.md"
KINDS: Final = ("Tutorials", "How-to guides", "Reference", "Explanation")
PROJECT: Final = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "bench/README.md")
"""Pages of the repository that have a place in the navigation."""

SUMMARY: Final = (
    "rmqpy is a RocketMQ-compatible name server, broker, and client in Python. It checks, plans,"
    " proves, and takes back the switch of a group from master and slaves to DLedger, or to a"
    " controller of RocketMQ 5.x."
)

_ITEM: Final = re.compile(r"^- (.+(?:\n  .+)*)", re.MULTILINE)
_LINK: Final = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
_TARGET: Final = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_FENCE: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_WALK: Final = re.compile(r"^```walk (\S+)$", re.MULTILINE)
_LANGUAGES: Final = {".py": "python", ".c": "c", ".h": "c", ".toml": "toml", ".json": "json"}


class Entry(NamedTuple):
    """A page of the index: its title, its path below docs/, what it says, and pages below it."""

    title: str
    path: str
    text: str
    below: tuple[tuple[str, str], ...] = ()


def index(text: str) -> dict[str, list[Entry]]:
    """Return the pages of each kind, in the order of `docs/README.md`, whose text is given."""
    found: dict[str, list[Entry]] = {}
    for kind in KINDS:
        section = text.partition(f"\n### {kind}\n")[2].partition("\n### ")[0]
        items = [" ".join(item.split()) for item in _ITEM.findall(section)]
        found[kind] = [_entry(item) for item in items]
    return found


def _entry(item: str) -> Entry:
    (title, path), *others = _LINK.findall(item)
    remark = item.partition(f"]({path})")[2].partition("([")[0].strip(" :")
    below = tuple((name, where) for name, where in others if where.endswith(".md"))
    return Entry(title, path, _LINK.sub(r"\1", remark), below)


def page_path(path: str) -> str:
    """Return the path of a page on the site, before it becomes HTML."""
    return path.removesuffix(".ipynb") + ".md" if path.endswith(".ipynb") else path


def navigation(text: str) -> list[dict[str, object]]:
    """Return the navigation of the site, as mkdocs expects it."""
    sections: list[dict[str, object]] = [{"Home": "README.md"}]
    for kind, entries in index(text).items():
        pages: list[dict[str, object]] = []
        for entry in entries:
            path = page_path(entry.path)
            if entry.below:
                children: list[object] = [path, *({name: where} for name, where in entry.below)]
                pages.append({entry.title: children})
            else:
                pages.append({entry.title: path})
        sections.append({kind: pages})
    sections.append({"Project": [outside(path) for path in PROJECT]})
    return sections


def llms_text(text: str) -> str:
    """Return ``llms.txt`` (llmstxt.org): each page with its address on the site."""
    lines = ["# rmqpy", "", f"> {SUMMARY}"]
    for kind, entries in index(text).items():
        lines += ["", f"## {kind}", ""]
        for entry in entries:
            page = re.sub(r"\bREADME\.md$", "index.md", page_path(entry.path))
            address = f"{page.removesuffix('.md')}.html"
            remark = f": {entry.text}" if entry.text else ""
            lines.append(f"- [{entry.title}]({address}){remark}")
    return "\n".join(lines) + "\n"


# -- Files of the repository that are not in docs/


def outside(path: str) -> str:
    """Return the path on the site of a file or folder of the repository."""
    if path.startswith("docs/"):
        return page_path(path.removeprefix("docs/"))
    plain = path.rstrip("/") or "repository"
    return f"repository/{plain}" if plain.endswith(".md") else f"repository/{plain}.md"


def repository_path(path: str) -> str:
    """Return the file of the repository that a page of the site with this path was made of."""
    return path.removeprefix("repository/") if path.startswith("repository/") else f"docs/{path}"


def targets(text: str, file: str) -> Iterator[str]:
    """Yield the files and folders of the repository that the page ``file`` links to."""
    for _, target, _ in _TARGET.findall(_FENCE.sub("", text)):
        if "://" not in target and not target.startswith("mailto:"):
            yield posixpath.normpath(posixpath.join(posixpath.dirname(file), target))


def linked_files(root: Path) -> list[str]:
    """Return the files and folders outside of docs/ that pages lead to, directly or not."""
    waiting = [page.relative_to(root).as_posix() for page in sorted(root.glob("docs/**/*.md"))]
    waiting += PROJECT
    found = dict.fromkeys(PROJECT)
    seen = set(waiting)
    while waiting:
        file = waiting.pop()
        for target in targets((root / file).read_text(encoding="utf-8"), file):
            if target.startswith("docs/") or not (root / target).exists():
                continue
            found[target] = None
            if target.endswith(".md") and target not in seen:
                seen.add(target)
                waiting.append(target)
    return sorted(found)


def moved(text: str, page: str, file: str) -> str:
    """Return a page with its links changed for its path ``page`` on the site.

    ``file`` is its path in the repository, relative to which the links are written.
    """

    def replaced(found: re.Match[str]) -> str:
        target = found[2]
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        meant = posixpath.normpath(posixpath.join(posixpath.dirname(file), target))
        address = posixpath.relpath(outside(meant), posixpath.dirname(page) or ".")
        return f"{found[1]}{address}{found[3]}"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    changed = [part if part.startswith("```") else _TARGET.sub(replaced, part) for part in parts]
    return _WALK.sub(r'```text title="\1"', "".join(changed))


def source_page(root: Path, path: str) -> str:
    """Return a page that shows a file or folder of the repository."""
    file = root / path
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n"
    if file.is_dir():
        names = sorted(each.name + "/" * each.is_dir() for each in file.iterdir())
        shown = [name for name in names if not name.startswith((".", "__pycache__"))]
        return head + "\n".join(f"- `{name}`" for name in shown) + "\n"
    text = file.read_text(encoding="utf-8")
    language = _LANGUAGES.get(file.suffix, "text")
    return f"{head}````{language}\n{text.rstrip()}\n````\n"


def notebook_page(text: str) -> str:
    """Return a notebook as Markdown: its texts, its code, and its output as text."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif source:
            parts.append(f"```python\n{source}\n```")
            outputs = [_output(each) for each in cell.get("outputs", ())]
            parts += [f"```text\n{each}\n```" for each in outputs if each]
    return "\n\n".join(parts) + "\n"


def _output(output: dict[str, object]) -> str:
    data = output.get("data")
    found = data.get("text/plain", "") if isinstance(data, dict) else output.get("text", "")
    return "".join(found).rstrip() if isinstance(found, list | str) else ""
