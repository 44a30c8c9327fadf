"""`fspo plan`: sizes against the real models' modules, memory against measured memory, and the recipes' tables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fspo.model.completions import Completions
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config
from typer.testing import CliRunner

from fspo import recipes
from fspo.cli.main import app
from fspo.config import read
from fspo.engines.planning import memory, planner
from fspo.engines.planning.devices import DEVICES
from fspo.engines.planning.shapes import KNOWN, Shape, from_config, shape_of
from fspo.model.forward import logprobs
from fspo.model.loading import Lora, Policy, load
from helpers.recipe_tables import expected


def module(shape: Shape, device: str = "meta") -> AutoModelForCausalLM:
    kind = Qwen3Config if shape.qk_norm else LlamaConfig
    config = kind(
        vocab_size=shape.vocabulary, hidden_size=shape.width, intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_size, tie_word_embeddings=shape.tied, pad_token_id=0, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    with torch.device(device):
        made: AutoModelForCausalLM = AutoModelForCausalLM.from_config(config)
    return made


@pytest.mark.parametrize("name", KNOWN)
def test_parameters_are_those_of_the_module(name: str) -> None:
    model = module(KNOWN[name])
    assert sum(p.numel() for p in model.parameters()) == KNOWN[name].parameters  # type: ignore[attr-defined]
    assert from_config(model.config.to_dict(), name) == KNOWN[name]  # type: ignore[attr-defined]


def test_sizes_of_a_tiny_model_and_of_a_folder(tmp_path: Path) -> None:
    policy = load("tiny:2x64", lora=Lora(4))
    shape = shape_of("tiny:2x64")
    assert sum(p.numel() for p in policy.base().parameters() if not p.requires_grad) == shape.parameters
    assert sum(p.numel() for p in policy.trainable()) == shape.adapters(4)
    (tmp_path / "config.json").write_text(json.dumps(policy.base().config.to_dict()))
    assert shape_of(str(tmp_path)) == shape


@pytest.mark.parametrize(
    "shape", [Shape(3, 128, 384, 4, 2, 32, 4096, True, True), Shape(3, 192, 512, 3, 1, 64, 4096, True, False)]
)
def test_activations_are_what_autograd_keeps(shape: Shape) -> None:
    """The bytes of all tensors that the forward saves for its backward, without weights and logits: within 8 %."""
    model = module(shape, "cpu").eval()  # type: ignore[attr-defined]
    prompt, answer, group = 40, 90, 8
    batch = Completions([[3] * prompt] * 2, [[4] * answer] * 2 * group, [0] * group + [1] * group)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = logprobs(Policy(model, None, eos_ids=(1,)), batch)
    out.logprobs.sum().backward()
    logits = batch.tokens * shape.vocabulary * 4
    tokens = 2 * (prompt + group * (answer - 1))
    sizes = memory.Sizes(shape, shape.parameters, 4, tokens, prompt, answer, group)
    moving = tokens * 4 * (2 * shape.intermediate + 2 * shape.width + 2 * shape.query)
    assert memory._activations(sizes) - moving == pytest.approx(sum(kept.values()) - logits, rel=0.08)


def test_every_recipe_ends_with_what_it_needs() -> None:
    for name in recipes.names():
        path = recipes.FOLDER / f"{name}.yaml"
        text = path.read_text()
        assert text == expected(path), f"run python -m helpers.recipe_tables for {name}"
        assert "does not fit" not in text
        for engine in recipes.note(name, "engines").split(", "):
            assert f"# engine {engine}, " in text or name.startswith("smollm2")


def test_the_cache_of_the_decoder_is_bounded() -> None:
    """All answers at once would take more than the GPU has; the decoder holds as many as `rollout.cache_gib` allows."""
    place = planner.Situation("local", DEVICES["4090"], "4090", prompt=160, mean=250)
    for engine, fits in (("vllm", True), ("local", True), ("local rollout.cache_gib=100", False)):
        found = planner.plan(read("recipe:gsm8k-24gb", f"rollout.engine={engine}".split()), place)
        assert found.fits == fits
    assert found.verdict().endswith("the largest part is cache of keys and values")


def test_more_of_anything_needs_more() -> None:
    place = planner.Situation("trl", DEVICES["a100-80gb"], "a100-80gb", devices=8, sharded=True)
    peak = planner.plan(read("recipe:qwen3-8b-math", []), place).peak
    for more in ("engines.trl.vllm_gpu_memory_utilization=0.7", "engines.trl.vllm_enable_sleep_mode=false"):
        assert planner.plan(read("recipe:qwen3-8b-math", [more]), place).peak > peak
    one = planner.Situation("trl", DEVICES["a100-80gb"], "a100-80gb", devices=8)
    found = planner.plan(read("recipe:qwen3-8b-math", []), one)
    assert not found.fits, "8 B parameters in float32 with their optimiser need more than one device"


@pytest.mark.parametrize("name", recipes.names())
def test_a_recipe_without_options_is_planned_for_what_it_is_written_for(name: str) -> None:
    done = CliRunner().invoke(app, ["plan", f"recipe:{name}"])
    assert done.exit_code == 0, done.output
    text = (recipes.FOLDER / f"{name}.yaml").read_text()
    tables = [line.removeprefix("# ") for line in text.splitlines() if line.startswith(("# engine ", "#   "))]
    printed = done.output.splitlines()
    assert [line for line in tables if line.startswith("engine ")] == [l for l in printed if l.startswith("engine ")]
    assert {line for line in tables if " per step (" in line} <= set(printed)


def test_the_command_line() -> None:
    runner = CliRunner()
    done = runner.invoke(app, ["plan", "recipe:gsm8k-24gb", "--engine", "verl"])
    assert done.exit_code == 0
    assert "Qwen/Qwen3-1.7B-Base: 1.72 B parameters" in done.output
    assert runner.invoke(app, ["plan", "recipe:gsm8k-24gb", "--memory-gib", "12"]).exit_code == 1
    assert "did you mean 'h100'" in str(runner.invoke(app, ["plan", "--device", "h10"]).exception)
    listed = runner.invoke(app, ["recipes"]).output
    assert "gsm8k-24gb" in listed
    assert "1.7 B" in listed
    text = runner.invoke(app, ["recipes", "gsm8k-24gb"]).output
    assert text == (recipes.FOLDER / "gsm8k-24gb.yaml").read_text()


@pytest.mark.slow
def test_memory_is_within_a_third_of_what_a_step_takes() -> None:
    settings = ["model.path=tiny:4x128", "rollout.prompts=16", "rollout.group=16", "rollout.max_new_tokens=64"]
    command = [sys.executable, "-m", "helpers.measured_memory", *settings, "update.token_budget=65536"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    measured, computed = map(float, done.stdout.split())
    assert computed == pytest.approx(measured, rel=1 / 3)
