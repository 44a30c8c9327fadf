"""A run's final weights as a model folder that any Hugging Face tool loads, with a model card of the run's figures."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from fspo.api import weights_of
from fspo.files import replace_file
from fspo.runs import Evaluated, Run, load, refuse_script
from fspo.text import percent, short

__all__ = ["card", "export", "push"]

# What a checkpoint holds for training only.
LEFT_OUT = (
    "optimizer.*", "optimizer-*", "scheduler.*", "master.*", "state.json", "checksums.json", "rng_state*",
    "trainer_state.json", "training_args.bin", "README.md",
)  # fmt: skip


def export(run: str | Path, out: str | Path, *, merge: bool = False) -> Path:
    """Write a run's last weights, its tokenizer and a model card to a new folder.

    Of a run with LoRA only the adapters are written, as peft reads them; with `merge` they are added to the weights of
    the model that they were trained on, and the whole model is written.
    """
    run, out = Path(run), Path(out)
    refuse_script(run)
    if not (run / "config.yaml").is_file():
        raise ValueError(f"{run} is not a run folder: give a folder that `fspo train --out` wrote")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} exists already: choose a new folder")
    weights = weights_of(run)
    adapters = (weights / "adapter_config.json").is_file()
    if merge and not adapters:
        raise ValueError(f"the run in {run} has no LoRA adapters to merge: leave --merge out")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:  # so that a failure leaves no half of a model
        made = Path(scratch) / "model"
        left_out = (*LEFT_OUT, "adapter_*") if merge else LEFT_OUT
        try:
            shutil.copytree(weights, made, ignore=_ignored(left_out))
        except shutil.Error as error:  # a list of what went wrong
            raise ValueError(f"the model cannot be written to {out}: {error.args[0][0][2]}") from None
        if merge:
            _merged(weights).save_pretrained(made)
        replace_file(made / "README.md", card(load(run), adapters=adapters and not merge))
        if out.is_dir():
            out.rmdir()
        os.replace(made, out)
    return out


def _ignored(patterns: Sequence[str]) -> Callable[[str, list[str]], set[str]]:
    """What is not copied: these files, and links, which in a folder from elsewhere may lead anywhere."""
    by_name = shutil.ignore_patterns(*patterns)
    return lambda folder, names: {*by_name(folder, names), *(n for n in names if (Path(folder) / n).is_symlink())}


def _merged(weights: Path) -> Any:
    from peft import AutoPeftModelForCausalLM

    return AutoPeftModelForCausalLM.from_pretrained(weights, trust_remote_code=False).merge_and_unload()


def card(run: Run, *, adapters: bool = False) -> str:
    """The README.md of an exported model: what it was trained on and how, its held-out accuracy, its configuration."""
    model = run.config.get("model")
    base = str(model.get("path", "")) if isinstance(model, dict) else str(model or "")
    is_hub_name = base.count("/") == 1 and not Path(base).exists() and not base.endswith(".gguf")
    facts: dict[str, Any] = {
        "library_name": "peft" if adapters else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["fspo", "reinforcement-learning", str(run.objective.get("name", ""))],
    }
    if is_hub_name:
        facts["base_model"] = base
    head = yaml.safe_dump(facts, sort_keys=False)
    settings = yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True, width=100)
    rows = "\n".join(f"| {name} | {value} |" for name, value in _figures(run, base))
    versions = ", ".join(f"{name} {version}" for name, version in run.facts.versions.items())
    load_with = "peft import AutoPeftModelForCausalLM" if adapters else "transformers import AutoModelForCausalLM"
    cls = load_with.split()[-1]
    return f"""---
{head}---

# {run.name}

A language model trained by reinforcement learning from verifiable rewards with fspo.

| | |
|---|---|
{rows}

Accuracy is over held-out prompts, with its 95 % interval.

```python
from {load_with}
from transformers import AutoTokenizer

model, tokenizer = {cls}.from_pretrained(FOLDER), AutoTokenizer.from_pretrained(FOLDER)
```

## Configuration

Engine: {run.facts.engine}. Versions: {versions or "not recorded"}.

```yaml
{settings}```
"""


def _figures(run: Run, base: str) -> list[tuple[str, str]]:
    split = run.evaluations[-1].split if run.evaluations else ""
    evaluations = [line for line in run.evaluations if line.split == split]
    last = run.metrics[-1] if run.metrics else None
    rows = [("Base model", f"`{base}`"), ("Task", f"`{_short(run.config.get('task'))}`")]
    rows.append(("Objective", f"`{_short(run.config.get('objective'))}`"))
    if evaluations:
        rows.append(("Held-out accuracy before training", _accuracy(evaluations[0])))
        rows.append(("Held-out accuracy", _accuracy(evaluations[-1])))
    if last is not None:
        rows.append(("Steps", f"{last.step:,}"))
        rows.append(("Mean reward, last step", short(last.reward)))
        rows.append(("Mean length, last step", f"{short(last.length)} tokens"))
        rows.append(("Clip rate, last step", percent(last.clip_rate)))
        rows.append(("Length Reweighting Error, last step", short(last.lre)))
    return rows


def _accuracy(line: Evaluated) -> str:
    extent = f" ({percent(line.interval[0])} to {percent(line.interval[1])})" if line.interval else ""
    answers = f"{line.prompts:,} prompts" if line.prompts else "held-out prompts"
    return f"{percent(line.accuracy)}{extent}, {answers}, step {line.step}"


def _short(value: Any) -> str:
    if isinstance(value, dict):
        rest = ", ".join(f"{key}={item}" for key, item in value.items() if key != "name")
        return f"{value.get('name')}" + (f" ({rest})" if rest else "")
    return str(value)


def push(folder: str | Path, name: str, *, private: bool = True) -> str:
    """Upload an exported model to the Hugging Face hub as `name`, and return its address."""
    import httpx
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        url = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder)
    except (OSError, ValueError, httpx.HTTPError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"{name} could not be uploaded to the hub ({reason}): check the name and `hf auth login`; the model is in "
            f"{folder}"
        ) from None
    return str(url)
