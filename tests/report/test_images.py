"""Every plot as a file of its own."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fspo.pages.images import FONTS, _draws_letters, write_png, write_svg
from fspo.report.report_run import load, load_all
from fspo.report.run_page import plots
from helpers.synthetic import make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = make_run(tmp_path_factory.mktemp("runs") / "demo", steps=6)
    return folder


def test_svg_files_stand_alone(run: Path, tmp_path: Path) -> None:
    paths = write_svg(plots([load(run)]), tmp_path / "figures")
    assert len({p.name for p in paths}) == len(paths) == 20
    assert {"held-out-accuracy.svg", "log-ratio-s-against-length-l.svg"} <= {p.name for p in paths}
    for path in paths:
        text = path.read_text(encoding="utf-8")
        tree = ET.fromstring(text)
        assert tree.tag == "{http://www.w3.org/2000/svg}svg"
        assert float(tree.get("width", 0)) > 200
        assert "var(" not in text
        assert "light-dark" not in text
        assert f"font-family: {FONTS};" in text
        colours = set(re.findall(r"c\d+(?=[ \"])", " ".join(re.findall(r'class="[^"]*"', text))))
        assert all(f".{c}{{" in text for c in colours)


def test_png_files_are_twice_the_size_and_have_text_and_colour(run: Path, tmp_path: Path) -> None:
    paths = write_png(plots([load(run)]), tmp_path)
    assert len(paths) == 20
    for path in paths:
        image = Image.open(io.BytesIO(path.read_bytes())).convert("RGB")
        assert image.width in (680, 840)
        assert image.getpixel((image.width - 1, image.height - 1)) == (255, 255, 255)
        # The label under the axis is text: dark pixels where the only thing drawn is letters.
        below = image.crop((0, image.height - 36, image.width, image.height))
        assert np.asarray(below.convert("L")).min() < 140


def test_the_same_fonts_give_the_same_bytes(run: Path, tmp_path: Path) -> None:
    once, again = (write_png(plots([load(run)]), tmp_path / name) for name in "ab")
    assert [p.read_bytes() for p in once] == [p.read_bytes() for p in again]


def test_letters_that_would_be_left_out_are_noticed() -> None:
    """Without any font the renderer leaves texts out and says nothing."""
    assert _draws_letters()
    assert not _draws_letters(skip_system_fonts=True)


def test_several_runs_have_files_of_their_own(run: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", steps=3)
    names = [p.name for p in write_svg(plots(load_all([run, other])), tmp_path / "svg")]
    assert len(set(names)) == len(names)
    assert "log-ratio-s-against-length-l-other.svg" in names
