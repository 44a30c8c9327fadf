"""Translation to other trainers. Every recipe resolves on its engines, and runs two steps with a tiny model."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import verl
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.import_utils import load_extern_object

from fspo import objectives, recipes, tasks
from fspo.config import read
from fspo.engines.translate import BAND
from fspo.engines.trl import run as run_trl
from fspo.engines.verl import job
from fspo.engines.verl import run as run_verl
from fspo.runs import Metrics, Observer, RunWriter, Timing, load
from helpers.custom_objective import HALVED
from helpers.pages import blocks
from helpers.small_recipes import RECIPES, overrides

ENGINES = {
    "qwen3-1.7b-math": ("trl", "verl"),
    "qwen3-1.7b-math-async": ("verl",),
    "qwen3-8b-math": ("trl", "verl"),
    "gsm8k-24gb": ("trl", "verl"),
    "smollm2-chain-sum": ("local", "trl", "verl"),
}
VERL_CONFIG = Path(verl.__file__).parent / "trainer" / "config"
DOCS = Path(__file__).parents[2] / "docs"
PAIRS = [(name, engine) for name, engines in ENGINES.items() for engine in engines]


def fspo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fspo", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def translated(engine: str, config: Any, folder: Path) -> dict[str, Any]:
    return (run_trl.arguments if engine == "trl" else job.overrides)(config, folder)


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
    translation = translated(engine, config, tmp_path / "run")
    assert config.model.path in str(translation) or engine == "trl"
    assert config.update.lr in translation.values()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("engine", "setting", "sentence"),
    [
        ("trl", "rollout.staleness=2", "rollout.staleness = 2 is not possible with --engine trl"),
        ("trl", "update.minibatches=3", "update.minibatches = 3 must divide rollout.prompts = 32"),
        ("verl", "update.schedule=linear", "update.schedule = 'linear' is not possible with --engine verl"),
        ("verl", "update.token_budget=600", "update.token_budget = 600 must be at least 2048"),
        ("verl", "log.samples=2", "log.samples = 2 is not possible with --engine verl"),
    ],
)
def test_what_an_engine_cannot_do_is_refused(engine: str, setting: str, sentence: str, tmp_path: Path) -> None:
    config = read(RECIPES / "gsm8k-24gb.yaml", [setting])
    with pytest.raises(ValueError, match=re.escape(sentence)):
        translated(engine, config, tmp_path)


def test_an_objective_of_another_module_is_named_for_verl(tmp_path: Path) -> None:
    settings = [f"objective={{name: '{HALVED}', c_low: 0.1, entropy_coef: 0.01}}"]
    translation = job.overrides(read(RECIPES / "gsm8k-24gb.yaml", settings), tmp_path)
    actor = "actor_rollout_ref.actor"
    assert translation[f"{actor}.policy_loss.loss_mode"] == "fspo"
    assert translation[f"++{actor}.policy_loss.objective"] == {"name": HALVED, "c_low": 0.1, "mismatch": BAND}
    word = next(word for word in job.command(translation) if "policy_loss.objective" in word)
    assert OverridesParser.create().parse_override(word).value() == translation[f"++{actor}.policy_loss.objective"]
    assert translation[f"{actor}.entropy_coeff"] == 0.01


def test_options_that_verl_has_itself(tmp_path: Path) -> None:
    """Options of an objective that verl has outside its loss, and settings that override the translation."""
    settings = [
        "objective={name: gspo, kl: {coef: 0.01, kind: k2}, entropy_coef: 0.002}",
        "engines.verl.trainer.n_gpus_per_node=4",
    ]
    translation = job.overrides(read(RECIPES / "gsm8k-24gb.yaml", settings), tmp_path)
    actor = "actor_rollout_ref.actor"
    assert translation[f"{actor}.policy_loss.loss_mode"] == "fspo.gspo"
    assert translation[f"++{actor}.policy_loss.objective"] == {"mismatch": BAND}
    assert (translation[f"{actor}.use_kl_loss"], translation[f"{actor}.kl_loss_coef"]) == (True, 0.01)
    assert (translation[f"{actor}.kl_loss_type"], translation[f"{actor}.entropy_coeff"]) == ("mse", 0.002)
    assert translation[f"{actor}.loss_agg_mode"] == "seq-mean-token-mean"  # as GSPO's penalty has it
    assert translation["trainer.n_gpus_per_node"] == 4


def test_overrides_survive_hydra(tmp_path: Path) -> None:
    """Hydra's own parser reads every value back unchanged."""
    parser = OverridesParser.create()
    translation = job.overrides(read(RECIPES / "gsm8k-24gb.yaml", []), tmp_path, chat=False)
    for word, value in zip(job.command(translation)[3:], translation.values(), strict=True):
        assert parser.parse_override(word).value() == value, word


# --- settings to paste ------------------------------------------------------------------------------------------------


def composed(words: list[str], folder: Path = VERL_CONFIG, name: str = "ppo_trainer") -> Any:
    """The policy loss of verl's actor, as verl makes it from a configuration and overrides of the command line."""
    with initialize_config_dir(str(folder), version_base=None):
        return omega_conf_to_dataclass(compose(name, overrides=words).actor_rollout_ref.actor.policy_loss)


def test_settings_of_verl_on_its_page_are_tried_as_written(tmp_path: Path) -> None:
    """The overrides of a command line, and the same as a file beside an existing job."""
    page = [block for block in blocks(DOCS / "engines-verl.md") if "policy_loss" in block.text]
    command, file = page[0].text, page[1].text
    words = given(command)
    (tmp_path / "fspo.yaml").write_text(file)
    wanted = objectives.get("fspo", c_low=0.03, c_high=0.03)
    for policy in (composed(words), composed([], tmp_path, "fspo")):
        assert (policy.build(), policy.updates) == (wanted, 4)
        assert policy.records.endswith("/run")
    assert composed([*words, *given(page[2].text)]).checkpoints.endswith("/saved")  # a job that may be preempted


def given(command: str) -> list[str]:
    """The overrides of a command."""
    return [word for word in command.replace("\\\n", " ").split() if "=" in word and not word.startswith("VERL_")]


def test_verls_reward_function_asks_the_task(tmp_path: Path) -> None:
    """As verl loads and calls it: by the name of its module, with the prompts that were written for verl."""
    config = read(None, ["task={name: sort, n_min: 2, n_max: 4}", "update.schedule=constant", "steps=2", "warmup=null"])
    RunWriter(tmp_path).describe(config.model_dump(mode="json"), engine="verl")
    job.write_prompts(config, tmp_path)
    translation = job.overrides(config, tmp_path)
    prefix = "reward.custom_reward_function"
    compute_score: Any = load_extern_object(translation[f"{prefix}.path"], translation[f"{prefix}.name"])
    rows = pl.read_parquet(tmp_path / "train.parquet").head(3).to_dicts()
    for index, row in enumerate(rows):
        truth = row["reward_model"]["ground_truth"]
        example = tasks.get(config.task).example("train", index)
        assert row["prompt"] == [{"role": "user", "content": example.prompt}]
        folder = translation[f"+{prefix}.reward_kwargs.folder"]
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
        assert run_verl._follow(process, tmp_path, shown, lambda: 0) == 3
    assert shown.steps == [(2, 0.5), (3, 0.5)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "engine"), [pair for pair in PAIRS if pair[1] != "verl"])
def test_a_recipe_runs(name: str, engine: str, tmp_path: Path) -> None:
    settings = [*overrides(name, tmp_path), *([] if engine == "local" else ["engines.trl.use_vllm=false"])]
    run = tmp_path / "run"
    done = fspo("train", f"recipe:{name}", *settings, "--engine", engine, "--out", str(run))
    assert done.returncode == 0, done.stderr
    rows = pl.read_parquet(run / "records")
    assert rows["step"].unique().sort().to_list() == [1, 2]
    assert len(rows) == 2 * 8 * read(RECIPES / f"{name}.yaml", []).update.epochs
    recorded = load(run)
    assert recorded.facts.engine == engine
    assert [line.step for line in recorded.metrics] == [1, 2]
    assert [line.step for line in recorded.evaluations] == [0, 2]
    assert {line.step for line in recorded.samples} == {1, 2}
    assert "Clip rate by length" in (run / "report.html").read_text()
    if (name, engine) == ("gsm8k-24gb", "trl"):
        assert fspo("eval", str(run), "--prompts", "4").returncode == 0


def test_trl_trains_float32_weights_whatever_the_model_computes_in(tmp_path: Path) -> None:
    for dtype, products in (("bfloat16", True), ("float32", False)):
        translation = run_trl.arguments(read(None, [f"model.dtype={dtype}", "warmup=null"]), tmp_path)
        assert translation["model_init_kwargs"] == {"dtype": "float32"}
        assert translation["bf16"] is products
