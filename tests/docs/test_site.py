"""The site is built strictly, loads nothing from elsewhere, and says what the code says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fspo import objectives
from fspo.config import TrainConfig
from fspo.settings import Settings
from helpers.pages import TREE, build_site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_site(tmp_path_factory.mktemp("site"))


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loads = r"""<(script|img|iframe|source)\b[^>]*\ssrc="(https?:)?//|(url\(\s*['"]?|@import\s+['"])(https?:)?//"""
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(pages) > 30
    assert [page for page in pages if re.search(loads, page.read_text(encoding="utf-8"))] == []


@pytest.mark.slow
def test_every_setting_and_objective_is_in_the_reference(site: Path) -> None:
    text = (site / "reference/settings/index.html").read_text(encoding="utf-8")
    keys = list(leaves(TrainConfig, ""))
    assert "rollout.max_new_tokens" in keys
    for key in keys:
        assert f"<code>{key}</code>" in text, key
    parameters = (site / "reference/parameters/index.html").read_text(encoding="utf-8")
    for name in objectives.names():
        for key in objectives.get_class(name).model_fields:
            assert f"<code>{key}</code>" in parameters, (name, key)


@pytest.mark.slow
def test_lists_and_tables_became_lists_and_tables(site: Path) -> None:
    """Markdown that GitHub reads as a list or table, but this builder as part of a paragraph."""
    for page in site.rglob("index.html"):
        for paragraph in re.findall(r"<p>(.*?)</p>", page.read_text(encoding="utf-8"), flags=re.S):
            assert not re.search(r"^(- |\d+\. |\| )", paragraph, flags=re.M), (page, paragraph)


def leaves(model: type[Settings], prefix: str) -> Iterator[str]:
    """The keys of all settings, as written on the command line."""
    for key, field in model.model_fields.items():
        held = field.annotation
        if isinstance(held, type) and issubclass(held, Settings):
            yield from leaves(held, f"{prefix}{key}.")
        else:
            yield prefix + key


def messages() -> str:
    """Every text in the package's code; what is filled in at run time is `…`."""
    texts = []
    for path in (TREE / "src/fspo").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [v.value if isinstance(v, ast.Constant) else "…" for v in node.values]
                texts.append("".join(str(part) for part in parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(texts)


def test_messages_in_the_faq_exist() -> None:
    """A message on the page is one that the package says; a part of it is enough."""
    known = messages()
    quoted = re.findall(r"^\| `([^`]+)` \|", (TREE / "docs/faq.md").read_text(encoding="utf-8"), flags=re.M)
    assert len(quoted) > 15
    for message in quoted:
        for part in message.split("…"):
            assert part.strip() in known, message


def test_every_page_is_in_the_navigation() -> None:
    navigation = re.findall(r"- (?:.*: )?(\S+\.md)$", (TREE / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.M)
    pages = {page.relative_to(TREE / "docs").as_posix() for page in (TREE / "docs").rglob("*.md")}
    assert not pages - set(navigation)


def test_every_relative_link_leads_to_a_file() -> None:
    made = ("explore.html", "reference/")  # written when the site is built
    for page in [*TREE.glob("*.md"), *(TREE / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", page.read_text(encoding="utf-8")):
            if not target.removeprefix("../").startswith(made):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_first_screen_is_short_and_has_a_command_for_each_case() -> None:
    """What it is, whether it is for the reader, how to use it, what to try; the commands are run elsewhere."""
    screen = (TREE / "README.md").read_text(encoding="utf-8").partition("\n## Install")[0]
    assert len(screen.split()) < 300
    trainers = ["FSPOTrainer", "loss_mode=fspo", "objectives.get"]
    wanted = ["clip-by-length.svg", "fspo audit ", *trainers, "make demo", "make test"]
    assert wanted == sorted(wanted, key=screen.index)


@pytest.mark.slow
def test_the_map_for_language_models_leads_to_the_sources_of_pages(site: Path) -> None:
    text = (site / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith("# fspo\n\n> ")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 15
    assert [link for link in links if not (site / link).read_text(encoding="utf-8").startswith("# ")] == []
