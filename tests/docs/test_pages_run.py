"""The Python on the pages runs, from top to bottom, as a reader would paste it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("page", ["own-loop.md"])
def test_the_python_of_a_page_runs(page: str, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (TREE / "docs" / page).read_text(encoding="utf-8"), re.M | re.S)
    assert blocks
    for k, block in enumerate(blocks):
        script = tmp_path / f"block_{k}.py"
        script.write_text(block, encoding="utf-8")
        done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    rewards = [float(found) for found in re.findall(r"reward (\d\.\d+)", done.stdout)]
    assert rewards[-1] > 0.85  # a policy that has not learnt has about 0.5
    assert "LRE" in done.stdout
