"""Translation to other trainers. Every recipe resolves on its engines, and runs two steps with a tiny model."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from verl.utils.import_utils import load_extern_object

from fspo import recipes, tasks
from fspo.config import read
from fspo.engines.sampler_rules import BAND
from fspo.engines.trl import run as run_trl
from fspo.engines.verl import hydra_settings
from fspo.engines.verl import run as run_verl
from fspo.engines.verl.job import write_prompts
from fspo.runs import Metrics, Observer, RunWriter, Timing, load
from helpers.custom_objective import HALVED
from helpers.small_recipes import RECIPES, overrides

ENGINES = {
    "qwen3-1.7b-math": ("trl", "verl"),
    "qwen3-8b-math": ("trl", "verl"),
    "gsm8k-24gb": ("local", "trl", "verl"),
    "smollm2-chain-sum": ("local", "trl", "verl"),
}
PAIRS = [(name, engine) for name, engines in ENGINES.items() for engine in engines]


def fspo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fspo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def translated(engine: str, config: Any, folder: Path) -> dict[str, Any]:
    return (run_trl.arguments if engine == "trl" else hydra_settings.overrides)(config, folder)


def test_every_recipe_is_here() -> None:
    assert set(recipes.names()) == set(ENGINES)
    for name, engines in ENGINES.items():
        assert recipes.note(name, "engines") == ", ".join(engines)
        assert recipes.summary(name).endswith(".")


def test_a_recipe_is_found_wherever_a_file_is_taken() -> None:
    assert read("recipe:gsm8k-24gb", ["steps=7"]) == read(RECIPES / "gsm8k-24gb.yaml", ["steps=7"])
    with pytest.raises(ValueError, match="there is no recipe 'gsm8k'; did you mean 'gsm8k-24gb'"):
        read("recipe:gsm8k", [])


@pytest.mark.parametrize(("name", "engine"), [pair for pair in PAIRS if pair[1] != "local"])
def test_a_recipe_resolves(name: str, engine: str, tmp_path: Path) -> None:
    """The model and data are those of the recipe: nothing is loaded or written."""
    config = read(f"recipe:{name}", [])
    found = translated(engine, config, tmp_path / "run")
    assert config.model.path in str(found) or engine == "trl"
    assert config.update.lr in found.values()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("engine", "setting", "sentence"),
    [
        ("trl", "rollout.staleness=2", "rollout.staleness = 2 is not possible with --engine trl"),
        ("trl", "update.minibatches=3", "update.minibatches = 3 must divide rollout.prompts = 32"),
        ("verl", "rollout.dynamic=1", "rollout.dynamic = 1 is not possible with --engine verl"),
        ("verl", "update.schedule=linear", "update.schedule = 'linear' is not possible with --engine verl"),
        ("verl", "update.token_budget=600", "update.token_budget = 600 must be at least 2048"),
        ("verl", "log.samples=2", "set trainer.rollout_data_dir in engines.verl"),
    ],
)
def test_what_an_engine_cannot_do_is_refused(engine: str, setting: str, sentence: str, tmp_path: Path) -> None:
    config = read(RECIPES / "gsm8k-24gb.yaml", [setting])
    with pytest.raises(ValueError, match=re.escape(sentence)):
        translated(engine, config, tmp_path)


def test_an_objective_of_another_module_is_named_for_verl(tmp_path: Path) -> None:
    settings = [f"objective={{name: '{HALVED}', c_low: 0.1, entropy_coef: 0.01}}"]
    found = hydra_settings.overrides(read(RECIPES / "gsm8k-24gb.yaml", settings), tmp_path)
    actor = "actor_rollout_ref.actor"
    assert found[f"{actor}.policy_loss.loss_mode"] == "fspo"
    assert found[f"++{actor}.policy_loss.objective"] == {"name": HALVED, "c_low": 0.1, "mismatch": BAND}
    word = next(word for word in hydra_settings.command(found) if "policy_loss.objective" in word)
    assert OverridesParser.create().parse_override(word).value() == found[f"++{actor}.policy_loss.objective"]
    assert found[f"{actor}.entropy_coeff"] == 0.01


def test_options_that_verl_has_itself(tmp_path: Path) -> None:
    """Options of an objective that verl has outside its loss, and settings that override the translation."""
    settings = [
        "objective={name: gspo, kl: {coef: 0.01, kind: k2}, entropy_coef: 0.002}",
        "engines.verl.trainer.n_gpus_per_node=4",
    ]
    found = hydra_settings.overrides(read(RECIPES / "gsm8k-24gb.yaml", settings), tmp_path)
    actor = "actor_rollout_ref.actor"
    assert found[f"{actor}.policy_loss.loss_mode"] == "fspo.gspo"
    assert found[f"++{actor}.policy_loss.objective"] == {"mismatch": BAND}
    assert (found[f"{actor}.use_kl_loss"], found[f"{actor}.kl_loss_coef"]) == (True, 0.01)
    assert (found[f"{actor}.kl_loss_type"], found[f"{actor}.entropy_coeff"]) == ("mse", 0.002)
    assert found[f"{actor}.loss_agg_mode"] == "seq-mean-token-mean"  # as GSPO's penalty has it
    assert found["trainer.n_gpus_per_node"] == 4


def test_overrides_survive_hydra(tmp_path: Path) -> None:
    """Hydra's own parser reads every value back unchanged."""
    parser = OverridesParser.create()
    found = hydra_settings.overrides(read(RECIPES / "gsm8k-24gb.yaml", []), tmp_path, chat=False)
    for word, value in zip(hydra_settings.command(found)[3:], found.values(), strict=True):
        assert parser.parse_override(word).value() == value, word


@pytest.mark.slow
def test_a_dry_run_needs_no_other_trainer() -> None:
    code = (
        "import sys, fspo.engines.trl.run, fspo.engines.verl.run;"
        "assert not {'trl', 'verl', 'ray', 'datasets'} & set(sys.modules), sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_verls_reward_function_asks_the_task(tmp_path: Path) -> None:
    """As verl loads and calls it: by the name of its module, with the prompts that were written for verl."""
    config = read(None, ["task={name: sort, n_min: 2, n_max: 4}", "update.schedule=constant", "steps=2", "warmup=null"])
    RunWriter(tmp_path).describe(config.model_dump(mode="json"), engine="verl")
    write_prompts(config, tmp_path)
    found = hydra_settings.overrides(config, tmp_path)
    prefix = "reward.custom_reward_function"
    compute_score: Any = load_extern_object(found[f"{prefix}.path"], found[f"{prefix}.name"])
    rows = pl.read_parquet(tmp_path / "train.parquet").head(3).to_dicts()
    for index, row in enumerate(rows):
        truth = row["reward_model"]["ground_truth"]
        example = tasks.get(config.task).example("train", index)
        assert row["prompt"] == [{"role": "user", "content": example.prompt}]
        folder = found[f"+{prefix}.reward_kwargs.folder"]
        right = compute_score(row["data_source"], example.solution, truth, folder=folder)
        assert right == {"score": 1.0, "acc": 1.0, "unscored": 0.0}
        assert compute_score(row["data_source"], "?", truth, folder=folder)["acc"] == 0


def test_every_step_of_verl_is_shown_until_it_ends(tmp_path: Path) -> None:
    class Shown(Observer):
        def __init__(self) -> None:
            self.steps: list[tuple[int, float | None]] = []

        def step(self, metrics: Metrics, timing: Timing) -> None:
            self.steps.append((metrics.step, metrics.reward))

    writer, shown = RunWriter(tmp_path), Shown()
    writer.append(Metrics(step=1, reward=0.1))  # before the resume
    lines = "".join(f'{{"step": {step}, "reward": 0.5}}\n' for step in (2, 3))
    code = f"open({str(writer.path(Metrics))!r}, 'a').write({lines!r}); exit(3)"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        assert run_verl._follow(process, tmp_path, shown) == 3
    assert shown.steps == [(2, 0.5), (3, 0.5)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "engine"), [pair for pair in PAIRS if pair[1] != "verl"])
def test_a_recipe_runs(name: str, engine: str, tmp_path: Path) -> None:
    settings = overrides(name, tmp_path)
    run = tmp_path / "run"
    done = fspo("train", f"recipe:{name}", *settings, "--engine", engine, "--out", str(run))
    assert done.returncode == 0, done.stderr
    rows = pl.read_parquet(run / "records")
    assert rows["step"].unique().sort().to_list() == [1, 2]
    assert len(rows) == 2 * 8 * read(RECIPES / f"{name}.yaml", []).update.epochs
    found = load(run)
    assert found.facts.engine == engine
    assert [line.step for line in found.metrics] == [1, 2]
    assert [line.step for line in found.evaluations] == [0, 2]
    assert {line.step for line in found.samples} == {1, 2}
    assert "Clip rate by length" in (run / "report.html").read_text()
    if (name, engine) == ("gsm8k-24gb", "trl"):
        assert fspo("eval", str(run), "--prompts", "4").returncode == 0


def test_trl_trains_float32_weights_whatever_the_model_computes_in(tmp_path: Path) -> None:
    for dtype, products in (("bfloat16", True), ("float32", False)):
        found = run_trl.arguments(read(None, [f"model.dtype={dtype}", "warmup=null"]), tmp_path)
        assert found["model_init_kwargs"] == {"dtype": "float32"}
        assert found["bf16"] is products
