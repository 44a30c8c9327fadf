"""Bad input gets one sentence with the file, the row and the column, and the command exits with 2."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fspo
from helpers.processes import Command
from helpers.simulated_answers import answers

CSV = "length,log_ratio,accepted\n10,0.1,1\n12,0.2,0\n"
LINE = '{"length": 10, "log_ratio": 0.1, "accepted": true}\n'
TEXTS = [
    ("a.csv", CSV + "x,0.1,1\n", "row 3, column 'length' is 'x' where a number is needed"),
    ("a.csv", CSV + "0,0.1,1\n", "row 3, column 'length' is 0 where a positive whole number is needed"),
    ("a.csv", CSV + "2.5,0.1,1\n", "row 3, column 'length' is 2.5 where a positive whole number is needed"),
    ("a.csv", CSV + "5,,1\n", "row 3, column 'log_ratio' is empty"),
    ("a.csv", CSV + "5,nan,1\n", "row 3, column 'log_ratio' is nan"),
    ("a.csv", CSV + "5,inf,1\n", "row 3, column 'log_ratio' is inf"),
    ("a.csv", CSV + "5,0.1,2\n", "row 3, column 'accepted' is 2 where a share between 0 and 1 is needed"),
    ("a.csv", CSV + "5,0.1\n5,0.1,1,7\n", "row 3 has 2 fields where the header has 3"),
    ("a.csv", "length,log_ratio\n", "has no rows"),
    ("a.csv", "", "is empty"),
    ("a.csv", "size,log_ratio\n3,0.1\n", "has no length of the answers: give --length COLUMN; its columns: size"),
    ("a.jsonl", LINE + '{"length": 3, "log_ratio"\n', "row 2 is not JSON"),
    ("a.jsonl", LINE + "[1, 2]\n", "row 2 is not a JSON object"),
    ("a.jsonl", LINE + "\n\n" + LINE + "[1, 2]\n", "row 3 is not a JSON object"),  # blank lines are not rows
    ("a.jsonl", LINE + '{"length": "long", "log_ratio": 1}\n', "row 2, column 'length' is 'long' where a number"),
    ("a.jsonl", LINE + '{"length": 3, "log_ratio": NaN}\n', "row 2, column 'log_ratio' is nan"),
    ("a.jsonl", LINE + '{"log_ratio": 3}\n', "row 2, column 'length' is empty"),
    ("a.jsonl", LINE + '{"length": 3, "log_ratio": [1]}\n', "row 2, column 'log_ratio' is [1] where a number"),
    ("a.jsonl", LINE * 1500 + '{"length": "x"}\n', "row 1501, column 'length' is 'x' where a number is needed"),
    ("a.jsonl", '{"logprobs": [0.1], "old_logprobs": [0.1]}\n{"logprobs": [], "old_logprobs": []}\n',
     "row 2, column 'logprobs' is a list without numbers"),
    ("a.jsonl", '{"logprobs": [0.1, 1], "old_logprobs": [0.1]}\n',
     "row 1, column 'old_logprobs' holds 1 numbers where the other log-probs are 2"),
    ("a.jsonl", '{"logprobs": [1, "x"], "old_logprobs": [0.1, 2]}\n', "row 1, column 'logprobs' holds 'x' among"),
    ("a.jsonl", '{"logprobs": [1, 2], "old_logprobs": [0.1, 2], "length": 3}\n',
     "row 1, column 'logprobs' holds 2 numbers where the length is 3: leave padding out"),
    ("a.jsonl", "", "is empty"),
    ("a.parquet", "not parquet at all", "cannot be read"),
    ("a.txt", "length", "has an unknown ending: use one of"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "sentence"), TEXTS, ids=range(len(TEXTS)))
def test_broken_text(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        fspo.audit(tmp_path / name)
    assert sentence in str(error.value)
    assert str(tmp_path / name) in str(error.value)


FRAMES = [
    ({"length": [3, 0], "log_ratio": [0.1, 0.2]}, {}, "the frame, row 2, column 'length' is 0"),
    ({"length": [3, None], "log_ratio": [0.1, 0.2]}, {}, "the frame, row 2, column 'length' is empty"),
    ({"length": [3, 4], "log_ratio": [0.1, math.nan]}, {}, "the frame, row 2, column 'log_ratio' is nan"),
    ({"length": [3, 4], "log_ratio": [0.1, 1e200]}, {}, "the frame, row 2, column 'log_ratio' is 1e+200"),
    ({"length": ["3", "x"], "log_ratio": [0.1, 1]}, {}, "row 2, column 'length' is 'x' where a number is needed"),
    (
        {"n": [[3]], "log_ratio": [0.1]},
        {"columns": {"length": "n"}},
        "column 'n' holds lists of numbers, which cannot be the length",
    ),
    ({"length": [3], "log_ratio": [0.1]}, {"columns": {"length": "lenght"}}, "no column 'lenght'"),
    ({"length": [3], "log_ratio": [0.1]}, {"columns": {"lenght": "length"}}, "no role 'lenght'; did you mean 'length'"),
    (
        {"length": [3, 4], "log_ratio": [0.1, 0.2], "off_policy": [1, 2]},
        {},
        "row 2, column 'off_policy' is 2 where true",
    ),
    ({"length": [3], "log_ratio": [0.1]}, {"by": "tsk"}, "no column 'tsk'"),
    ({"length": [3], "new": [0.1]}, {"columns": {"logprobs": "new"}}, "give --old-logprobs NAME"),
    ({"length": [3, 4], "log_ratio": [0.1, 0.2], "x": [1.0, None]}, {"by": "x"}, "row 2, column 'x' is empty"),
    ({"logprobs": [[0.1], [None]], "old_logprobs": [[0.1], [0.1]]}, {}, "row 2, column 'logprobs' holds an empty"),
    ({"length": [3], "log_ratio": [0.1]}, {"rule": "fspoo"}, "there is no objective 'fspoo'"),
    ({"length": [3], "log_ratio": [0.1]}, {"rule": "gspo:eps=1"}, "has no parameter 'eps'"),
    ({"length": [3], "log_ratio": [0.1]}, {"rule": "gspo:eps"}, "'eps' is not of the form parameter=value"),
    ({"length": [3], "log_ratio": [0.1]}, {"rule": "grpo"}, "the rule grpo looks at tokens"),
    (
        {"length": [3], "log_ratio": [0.1]},
        {"rule": "helpers.custom_objective:Yours"},
        "'helpers.custom_objective:Yours' cannot be loaded",
    ),
    ({"length": [3], "log_ratio": [0.1]}, {"rule": "helpers.custom_objective:Mine:high=1"}, "has no parameter 'high'"),
    ({"output": ["", ""], "score": [0.0, 1.0]}, {}, "the frame has only empty answers"),
    ({"length": [3], "log_ratio": [0.1]}, {"clip_rate": 1.5}, "clip_rate = 1.5 must lie between 0 and 1"),
    ({"length": [3], "log_ratio": [0.1]}, {"bins": 0}, "bins = 0 must be at least 1"),
    ({"length": []}, {}, "has no rows"),
]


@pytest.mark.parametrize(("data", "options", "sentence"), FRAMES, ids=range(len(FRAMES)))
def test_broken_frames(data: dict[str, Any], options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        fspo.audit(pl.DataFrame(data, strict=False), **options)
    assert sentence in str(error.value)


def test_rows_are_named_across_files(tmp_path: Path) -> None:
    frame = answers(50)
    bad = frame.with_columns(length=pl.when(pl.int_range(50) == 16).then(0).otherwise("length"))
    for k, part in enumerate((frame, frame, bad, frame)):
        part.write_parquet(tmp_path / f"{k}.parquet")
    with pytest.raises(ValueError, match=r"2\.parquet, row 17, column 'length' is 0"):
        fspo.audit(tmp_path)
    frame.drop("log_ratio").write_parquet(tmp_path / "2.parquet")
    with pytest.raises(ValueError, match=r"2\.parquet has no column 'log_ratio', which other files have"):
        fspo.audit(tmp_path)


def test_the_command(command: Command, tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text(CSV.replace("12,", "0,"))
    (tmp_path / "empty").mkdir()
    cases = {
        str(table): "row 2, column 'length' is 0",
        str(tmp_path / "none*.csv"): "there is no file",
        str(tmp_path / "empty"): "has neither rows of a run nor tables",
    }
    for path, sentence in cases.items():
        done = command("audit", path, check=False)
        assert done.returncode == 2
        assert sentence in done.stderr
        assert done.stderr.startswith("error: ")
        assert len(done.stderr.splitlines()) == 1
        assert not done.stdout


def test_the_command_writes_text_json_and_page(command: Command, tmp_path: Path) -> None:
    answers(1000).rename({"length": "n", "log_ratio": "s"}).write_csv(tmp_path / "a.csv")
    columns = ["--length", "n", "--log-ratio", "s", "--clip-rate", "0.05"]
    page, figures = tmp_path / "a.html", tmp_path / "a.json"
    done = command("audit", str(tmp_path / "a.csv"), *columns, "--html", str(page), "--json", str(figures))
    assert "Unfair: length" in done.stdout
    assert "objective.name=fspo" in done.stdout
    assert "<svg" in page.read_text()
    assert command("audit", str(tmp_path / "a.csv"), *columns, "--json", "-").stdout == figures.read_text()


def damage(path: Path) -> None:
    """Change the pages of a Parquet file; its footer stays whole."""
    content = bytearray(path.read_bytes())
    content[4 : len(content) // 2] = bytes(b ^ 0x5A for b in content[4 : len(content) // 2])
    path.write_bytes(content)


def test_of_several_files_damaged_ones_are_named_and_the_rest_is_audited(tmp_path: Path) -> None:
    """Their footers are whole, and they are scanned together: the pages of the second cannot be read."""
    for k in range(4):
        answers(2000, seed=k).write_parquet(tmp_path / f"part-{k}.parquet")
    damage(tmp_path / "part-1.parquet")
    (tmp_path / "part-3.parquet").write_bytes(b"PAR1 and no footer")
    found = fspo.audit(str(tmp_path / "*.parquet"))
    whole = fspo.audit([tmp_path / "part-0.parquet", tmp_path / "part-2.parquet"])
    assert found.rows == whole.rows == 4000
    assert (found.verdict, found.law, found.lengths) == (whole.verdict, whole.law, whole.lengths)
    for name in ("part-1.parquet", "part-3.parquet"):
        assert sum(name in note and "left out" in note for note in found.notes) == 1


def test_where_every_file_is_damaged_the_first_is_named(tmp_path: Path) -> None:
    for k in range(2):
        answers(2000, seed=k).write_parquet(tmp_path / f"part-{k}.parquet")
        damage(tmp_path / f"part-{k}.parquet")
    with pytest.raises(ValueError, match=r"part-0\.parquet cannot be read"):
        fspo.audit(str(tmp_path / "*.parquet"))
    with pytest.raises(ValueError, match=r"part-1\.parquet cannot be read"):
        fspo.audit(tmp_path / "part-1.parquet")
