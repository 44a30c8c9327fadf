"""`fspo export`: weights that transformers and peft load."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
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


def test_an_exported_model_is_the_last_checkpoint(command: Command, runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "models" / "whole"
    command("export", str(runs / "whole"), str(out))
    last = max((runs / "whole" / "checkpoints").iterdir())
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(out)), logits(load(str(last)).model))
    assert load(str(out)).tokenizer is not None
    assert not [path for path in out.iterdir() if path.name.startswith(("optimizer", "state", "checksums", "master"))]
    assert command("export", str(runs / "whole"), str(out), check=False).returncode == 2


def test_adapters_are_copied_as_they_are(command: Command, runs: Path, tmp_path: Path) -> None:
    command("export", str(runs / "lora"), str(tmp_path / "adapters"))
    config = json.loads((tmp_path / "adapters" / "adapter_config.json").read_text())
    assert config["r"] == 2
    adapted = AutoModelForCausalLM.from_pretrained(tmp_path / "adapters")
    assert torch.equal(logits(adapted), logits(AutoModelForCausalLM.from_pretrained(runs / "lora" / "model")))
    start = load(load_run(runs / "lora").config["model"]["path"]).model
    assert not torch.allclose(logits(adapted), logits(start), atol=1e-5)


def test_what_cannot_be_exported(command: Command, runs: Path, tmp_path: Path) -> None:
    done = command("export", str(runs / "nowhere"), str(tmp_path / "out"), check=False)
    assert done.returncode == 2
    assert "is not a run folder" in done.stderr
    assert not (tmp_path / "out").exists()
