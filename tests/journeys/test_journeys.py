"""Five people who come with something of their own, each following the page that is for them.

Their commands and programs are the pages' own. What is added makes a run short, or stands for what they bring along.
The other pages with programs and figures are executed as they are written, in order, in an empty folder.
"""

from __future__ import annotations

import json
import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from fspo import objectives
from fspo.runs import load
from helpers.pages import DOCS, Reader, blocks, commands
from helpers.synthetic import make_run

SMALL = (
    "model.path=tiny:1x32 warmup=null 'task={name: sort, n_max: 6, graded: true}' rollout.prompts=8 "
    "rollout.max_new_tokens=8 eval.prompts=16"
)


def shorter(command: str) -> str:
    """The same command, with few steps of a small model."""
    if command.startswith("fspo train") and "task=" not in command:
        return f"{command} steps=5" if "--resume" in command else f"{command} {SMALL} steps=3"
    return command.replace("--prompts 128", "--prompts 8")


@pytest.mark.slow
def test_an_own_pytorch_loop(tmp_path: Path) -> None:
    printed = Reader(tmp_path).follow("own-loop.md")
    rewards = [float(number) for number in re.findall(r"reward (\d\.\d+)", printed[-1])]
    assert rewards[-1] > rewards[0] + 0.1  # after twenty steps and after five
    assert json.loads((tmp_path / "objective.json").read_text())
    assert "LRE" in printed[-1]


# What a TRL user has before and after the three lines that the page changes.
MODEL = """
from datasets import Dataset
from fspo.model.tiny import build
model, tokenizer = build("1x32")
model.save_pretrained("start")
tokenizer.save_pretrained("start")
model, dataset = "start", Dataset.from_dict({"prompt": [f"say a {i}:" for i in range(4)]})
def reward(completions, **rest):
    return [text.count("a") / (1 + len(text)) for text in completions]
"""
HERE = "num_iterations=2, use_cpu=True, bf16=False, max_completion_length=12, max_steps=4, report_to='none'"


@pytest.mark.slow
def test_a_trl_script(tmp_path: Path) -> None:
    """It runs before and after the page's change of names; report and audit find what the second one recorded."""
    (change,) = [block.text.splitlines() for block in blocks(DOCS / "engines.md") if block.language == "diff"]
    before, after = ([line[1:] for line in change if line[0] == sign] for sign in "-+")
    assert len(before) == len(after) <= 3
    assert [line.replace("FSPO", "GRPO") for line in after[1:]] == before[1:]
    reader = Reader(tmp_path)
    for lines in (before, after):
        script = MODEL + "\n".join(lines).replace("num_iterations=2", HERE) + "\ntrainer.train()\n"
        (tmp_path / "script.py").write_text(script)
        reader.run("python", "script.py")
    run = load(tmp_path / "out" / "fspo")
    assert run.objective["name"] == objectives.DEFAULT
    assert [line.step for line in run.metrics] == [1, 2]  # two rollouts with two updates each
    for folder in ("out", "out/fspo"):
        assert "rows" in reader.run("fspo", "audit", folder)
        reader.run("fspo", "report", folder)
    page = (tmp_path / "out" / "fspo" / "report.html").read_text()
    assert "No evaluation" not in page  # a script of its own has none: nothing is said about it


@pytest.mark.slow
def test_a_verl_cluster(tmp_path: Path) -> None:
    """A dry run prints a command; verl's own configuration takes all its settings."""
    from hydra import compose, initialize_config_dir
    from verl.trainer import config as verl_config
    from verl.utils.config import omega_conf_to_dataclass

    job = {"model": {"path": "tiny:1x32"}, "warmup": None, "task": "sort", "update": {"schedule": "constant"}}
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(job))
    printed = [command for block in blocks(DOCS / "engines.md") for command in commands(block.text)]
    (dry_run,) = [command for command in printed if command.startswith("fspo train my.yaml --engine verl --dry-run")]
    words = shlex.split(Reader(tmp_path).run("sh", "-c", f"{dry_run} --out job").replace("\\\n", ""))
    assert words[1:3] == ["-m", "verl.trainer.main_ppo"]
    assert not (tmp_path / "job").exists()
    with initialize_config_dir(str(Path(verl_config.__file__).parent), version_base=None):
        settings = compose("ppo_trainer", overrides=words[3:])
    policy: Any = omega_conf_to_dataclass(settings.actor_rollout_ref.actor.policy_loss)
    assert policy.build().name == objectives.DEFAULT


def test_logs_of_another_trainer(tmp_path: Path) -> None:
    """The page's commands on a dump of prime-rl, on tables, and on a run."""
    dumps = runpy.run_path(str(Path(__file__).parents[1] / "audit" / "test_dumps.py"))
    dumps["prime_rl"](tmp_path / "outputs", dumps["made"](240))
    make_run(tmp_path / "runs" / "mine")
    rows = pl.read_parquet(tmp_path / "runs" / "mine" / "records")
    (tmp_path / "dumps").mkdir()
    rows.write_parquet(tmp_path / "dumps" / "one.parquet")
    rows.select("advantage", n_tokens="length", s="log_ratio").write_csv(tmp_path / "rows.csv")
    printed = Reader(tmp_path).follow("audit.md", before="import fspo\nframe_or_path = 'runs/mine'\n")
    assert [text for text in printed if "a mismatch and not policy drift" in text]
    assert [text for text in printed if "Clip rate by length" in text]
    assert (tmp_path / "audit.html").stat().st_size > 10_000
    assert json.loads((tmp_path / "audit.json").read_text())["rows"] == len(rows)


@pytest.mark.slow
def test_a_student(tmp_path: Path) -> None:
    """The demo (shortened), a change, a resumed run, an export; then a task of their own."""
    reader = Reader(tmp_path)
    printed = "".join(reader.follow("first-run.md", shorter))
    assert [line.step for line in load(tmp_path / "runs" / "mine").metrics] == [1, 2, 3, 4, 5]
    assert "accuracy" in printed
    assert "fspo" in (tmp_path / "compare.html").read_text()
    reader.run("fspo", "export", "runs/mine", "models/mine")
    load_model = "from transformers import AutoModelForCausalLM as M; M.from_pretrained('models/mine')"
    reader.run("python", "-c", load_model)

    own = reader.follow("own-task.md")
    run = load(tmp_path / "runs" / "parity")
    assert run.config["task"] == {"name": "parity:Parity", "n_max": 6}
    assert [line.step for line in run.metrics] == [1, 2, 3, 4, 5, 6]
    assert all(line.unscored == 0 for line in run.metrics)
    assert "n_max" in own[0]
    assert "64 prompts x 1: accuracy" in own[3]
    assert own[3].count("parity:") == 3
    assert own[-1].startswith("{'name': 'parity:Parity', 'n_max': 6}\n0.")
    made = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert made == {"bin", "cache", "runs", "models", "compare.html", "parity.py"}  # and nothing unasked


# --- other pages ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["clip-fraction.md", "vllm-correction.md"])
def test_figures_are_what_the_commands_print(page: str, tmp_path: Path) -> None:
    assert any(block.language == "text" for block in blocks(DOCS / page))
    Reader(tmp_path).follow(page)


@pytest.mark.slow
def test_from_python(tmp_path: Path) -> None:
    printed = Reader(tmp_path).follow("python.md")
    assert "held out:" in printed[1]
    assert [line.step for line in load(tmp_path / "runs" / "logged").metrics] == [1, 2]


@pytest.mark.slow
def test_own_reward(tmp_path: Path) -> None:
    printed = Reader(tmp_path).follow("own-reward.md")
    run = load(tmp_path / "runs" / "words")
    assert all(line.unscored == 0 for line in run.metrics)
    assert run.metrics[-1].reward is not None
    assert all(re.search(r"1\d prompts x 1: accuracy", text) for text in printed[-2:])


@pytest.mark.slow
def test_own_objective(tmp_path: Path) -> None:
    printed = Reader(tmp_path).follow("own-objective.md")
    assert "range of S" in printed[0]
    assert load(tmp_path / "runs" / "narrow").config["objective"] == {"name": "my_objective:Mine", "width": 0.2}
