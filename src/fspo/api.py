"""Train, evaluate and export from Python: what the command line calls, with the same objects.

Nothing heavy is imported before it is needed, so that these names can be offered by `import fspo`.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from fspo import advantages
from fspo.config import TrainConfig, parse, read, require_same_run
from fspo.engines.verl import last_step
from fspo.runs import Observer, Run, RunWarning
from fspo.runs import load as load_run
from fspo.runs.folder import require_engine

if TYPE_CHECKING:
    from fspo.training.evaluate import Evaluation

__all__ = ["Engine", "evaluate", "export", "load_run", "train"]

Config = TrainConfig | Mapping[str, Any] | None
Engine = Literal["local", "trl", "verl"]


def train(
    config: Config,
    folder: str | Path,
    *,
    resume: bool = False,
    force: bool = False,
    engine: Engine = "local",
    observer: Observer | None = None,
) -> Run:
    """Run a configuration in a folder, and return what the folder then holds: metrics, evaluations, samples.

    `config` is a `TrainConfig` or a dictionary of its settings. With `resume` the run in the folder goes on from its
    last checkpoint; `config` None is then its own configuration, and one that would make it another run is refused
    unless `force` is given. `observer` is called after every step and evaluation (see `fspo.Observer`). A signal such
    as Ctrl-C lets the step finish and be saved, and raises `fspo.training.stopping.RunInterruptedError`.

    >>> import fspo
    >>> tiny = {"model": {"path": "tiny:1x32"}, "warmup": None, "task": {"name": "sort", "n_max": 5}, "steps": 2}
    >>> small = {"rollout": {"prompts": 4, "group": 4, "max_new_tokens": 6}, "eval": {"prompts": 8}}
    >>> run = fspo.train(tiny | small, "runs/first")
    >>> [line.step for line in run.metrics], run.evaluations[-1].prompts
    ([1, 2], 8)
    >>> run = fspo.train(None, "runs/first", resume=True)  # nothing is left to do: it has all its steps
    """
    folder = Path(folder)
    if engine not in get_args(Engine):
        raise ValueError(f"there is no engine {engine!r}: choose one of {', '.join(get_args(Engine))}")
    if config is not None and not isinstance(config, TrainConfig):
        config = TrainConfig(**config)
    if resume:
        own = saved(folder)
        config = own if config is None else config
        require_same_run(own, config, force=force)
        require_engine(folder, engine)
    if config is None:
        raise ValueError("there is no configuration to run: give a TrainConfig, or resume=True for a run's own")
    name, used = config.objective["name"], config.advantage
    chosen = "advantage" in config.model_fields_set or name not in advantages.names()
    if not chosen and name != used:
        note = f"the objective {name} is trained with the default advantage {used}; advantage={name} is another"
        if observer is None:
            warnings.warn(note, RunWarning, stacklevel=2)
        else:
            observer.note(note)
    module = import_module("fspo.training.loop" if engine == "local" else f"fspo.engines.{engine}.run")
    module.train(config, folder, resume=resume, observer=observer)
    return load_run(folder)


def saved(folder: Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """The configuration of the run in a folder, with these settings changed."""
    if not (folder / "config.yaml").is_file():
        raise ValueError(f"there is no run to resume in {folder}: it has no config.yaml")
    return read(folder / "config.yaml", overrides)


def evaluate(
    model: str | Path,
    config: Config = None,
    *,
    prompts: int | None = None,
    samples: int | None = None,
    temperature: float | None = None,
    split: str | None = None,
) -> Evaluation:
    """Accuracy of a model on a task, with intervals, by length and by difficulty; and its `answers`, with rewards.

    `model` is a run's folder, a checkpoint, a model folder or hub name, a .gguf file or a `tiny:` preset. A run brings
    its task and its settings of evaluation: a dictionary `config` changes them, a `TrainConfig` replaces them, and
    keyword arguments take precedence. The Python code that a run's configuration names is imported.

    >>> import fspo
    >>> evaluation = fspo.evaluate("tiny:1x32", {"task": {"name": "sort", "n_max": 5}}, prompts=8)
    >>> evaluation.prompts, evaluation.accuracy <= evaluation.interval[1]
    (8, True)
    """
    from fspo import tasks
    from fspo.model.loading import load, set_threads
    from fspo.tasks.scoring import Scorer
    from fspo.training.evaluate import evaluate as measured

    folder = Path(model)
    run = _run_of(folder)
    changed_task = False
    if not isinstance(config, TrainConfig):
        changed_task = "task" in (config or {})
        config = read(None if run is None else run / "config.yaml", config or {})
    source = str(model if run is None else weights_of(run) if run == folder else _whole(folder))
    policy = load(source, device=config.model.device)
    set_threads(policy, config.model.threads)
    task = tasks.get(config.task if changed_task else config.eval_task)
    given = {"prompts": prompts, "samples": samples, "temperature": temperature, "split": split}
    asked = config.evaluation | {name: value for name, value in given.items() if value is not None}
    with Scorer(task, **config.scoring.model_dump()) as scorer:
        return measured(policy, task, scorer, **asked)


def _run_of(folder: Path) -> Path | None:
    """Run folder that `folder` is, or that its checkpoint or TRL model belongs to; None otherwise."""
    parent = folder.absolute().parent
    above = parent.parent if parent.name == "checkpoints" else parent if folder.name == "model" else folder
    run = next((path for path in (folder, folder / "fspo", above) if (path / "config.yaml").is_file()), None)
    if not folder.is_dir() or run is None:
        return None
    if "trl" in parse(run / "config.yaml"):  # the script was given its model and its rewards as objects
        raise ValueError(f"{run} was written by a TRL script: give a checkpoint that it saved, and a task")
    return run


def _whole(folder: Path) -> Path:
    """The folder; a checkpoint whose checksums differ is refused."""
    from fspo.training import checkpoint

    if folder.name.startswith(checkpoint.PREFIX) and (problem := checkpoint.damage(folder)):
        raise ValueError(f"the checkpoint {folder} is damaged ({problem}): give another, or the folder of the run")
    return folder


def weights_of(run: Path) -> Path:
    """The folder of a run's last weights: the newest undamaged checkpoint, else TRL's final model or last checkpoint.

    A damaged checkpoint is passed over with a warning. verl's are in shards, which verl itself has to merge.
    """
    from fspo.training import checkpoint

    if step := last_step(run / "checkpoints"):
        return _merged(run / "checkpoints" / f"global_step_{step}")

    saved = [path for path in (run / "checkpoints").glob("checkpoint-*") if path.name[11:].isdecimal()]
    of_trl = [*sorted(saved, key=lambda path: int(path.name[11:])), run / "model"]
    whole = checkpoint.latest(run / "checkpoints", lambda text: warnings.warn(text, RunWarning, stacklevel=2))
    last = whole or next((path for path in reversed(of_trl) if path.is_dir()), None)
    if last is None:
        raise ValueError(f"the run in {run} has no checkpoint yet: train it further, or give a model's folder")
    return last


def _merged(checkpoint: Path) -> Path:
    """What verl's own tool made of a checkpoint of verl: a model, or LoRA adapters."""
    shards, merged = checkpoint / "actor", checkpoint / "merged"
    if not (merged / "config.json").is_file():
        backend = "megatron" if (shards / "dist_ckpt").is_dir() else "fsdp"
        raise ValueError(
            f"the weights in {shards} are in shards of verl: merge them where verl is installed, and repeat this: "
            f"python -m verl.model_merger merge --backend {backend} --local_dir {shards} --target_dir {merged}"
        )
    return merged / "lora_adapter" if (merged / "lora_adapter").is_dir() else merged


# --- export -----------------------------------------------------------------------------------------------------

# What a checkpoint holds for training only.
LEFT_OUT = (
    "optimizer.*", "optimizer-*", "scheduler.*", "state.json", "checksums.json", "rng_state*",
    "trainer_state.json", "training_args.bin", "README.md",
)  # fmt: skip


def export(run: str | Path, out: str | Path) -> Path:
    """Copy a run's last weights and its tokenizer to a new folder, without what only training needs.

    Of a run with LoRA these are the adapters, as peft reads them; peft's `merge_and_unload` adds them to their model.

    >>> import fspo
    >>> tiny = {"model": {"path": "tiny:1x32"}, "warmup": None, "task": {"name": "sort", "n_max": 5}, "steps": 1}
    >>> small = {"rollout": {"prompts": 4, "group": 4, "max_new_tokens": 6}, "eval": {"prompts": 8}}
    >>> run = fspo.train(tiny | small, "runs/first")
    >>> [path.name for path in fspo.export("runs/first", "models/first").glob("*.safetensors")]
    ['model.safetensors']
    """
    run, out = Path(run), Path(out)
    if _run_of(run) != run:
        raise ValueError(f"{run} is not a run folder: give a folder that `fspo train --out` wrote")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} exists already: choose a new folder")
    weights = weights_of(run)
    if weights.name == "lora_adapter":
        raise ValueError(f"{weights} holds adapters as peft reads them, and {weights.parent} their model: copy both")
    shutil.copytree(weights, out, ignore=shutil.ignore_patterns(*LEFT_OUT), dirs_exist_ok=True)
    return out
