"""`fspo export`: weights that transformers and peft load, and a card with the run's figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from fspo.config import read
from fspo.model.loading import load
from fspo.runs import load as load_run
from fspo.training.loop import train
from helpers.policies import adapter_run
from helpers.processes import Command

PROMPT = torch.tensor([[5, 6, 7, 8]])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, small: list[str]) -> Path:
    """A run of all weights and one of adapters."""
    folder = tmp_path_factory.mktemp("runs")
    train(read(None, [*small, "steps=2"]), folder / "whole")
    adapter_run(folder / "whole", folder / "lora")
    return folder


def logits(model: object) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(PROMPT).logits  # type: ignore[operator]
    return result


def test_an_exported_model_is_the_last_checkpoint_with_a_card(command: Command, runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "models" / "whole"
    command("export", str(runs / "whole"), str(out))
    last = max((runs / "whole" / "checkpoints").iterdir())
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(out)), logits(load(str(last)).model))
    assert load(str(out)).tokenizer is not None
    assert not [path for path in out.iterdir() if path.name.startswith(("optimizer", "state", "checksums", "master"))]
    text = (out / "README.md").read_text()
    head = yaml.safe_load(text.split("---")[1])
    assert head["library_name"] == "transformers"
    run = load_run(runs / "whole")
    line = run.evaluations[-1]
    assert line.interval is not None
    assert line.accuracy is not None
    assert f"{100 * line.accuracy:.1f}" in text
    assert f"{100 * line.interval[0]:.1f}" in text
    assert yaml.safe_load(text.split("```yaml")[1].split("```")[0]) == run.config
    assert command("export", str(runs / "whole"), str(out), check=False).returncode == 2


def test_adapters_are_merged_on_request(command: Command, runs: Path, tmp_path: Path) -> None:
    command("export", str(runs / "lora"), str(tmp_path / "adapters"))
    command("export", str(runs / "lora"), str(tmp_path / "merged"), "--merge")
    config = json.loads((tmp_path / "adapters" / "adapter_config.json").read_text())
    assert config["r"] == 2
    assert not list((tmp_path / "merged").glob("adapter_*"))
    start = load(load_run(runs / "lora").config["model"]["path"]).model
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    adapted = AutoModelForCausalLM.from_pretrained(tmp_path / "adapters")
    torch.testing.assert_close(logits(merged), logits(adapted), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(logits(merged), logits(start), atol=1e-5)
    assert "peft" in (tmp_path / "adapters" / "README.md").read_text()


@pytest.mark.parametrize(
    ("run", "options", "message"),
    [("whole", ["--merge"], "has no LoRA adapters to merge"), ("nowhere", [], "is not a run folder")],
)
def test_what_cannot_be_exported(
    command: Command, runs: Path, tmp_path: Path, run: str, options: list[str], message: str
) -> None:
    done = command("export", str(runs / run), str(tmp_path / "out"), *options, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "out").exists()
