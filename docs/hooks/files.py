"""Pages of the site that have their home elsewhere in the tree: the README, the notebooks, the explorer.

A link that leaves docs/ becomes a link to the page made from that file; where there is none, its text alone remains.
"""

from __future__ import annotations

import json
import posixpath
import re
import shutil
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

TREE = Path(__file__).parents[2]
TOP = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|mailto:|#)([^)\s#]*)(#[^)\s]*)?\)")

LIST = re.compile(r"^((?![-*|>#\s]|\d+\. ).+)\n(?=- |1\. )", re.M)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The generated pages are added to those of docs/."""
    from fspo.report import explore

    for name, page in TOP.items():
        files.append(File.generated(config, page, content=(TREE / name).read_text(encoding="utf-8")))
    for notebook in sorted((TREE / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=_markdown(notebook)))
    files.append(File.generated(config, "explore.html", content=explore.render()))
    return files


def on_post_build(config: MkDocsConfig) -> None:
    """The sources lie beside the pages: llms.txt, for language models, links to them."""
    for source in Path(config.docs_dir).rglob("*.md"):
        shutil.copy(source, Path(config.site_dir) / source.relative_to(config.docs_dir))


def on_page_markdown(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links between files of the tree become links between pages."""
    uri = page.file.src_uri
    source = next((name for name, made in TOP.items() if made == uri), None)
    here = "" if source else posixpath.dirname(f"docs/{uri}")
    if uri.startswith("notebooks/"):
        here = "notebooks"

    def moved(match: re.Match[str]) -> str:
        picture, label, target, anchor = match[1], match[2], match[3], match[4] or ""
        wanted = posixpath.normpath(posixpath.join(here, target))
        inside = TOP.get(wanted) or (wanted.removeprefix("docs/") if wanted.startswith("docs/") else None)
        if wanted.startswith("notebooks/") and wanted.endswith(".ipynb"):
            inside = wanted.removesuffix(".ipynb") + ".md"
        if inside is None:
            return label
        return f"{picture}[{label}]({posixpath.relpath(inside, posixpath.dirname(uri) or '.')}{anchor})"

    parts = re.split(r"(^ *```.*?^ *```$)", text, flags=re.M | re.S)  # code is left as it is
    return "".join(part if k % 2 else LINK.sub(moved, _lists(part)) for k, part in enumerate(parts))


def _lists(text: str) -> str:
    """Lists as GitHub reads them: right after a line of text, and with what belongs to an item indented by two."""
    inside, parted, lines = False, False, [""]
    for line in LIST.sub(r"\1\n\n", text).split("\n"):
        content = line.lstrip(" ")
        indent = len(line) - len(content)
        if re.match(r"- |\d+\. ", line):
            if parted and lines[-1]:  # the item before has several paragraphs
                lines.append("")
            inside, parted = True, False
        elif content and not indent:
            inside = parted = False
        parted = parted or (inside and not content)
        lines.append(" " * (4 * (indent // 2)) + content if inside and indent > 1 else line)
    return "\n".join(lines[1:])


def _markdown(notebook: Path) -> str:
    """A notebook's texts and code, and where the file is."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    parts = []
    for cell in cells:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    return (
        "\n\n".join([*parts, f"*This page is the notebook `notebooks/{notebook.name}`, which the tests run.*"]) + "\n"
    )
