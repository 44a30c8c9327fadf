"""What `--dry-run` writes, and what is checked before verl starts."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import torch
import yaml
from packaging.requirements import Requirement
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

import fspo
from fspo import tasks
from fspo.config import read
from fspo.engines import checkup
from fspo.engines.trl import run as run_trl
from fspo.engines.verl import job
from fspo.model import loading as models
from fspo.runs import RunWriter
from helpers.processes import Command

SMALL = [
    "model.path=tiny:1x32", "task={name: sort, n_min: 2, n_max: 3}", "warmup=null", "steps=2", "rollout.prompts=4",
    "rollout.group=2", "rollout.max_new_tokens=8", "update.schedule=constant", "eval.prompts=3",
]  # fmt: skip


def fake_programs(folder: Path, *names: str) -> dict[str, str]:
    """Programs that write down what they are given, and an environment that has them first on its path.

    The commands of this package that a script runs before and after verl are run for real.
    """
    programs = folder / "bin"
    programs.mkdir()
    for name in names:
        program = programs / name
        program.write_text(
            f'#!/bin/sh\ncase "$2" in fspo.engines.*) exec {sys.executable} "$@";; esac\n'
            f'printf "%s\\n" "$VERL_FILE_LOGGER_PATH" "$@" > {folder}/{name}.txt\n'
            f'test "$2" != verl.trainer.main_ppo || echo > "$VERL_FILE_LOGGER_PATH"\n'
        )
        program.chmod(0o755)
    return os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


def test_a_dry_run_for_verl_is_copied_run_and_resumed_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the data file that the task names by a relative path, which the other machine does not have."""
    here, there = tmp_path / "here", tmp_path / "there"
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"What is {a} + 1?", "answer": str(a + 1)} for a in range(20)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = read(None, [*SMALL, "task=jsonl:sums.jsonl"])
    printed = job.dry_run(config, here)
    assert 'data.train_files="$RUN"/train.parquet' in printed
    assert len(pl.read_parquet(here / "train.parquet")) == 2 * 4
    assert (here / "start" / "config.json").is_file()
    script = (here / "run.sh").read_text()
    assert str(tmp_path) not in script
    assert f"pip install 'fspo[verl,vllm,tasks]=={fspo.__version__}'" in script
    assert "updates are required" in script
    shutil.move(here, there)
    (tmp_path / "sums.jsonl").unlink()
    environment = fake_programs(tmp_path, "python", "fspo")
    for start in (0, 1):
        subprocess.run([there / "run.sh"], check=True, cwd="/", env=environment)
        given = (tmp_path / "python.txt").read_text().splitlines()
        assert given[:3] == [f"{there}/verl.jsonl", "-m", "verl.trainer.main_ppo"]
        assert f"data.train_files={there}/train.parquet" in given
        assert f"actor_rollout_ref.model.path={there}/start" in given
        assert f"+reward.custom_reward_function.reward_kwargs.folder={there}" in given
        assert "trainer.experiment_name=here" in given
        assert f"++actor_rollout_ref.actor.policy_loss.checkpoints={there}/checkpoints" in given
        assert "trainer.resume_mode=auto" in given
        assert f"trainer.val_before_train={'false' if start else 'true'}" in given
        (there / "checkpoints").mkdir(exist_ok=True)
        (there / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("1")
    assert (tmp_path / "fspo.txt").read_text().splitlines()[1:] == ["report", str(there)]
    moved = tasks.get(read(there / "config.yaml", []).task)
    assert moved.example("train", 0).prompt.startswith("What is ")


def test_a_dry_run_for_trl_leaves_the_folder_free_for_a_run(tmp_path: Path) -> None:
    printed = run_trl.dry_run(read(None, SMALL), tmp_path / "run")
    assert "FSPOTrainer(" in printed
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"job.yaml", "run.sh"}
    assert yaml.safe_load((tmp_path / "run" / "job.yaml").read_text())["steps"] == 2
    environment = fake_programs(tmp_path, "torchrun")
    for more in ([f"{tmp_path}/run/here.yaml", "--engine", "trl", "--out"], ["--out"]):
        subprocess.run([tmp_path / "run" / "run.sh"], check=True, cwd="/", env=environment)
        given = (tmp_path / "torchrun.txt").read_text().splitlines()
        assert given[given.index("train") + 1 :][: len(more) + 1] == [*more, f"{tmp_path}/run"]
        shutil.copy(tmp_path / "run" / "here.yaml", tmp_path / "run" / "config.yaml")
    assert "--resume" in given


def test_a_dry_run_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").mkdir()
    for made in (job.dry_run, run_trl.dry_run):
        with pytest.raises(ValueError, match=r"model.path = 'weights' is a relative folder"):
            made(read(None, [*SMALL, "model.path=weights", "model.chat=true"]), tmp_path / "run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    with pytest.raises(ValueError, match="exists already and is no dry run"):
        run_trl.dry_run(read(None, SMALL), tmp_path / "mine")
    assert {path.name for path in tmp_path.iterdir()} == {"weights", "mine"}


def test_what_an_extra_lacks_is_named_with_the_command() -> None:
    assert checkup.missing("train") == []
    if "vllm" in checkup.missing("vllm"):
        assert checkup.lacking("verl", "vllm") == "vllm is missing (pip install 'fspo[verl,vllm]')"


@pytest.mark.parametrize("extra", ["vllm", "sglang", "fsdp"])
def test_verls_own_environment_is_not_refused(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The versions that verl itself pins (torch 2.11, vLLM 0.24, transformers 5.9) satisfy every requirement."""
    needs = [Requirement(text) for text in importlib.metadata.requires("verl") or []]
    asked = [need for need in needs if need.marker is None or need.marker.evaluate({"extra": extra})]
    pins = {need.name: str(need.specifier).removeprefix("==") for need in asked if str(need.specifier).startswith("==")}
    assert {"torch", *({"vllm", "transformers"} if extra == "vllm" else ())} <= pins.keys()
    installed = checkup.version
    monkeypatch.setattr(checkup, "version", lambda name: pins.get(name, installed(name)))
    assert checkup.missing("verl") == []
    assert checkup.missing("vllm") == [] or "vllm" not in pins


def test_another_sampler_of_verl_is_asked_for_by_its_name() -> None:
    config = read(None, [*SMALL, "engines.verl.actor_rollout_ref.rollout.name=sglang"])
    assert job.overrides(config, "run")["actor_rollout_ref.rollout.name"] == "sglang"
    if importlib.util.find_spec("sglang") is None:
        with pytest.raises(ValueError, match=r"its sampler sglang is missing \(pip install 'verl\[sglang\]'\)"):
            checkup.require_verl(config)


def test_a_layout_without_a_loss_on_every_rank_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    stages = "engines.verl.actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2"
    with pytest.raises(ValueError, match=r"pipeline_model_parallel_size = 2 is possible with policy_loss.stateless"):
        job.dry_run(read(None, [*SMALL, stages]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_of_verl_is_exported_once_its_shards_are_merged(tmp_path: Path) -> None:
    """The command is verl's own; tests/vllm_engine runs it."""
    run, saved = tmp_path / "run", tmp_path / "run" / "checkpoints" / "global_step_7"
    RunWriter(run).describe(read(None, SMALL).model_dump(mode="json"), engine="verl")
    (saved / "actor").mkdir(parents=True)
    (saved.parent / "latest_checkpointed_iteration.txt").write_text("7")
    command = f"merge --backend fsdp --local_dir {saved}/actor --target_dir {saved}/merged"
    with pytest.raises(ValueError, match=re.escape(f"python -m verl.model_merger {command}")):
        fspo.export(run, tmp_path / "model")
    models.save(models.load("tiny:1x32"), saved / "merged")
    written = {path.name for path in fspo.export(run, tmp_path / "model").iterdir()}
    assert {"README.md", "model.safetensors", "tokenizer.json"} <= written
    # Of a run with LoRA, verl's tool writes the model that it began with, and the adapters in a folder inside.
    model = AutoModelForCausalLM.from_pretrained(saved / "merged")
    adapters = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    adapters.save_pretrained(str(saved / "merged" / "lora_adapter"))
    with pytest.raises(ValueError, match="holds adapters as peft reads them"):
        fspo.export(run, tmp_path / "adapters")


def test_verl_is_refused_where_it_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    if torch.cuda.is_available():
        pytest.skip("this machine has what verl needs")
    with pytest.raises(ValueError, match=r"^--engine verl cannot start: .*\. --dry-run writes the run for another"):
        fspo.train(read(None, SMALL), tmp_path / "run", engine="verl")
    assert not (tmp_path / "run").exists()
    assert checkup.platform_problem().endswith("this machine shows none")
    assert checkup.platform_problem(elsewhere=True) == ""
    monkeypatch.setenv("VERL_PLATFORM", "mine")
    assert checkup.platform_problem() == ""


@pytest.mark.slow
def test_why_verl_cannot_load_the_plug_in_is_known_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['fspo.objectives'] = None\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    assert re.match("verl cannot be used: .*fspo.objectives", checkup.import_problem())


def test_what_cannot_be_downloaded_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach the Hub. Check your connection")

    monkeypatch.setattr("datasets.load_dataset", offline)
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", offline)
    with pytest.raises(ValueError, match="the data set 'openai/gsm8k' cannot be loaded: Couldn't reach"):
        job.dry_run(read("recipe:gsm8k-24gb", []), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match=r"set model\.chat to true or false"):
        job.dry_run(read("recipe:smollm2-chain-sum", ["warmup=null"]), tmp_path / "other")


def test_recipes_are_listed_without_the_packages_of_their_tasks(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("reasoning_gym", "datasets", "math_verify"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "smollm2-chain-sum" in command("recipes").stdout
