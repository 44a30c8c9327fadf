"""`fspo train` on other trainers: what they are given and refuse, recipes, and the export of a run of verl."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import verl
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from packaging.requirements import Requirement
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.import_utils import load_extern_object

import fspo
from fspo import objectives, recipes, tasks
from fspo.config import read
from fspo.engines.translate import BAND, rows
from fspo.engines.trl import run as run_trl
from fspo.engines.verl import run as run_verl
from fspo.model import loading as models
from fspo.runs import RunWriter, load
from helpers.custom_objective import HALVED
from helpers.pages import blocks
from helpers.processes import fspo as command
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


def translated(engine: str, config: Any, folder: Path) -> dict[str, Any]:
    return (run_trl.arguments if engine == "trl" else run_verl.overrides)(config, folder)


def test_every_recipe_is_here() -> None:
    assert set(recipes.names()) == set(ENGINES)
    for name, engines in ENGINES.items():
        assert recipes.note(name, "engines") == ", ".join(engines)
        assert recipes.summary(name).endswith(".")


def test_a_recipe_is_found_wherever_a_file_is_taken() -> None:
    assert read("recipe:gsm8k-24gb", ["steps=7"]) == read(RECIPES / "gsm8k-24gb.yaml", ["steps=7"])
    with pytest.raises(ValueError, match="there is no recipe 'gsm8k'; did you mean 'gsm8k-24gb'"):
        read("recipe:gsm8k", [])


@pytest.mark.parametrize(("name", "engine"), [(name, e) for name in ENGINES for e in ENGINES[name] if e != "local"])
def test_a_recipe_resolves(name: str, engine: str, tmp_path: Path) -> None:
    """The model and data are those of the recipe: nothing is loaded or written."""
    config = read(f"recipe:{name}", [])
    translation = translated(engine, config, tmp_path / "run")
    assert config.update.lr in translation.values()
    printed = (run_trl if engine == "trl" else run_verl).dry_run(config, tmp_path / "run")
    assert all(name in printed for name in (*translation, config.model.path))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("engine", "setting", "sentence"),
    [
        ("trl", "rollout.staleness=2", "rollout.staleness = 2 is not possible with --engine trl"),
        ("trl", "update.minibatches=3", "update.minibatches = 3 must divide rollout.prompts = 32"),
        ("verl", "update.schedule=linear", "update.schedule = 'linear' is not possible with --engine verl"),
        ("verl", "update.token_budget=600", "update.token_budget = 600 must be at least 2048"),
        ("verl", "log.samples=2", "log.samples = 2 is not possible with --engine verl"),
        ("verl", "objective.kl={coef: 0.1}", "objective.kl is an option of verl: set actor_rollout_ref.actor.use_kl"),
    ],
)
def test_what_an_engine_cannot_do_is_refused(engine: str, setting: str, sentence: str, tmp_path: Path) -> None:
    config = read(RECIPES / "gsm8k-24gb.yaml", [setting])
    with pytest.raises(ValueError, match=re.escape(sentence)):
        translated(engine, config, tmp_path)


def test_an_objective_of_another_module_is_named_for_verl(tmp_path: Path) -> None:
    settings = [f"objective={{name: '{HALVED}', c_low: 0.1}}", "engines.verl.trainer.n_gpus_per_node=4"]
    translation = run_verl.overrides(read(RECIPES / "gsm8k-24gb.yaml", settings), tmp_path)
    actor = "actor_rollout_ref.actor"
    assert translation[f"{actor}.policy_loss.loss_mode"] == "fspo"
    assert translation[f"++{actor}.policy_loss.objective"] == {"name": HALVED, "c_low": 0.1, "mismatch": BAND}
    word = next(word for word in run_verl.command(translation) if "policy_loss.objective" in word)
    assert OverridesParser.create().parse_override(word).value() == translation[f"++{actor}.policy_loss.objective"]
    assert translation["trainer.n_gpus_per_node"] == 4  # overrides the translation


def test_overrides_survive_hydra(tmp_path: Path) -> None:
    """Hydra's own parser reads every value back unchanged."""
    parser = OverridesParser.create()
    translation = run_verl.overrides(read(RECIPES / "gsm8k-24gb.yaml", []), tmp_path, chat=False)
    for word, value in zip(run_verl.command(translation)[3:], translation.values(), strict=True):
        assert parser.parse_override(word).value() == value, word


ROLLOUT = "actor_rollout_ref.rollout"
CORRECTION = "algorithm.rollout_correction"


def for_verl(tmp_path: Path, *more: str) -> dict[str, Any]:
    return run_verl.overrides(read("recipe:gsm8k-24gb", list(more)), tmp_path)


def objective_of(given: dict[str, Any]) -> dict[str, Any]:
    objective: dict[str, Any] = given["++actor_rollout_ref.actor.policy_loss.objective"]
    return objective


def test_in_verl_the_rule_for_vllm_is_the_band_unless_it_is_changed(tmp_path: Path) -> None:
    given = for_verl(tmp_path)
    assert objective_of(given)["mismatch"] == BAND
    assert (given[f"{CORRECTION}.rollout_is"], given[f"{CORRECTION}.rollout_is_threshold"]) == (
        "sequence",
        run_verl.OPEN,
    )
    assert given[f"{ROLLOUT}.calculate_log_probs"] is True
    given = for_verl(tmp_path, "objective.mismatch={level: token, mode: truncate, high: 2.0}")
    assert given[f"{CORRECTION}.rollout_is"] == "token"
    assert objective_of(given)["mismatch"]["high"] == 2.0
    for off in ("objective.mismatch=null", f"engines.verl={{{CORRECTION}.rollout_is: token}}"):
        given = for_verl(tmp_path, off)
        assert "mismatch" not in objective_of(given)
        assert f"{CORRECTION}.rollout_is_threshold" not in given
    with pytest.raises(ValueError, match="are the same rule: give one of them"):
        for_verl(tmp_path, "objective.mismatch={c: 0.1}", f"engines.verl={{{CORRECTION}.rollout_is: token}}")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        (f"{ROLLOUT}.top_p", 0.9),
        (f"+{ROLLOUT}.repetition_penalty", 1.05),
        (f"+{ROLLOUT}.engine_kwargs.vllm.override_generation_config", {"min_p": 0.1}),
        (f"{ROLLOUT}.do_sample", False),
    ],
)
def test_verl_samples_from_the_whole_distribution(setting: str, value: Any, tmp_path: Path) -> None:
    named = re.escape(f"engines.verl.{setting.lstrip('+')}")
    with pytest.raises(ValueError, match=f"{named}.* is refused in training"):
        for_verl(tmp_path, f"engines.verl={{'{setting}': {value}}}")
    for_verl(tmp_path, f"engines.verl={{{ROLLOUT}.val_kwargs.top_p: 0.7, {ROLLOUT}.top_p: 1.0}}")  # validation may


def test_data_that_cannot_be_downloaded_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach the Hub. Check your connection")

    monkeypatch.setattr("datasets.load_dataset", offline)
    with pytest.raises(ValueError, match="the data set 'openai/gsm8k' cannot be loaded: Couldn't reach"):
        rows(read("recipe:gsm8k-24gb", []).task, "train", 1)


# --- settings to paste ------------------------------------------------------------------------------------------------


def composed(words: list[str], folder: Path = VERL_CONFIG, name: str = "ppo_trainer") -> Any:
    """The policy loss of verl's actor, as verl makes it from a configuration and overrides of the command line."""
    with initialize_config_dir(str(folder), version_base=None):
        return omega_conf_to_dataclass(compose(name, overrides=words).actor_rollout_ref.actor.policy_loss)


def test_settings_of_verl_on_its_page_are_tried_as_written(tmp_path: Path) -> None:
    """The overrides of a command line, and the same as a file beside an existing run_verl."""
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
    run_verl.write_prompts(config, tmp_path)
    translation = run_verl.overrides(config, tmp_path)
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


# Settings of qwen3-1.7b-math are those of qwen3-8b-math without its drift; tests/vllm_engine has those of verl.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "engine"), [("gsm8k-24gb", "trl"), ("qwen3-8b-math", "trl"), ("smollm2-chain-sum", "local")]
)
def test_a_recipe_runs(name: str, engine: str, tmp_path: Path) -> None:
    settings = [*overrides(name, tmp_path), *([] if engine == "local" else ["engines.trl.use_vllm=false"])]
    run = tmp_path / "run"
    command("train", f"recipe:{name}", *settings, "--engine", engine, "--out", str(run))
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
        command("eval", str(run), "--prompts", "4")


def test_trl_trains_float32_weights_whatever_the_model_computes_in(tmp_path: Path) -> None:
    for dtype, products in (("bfloat16", True), ("float32", False)):
        translation = run_trl.arguments(read(None, [f"model.dtype={dtype}", "warmup=null"]), tmp_path)
        assert translation["model_init_kwargs"] == {"dtype": "float32"}
        assert translation["bf16"] is products


# --- verl: what it needs, and what it leaves --------------------------------------------------------------------------


def test_verls_own_environment_is_not_refused() -> None:
    """The versions that verl itself pins (torch 2.11, vLLM 0.24, transformers 5.9) satisfy every requirement."""

    def needs(package: str, extra: str) -> list[Requirement]:
        asked = [Requirement(text) for text in importlib.metadata.requires(package) or []]
        return [need for need in asked if need.marker is None or need.marker.evaluate({"extra": extra})]

    exact = [need for need in needs("verl", "vllm") if str(need.specifier).startswith("==")]
    pins = {need.name: str(need.specifier).removeprefix("==") for need in exact}
    assert {"torch", "vllm", "transformers"} <= pins.keys()
    for need in (*needs("fspo", "train"), *needs("fspo", "verl"), *needs("fspo", "vllm")):
        assert need.name not in pins or need.specifier.contains(pins[need.name], prereleases=True), need


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_what_is_missing_is_named_before_anything_is_written(tmp_path: Path) -> None:
    config = read("recipe:gsm8k-24gb", [])
    with pytest.raises(ValueError, match=r"cannot start: vllm not installed \(pip install 'fspo\[verl\]' vllm\)"):
        fspo.train(config, tmp_path / "run", engine="verl")
    assert not (tmp_path / "run").exists()


def test_a_run_of_verl_is_exported_once_its_shards_are_merged(tmp_path: Path) -> None:
    """The command is verl's own; tests/vllm_engine runs it."""
    run, saved = tmp_path / "run", tmp_path / "run" / "checkpoints" / "global_step_7"
    RunWriter(run).describe(read(None, []).model_dump(mode="json"), engine="verl")
    (saved / "actor").mkdir(parents=True)
    (saved.parent / "latest_checkpointed_iteration.txt").write_text("7")
    command = f"merge --backend fsdp --local_dir {saved}/actor --target_dir {saved}/merged"
    with pytest.raises(ValueError, match=re.escape(f"python -m verl.model_merger {command}")):
        fspo.export(run, tmp_path / "model")
    models.save(models.load("tiny:1x32"), saved / "merged")
    written = {path.name for path in fspo.export(run, tmp_path / "model").iterdir()}
    assert {"model.safetensors", "tokenizer.json"} <= written
    # Of a run with LoRA, verl's tool writes the model that it began with, and the adapters in a folder inside.
    model = AutoModelForCausalLM.from_pretrained(saved / "merged")
    adapters = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    adapters.save_pretrained(str(saved / "merged" / "lora_adapter"))
    with pytest.raises(ValueError, match="holds adapters as peft reads them"):
        fspo.export(run, tmp_path / "adapters")
