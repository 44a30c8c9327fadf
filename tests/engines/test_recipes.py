"""Every recipe resolves on its engines, and runs two steps with a tiny model and ten rows of data."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from small import RECIPES, overrides

from fspo.engines import run_trl, run_verl
from fspo.local.config import read
from fspo.local.records import read_lines

ENGINES = {
    "qwen3-1.7b-math": ("trl", "verl"),
    "qwen3-8b-math": ("trl", "verl"),
    "gsm8k-24gb": ("local", "trl", "verl"),
    "smollm2-chain-sum": ("local", "trl", "verl"),
}
PAIRS = [(name, engine) for name, engines in ENGINES.items() for engine in engines]


def fspo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fspo.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_every_recipe_is_here() -> None:
    assert {path.stem for path in RECIPES.glob("*.yaml")} == set(ENGINES)


@pytest.mark.parametrize(("name", "engine"), [pair for pair in PAIRS if pair[1] != "local"])
def test_a_recipe_resolves(name: str, engine: str, tmp_path: Path) -> None:
    """The model and data are those of the recipe: nothing is loaded or written."""
    config = read(RECIPES / f"{name}.yaml", [])
    said = {"trl": run_trl, "verl": run_verl}[engine].describe(config, tmp_path / "run")
    assert config.model.path in said
    assert str(config.update.lr) in said
    assert not (tmp_path / "run").exists()


def test_a_dry_run_prints_and_stops(tmp_path: Path) -> None:
    recipe = str(RECIPES / "gsm8k-24gb.yaml")
    done = fspo("train", recipe, "steps=7", "--engine", "verl", "--dry-run", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert "trainer.total_training_steps=7" in done.stdout
    assert "python -m verl.trainer.main_ppo" in done.stdout
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("engine", "setting", "sentence"),
    [
        ("trl", "rollout.staleness=2", "rollout.staleness = 2 is not possible with --engine trl"),
        ("trl", "update.minibatches=3", "update.minibatches = 3 must divide rollout.prompts = 32"),
        ("verl", "rollout.dynamic=1", "rollout.dynamic = 1 is not possible with --engine verl"),
        ("verl", "update.schedule=linear", "update.schedule = 'linear' is not possible with --engine verl"),
        ("verl", "update.token_budget=600", "update.token_budget = 600 must be at least 1536"),
    ],
)
def test_what_an_engine_cannot_do_is_refused(engine: str, setting: str, sentence: str, tmp_path: Path) -> None:
    config = read(RECIPES / "gsm8k-24gb.yaml", [setting])
    with pytest.raises(ValueError, match=re.escape(sentence)):
        {"trl": run_trl, "verl": run_verl}[engine].describe(config, tmp_path)


def test_what_verl_calls_otherwise(tmp_path: Path) -> None:
    """Options of an objective that verl has outside its loss, and settings that go over the translation."""
    settings = [
        "objective={name: gspo, kl: {coef: 0.01, kind: k2}, entropy_coef: 0.002}",
        "engines.verl.trainer.n_gpus_per_node=4",
    ]
    found = run_verl.overrides(read(RECIPES / "gsm8k-24gb.yaml", settings), tmp_path)
    actor = "actor_rollout_ref.actor"
    assert found[f"{actor}.policy_loss.loss_mode"] == "fspo.gspo"
    assert found[f"++{actor}.policy_loss.objective"] == {}
    assert (found[f"{actor}.use_kl_loss"], found[f"{actor}.kl_loss_coef"]) == (True, 0.01)
    assert (found[f"{actor}.kl_loss_type"], found[f"{actor}.entropy_coeff"]) == ("mse", 0.002)
    assert found["trainer.n_gpus_per_node"] == 4


def test_overrides_survive_hydra(tmp_path: Path) -> None:
    """Every value is read back by hydra's own parser as it was meant."""
    parser = OverridesParser.create()
    found = run_verl.overrides(read(RECIPES / "gsm8k-24gb.yaml", []), tmp_path, chat=False)
    for word, value in zip(run_verl.command(found)[3:], found.values(), strict=True):
        assert parser.parse_override(word).value() == value, word


@pytest.mark.parametrize(("name", "engine"), [pair for pair in PAIRS if pair[1] != "verl"])
def test_a_recipe_runs(name: str, engine: str, tmp_path: Path) -> None:
    settings = [*overrides(name, tmp_path), "rollout.engine=local"]
    if engine == "trl":
        settings.append("engines.trl.bf16=false")
    run = tmp_path / "run"
    done = fspo("train", str(RECIPES / f"{name}.yaml"), *settings, "--engine", engine, "--out", str(run))
    assert done.returncode == 0, done.stderr
    rows = pl.read_parquet(run / "records")
    assert rows["step"].unique().sort().to_list() == [1, 2]
    assert len(rows) == 2 * 8 * read(RECIPES / f"{name}.yaml", []).update.epochs
    assert [row["step"] for row in read_lines(run / "metrics.jsonl")] == [1, 2]
    assert [row["step"] for row in read_lines(run / "evaluations.jsonl")] == [0, 2]
    assert "Clip rate by length" in (run / "report.html").read_text()
    if (name, engine) == ("gsm8k-24gb", "trl"):
        assert fspo("eval", str(run), "--prompts", "4").returncode == 0
