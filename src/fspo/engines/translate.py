"""What any other trainer needs: refusals, the sampler's rule, model and prompts in its format.

Importing this module imports neither torch nor a trainer; tasks are imported on first use.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fspo

if TYPE_CHECKING:
    from fspo import TrainConfig

CLIP_NORM = 1.0
"""The largest gradient norm where none is given: these trainers have a fixed limit only, and this is their default."""

PROMPT = 1024  # longest prompt in tokens; longer ones are left out

LOCAL = (
    "rollout.staleness", "rollout.precision", "update.clip_ratio", "update.all_rows",
    "update.max_skipped", "log.bins", "log.cosine", "log.records",
)  # fmt: skip
"""Settings that only the local engine has."""


def refuse(config: TrainConfig, engine: str, *more: str) -> None:
    """Refuse what the engine does not have: settings of `LOCAL` and `more` that differ from their default."""
    if config.processes > 1:
        raise ValueError(f"processes = {config.processes} is not possible with --engine {engine}: use its own launcher")
    default = fspo.TrainConfig()
    for key in (*LOCAL, *more):
        section, _, name = key.rpartition(".")
        value = getattr(getattr(config, section), name)
        if value != getattr(getattr(default, section), name):
            raise ValueError(
                f"{key} = {value!r} is not possible with --engine {engine}: leave it out, and set what the trainer has "
                f"instead in engines.{engine}"
            )
    if config.rollout.prompts % config.update.minibatches:
        raise ValueError(
            f"update.minibatches = {config.update.minibatches} must divide rollout.prompts = "
            f"{config.rollout.prompts} with --engine {engine}: its minibatches are equal"
        )


def loggers(config: TrainConfig) -> list[str]:
    """The experiment trackers that the run logs to, by the names that TRL and verl have for them."""
    return [name for name in ("tensorboard", "wandb", "trackio", "mlflow") if getattr(config.log, name)]


# --- the sampler: the whole distribution, and a correction that is fair over lengths ----------------------------------

BAND: dict[str, Any] = {"c": 0.05}
"""The `mismatch` of an objective whose answers vLLM samples, unless another is given.

A weight of a whole answer that is held in a fixed range, as TRL's and verl's own rules do, is cut more often the longer
the answer is: its logarithm is a sum over tokens, with a standard deviation that grows as sqrt(L).
"""

RULE = (
    "vLLM samples: an answer is dropped where the sum of its log-probs differs from the trainer's by more than "
    f"± {BAND['c']} sqrt(L); objective.mismatch changes the rule, null switches it off"
)

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_p": (None, 1), "top_k": (None, 0, -1), "min_p": (None, 0), "typical_p": (None, 1), "top_h": (None,),
    "epsilon_cutoff": (None, 0), "eta_cutoff": (None, 0), "repetition_penalty": (None, 1),
    "presence_penalty": (None, 0), "frequency_penalty": (None, 0), "no_repeat_ngram_size": (None, 0),
    "length_penalty": (None, 1), "logit_bias": (None,), "bad_words": (None,), "bad_words_ids": (None,),
    "allowed_token_ids": (None,), "suppress_tokens": (None,), "min_tokens": (None, 0), "min_new_tokens": (None, 0),
    "min_length": (None, 0), "guidance_scale": (None, 1), "num_beams": (None, 1), "best_of": (None, 1),
    "do_sample": (None, True), "structured_outputs": (None,), "guided_decoding": (None,), "logits_processors": (None,),
    "vllm_structured_outputs_regex": (None,), "override_generation_config": (None,),
}  # fmt: skip
"""Settings that change what is sampled, and the values at which they do not."""


def refuse_cut(settings: Mapping[str, Any], where: str = "") -> None:
    """Refuse a setting that makes the sampler draw from another distribution than the one that training computes."""
    for name, value in settings.items():
        if name in NEUTRAL and not any(value == neutral for neutral in NEUTRAL[name]):
            raise ValueError(
                f"{where}{name} = {value!r} is refused in training: the answers would come from another distribution "
                "than the one whose log-probs the ratio is made of; leave it out"
            )


# --- model and prompts ------------------------------------------------------------------------------------------------


def start(
    config: TrainConfig, folder: Path, progress: Callable[[int, int, float], None] | None = None, *, fresh: bool = False
) -> str:
    """The folder or hub name of the model that training starts from, in Hugging Face's format; `progress` follows a
    warm start. `fresh` makes it again, since a failed start may have left a model."""
    from fspo.model.loading import load, save
    from fspo.training.warmup import warm_start

    path = start_path(config, folder)
    if fresh and path != config.model.path:
        shutil.rmtree(path, ignore_errors=True)
    if path != config.model.path and not Path(path).is_dir():
        source = (
            config.model.path if config.warmup is None else warm_start(config, fspo.tasks.get(config.task), progress)
        )
        with tempfile.TemporaryDirectory(dir=folder) as scratch:  # so that a killed process leaves no partial model
            save(load(source, seed=config.seed), Path(scratch) / "model")
            os.replace(Path(scratch) / "model", path)
    return path


def start_path(config: TrainConfig, folder: Path) -> str:
    """Where `start` puts the model, without making it: a tiny, GGUF or warmed-up model is saved in the run folder."""
    path = config.model.path
    made = config.warmup is not None or path.startswith("tiny:") or path.endswith(".gguf")
    return str(folder / "start") if made else path


def rows(spec: Any, split: str, count: int) -> list[dict[str, Any]]:
    """Prompts of a task, in the order in which the local engine asks them."""
    task = fspo.tasks.get(spec)
    size = task.size(split)
    if split != "train" and size is not None:
        count = min(count, size)
    examples = (task.example(split, i) for i in range(count))
    return [{"prompt": e.prompt, "task": e.task, "index": e.index} for e in examples]


# --- settings to paste ------------------------------------------------------------------------------------------------


def settings_blocks(objective: Mapping[str, Any], updates: int) -> dict[str, str]:
    """An objective, its name and numbers, as settings to paste for each trainer.

    `updates` is the number of optimiser steps per rollout, which verl has to be given.
    """
    name = objective["name"]
    numbers = {key: f"{value:g}" for key, value in objective.items() if key != "name"}
    ours = [f"objective.name={name}", *(f"objective.{key}={value}" for key, value in numbers.items())]
    arguments = ",\n".join(f'        "{key}": {value}' for key, value in numbers.items())
    loss = "actor_rollout_ref.actor.policy_loss"
    verl = [f"{loss}._target_=fspo.engines.verl.PolicyLoss", f"{loss}.loss_mode=fspo", f"+{loss}.updates={updates}"]
    verl += [f"+{loss}.objective.name={name}", *(f"+{loss}.objective.{key}={value}" for key, value in numbers.items())]
    return {
        "fspo": " \\\n".join(ours),
        "TRL": f'FSPOConfig(\n    objective="{name}",\n    objective_args={{\n{arguments}\n    }},\n)',
        "verl (updates: optimiser steps per rollout)": " \\\n".join(verl),
    }


def mismatch_blocks(mu: float, c: float) -> dict[str, str]:
    """The sqrt(L) rule as settings of each trainer that samples with another engine."""
    loss = "actor_rollout_ref.actor.policy_loss.objective.mismatch"
    arguments = f'{{"mismatch": {{"c": {c:g}, "drift": {mu:g}}}}}'
    return {
        "TRL": f'FSPOConfig(\n    objective="fspo",\n    objective_args={arguments},\n)',
        "verl, beside the settings of fspo": f"+{loss}.c={c:g} \\\n+{loss}.drift={mu:g}",
    }
