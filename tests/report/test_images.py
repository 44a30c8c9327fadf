"""Every plot as a file of its own."""

import io
import re
import xml.etree.ElementTree as ET

import pytest
from PIL import Image
from synthetic import make_run

from fspo.report.images import write_png, write_svg
from fspo.report.load import load, load_all
from fspo.report.page import plots


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "demo", steps=6)


def test_svg_files_stand_alone(run, tmp_path):
    paths = write_svg(plots([load(run)]), tmp_path / "figures")
    assert len({p.name for p in paths}) == len(paths) == 19
    assert {"held-out-accuracy.svg", "log-ratio-s-against-length-l.svg"} <= {p.name for p in paths}
    for path in paths:
        text = path.read_text(encoding="utf-8")
        tree = ET.fromstring(text)
        assert tree.tag == "{http://www.w3.org/2000/svg}svg"
        assert float(tree.get("width")) > 200
        assert "var(" not in text
        assert "light-dark" not in text
        colours = set(re.findall(r"c\d+(?=[ \"])", " ".join(re.findall(r'class="[^"]*"', text))))
        assert all(f".{c}{{" in text for c in colours)


def test_png_files_are_twice_the_size_and_have_text_and_colour(run, tmp_path):
    paths = write_png(plots([load(run)]), tmp_path)
    assert len(paths) == 19
    for path in paths:
        image = Image.open(io.BytesIO(path.read_bytes())).convert("RGB")
        assert image.width in (680, 840)
        assert image.getpixel((image.width - 1, image.height - 1)) == (255, 255, 255)
        # The label under the axis is text: dark pixels where the only thing drawn is letters.
        below = image.crop((0, image.height - 36, image.width, image.height))
        assert below.convert("L").getextrema()[0] < 140


def test_several_runs_have_files_of_their_own(run, tmp_path):
    other = make_run(tmp_path / "other", steps=3)
    names = [p.name for p in write_svg(plots(load_all([run, other])), tmp_path / "svg")]
    assert len(set(names)) == len(names)
    assert "log-ratio-s-against-length-l-other.svg" in names
