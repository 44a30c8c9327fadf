"""The files of a run folder, as they are cut and merged when a run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from fspo.runs import Evaluated, Metrics, RunWriter, load, read_lines

FOREIGN = ['{"step": 2, "rew', "{}", '{"step": "2"}', '{"step": null}', "[1, 2]", "7", "\x00\x00", '{"step": 1.5}']


@pytest.mark.parametrize("text", FOREIGN)
def test_a_torn_or_foreign_line_is_dropped_when_a_run_goes_on(text: str, tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    for step in (1, 2, 3):
        writer.append(Metrics(step=step, reward=step / 10))
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")
    assert [line.step for line in load(tmp_path).metrics] == [1, 2, 3]
    writer.cut(2)
    assert [line.step for line in read_lines(tmp_path, Metrics)] == [1, 2]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_merged_lines_are_in_order_and_replace_those_of_the_same_step_and_split(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    (tmp_path / "evaluations.jsonl").write_text('{"split": "eval"}\n')
    for step in (0, 4):
        writer.append(Evaluated(step=step, split="eval", accuracy=0.1))
    writer.merge(Evaluated, [Evaluated(step=4, split="eval", accuracy=0.5), Evaluated(step=2, split="eval")])
    assert [(line.step, line.accuracy) for line in load(tmp_path).evaluations] == [(0, 0.1), (2, None), (4, 0.5)]
