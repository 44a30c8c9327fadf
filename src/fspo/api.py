"""Train, evaluate and sample from Python: what the command line calls, with the same objects.

Nothing heavy is imported before it is needed, so that these names can be offered by `import fspo`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from fspo.config import TrainConfig, code_named_in, parse, read, require_same_run
from fspo.runs import Observer, Run, RunWarning, require_engine
from fspo.runs import load as load_run

if TYPE_CHECKING:
    from fspo.model.loading import Policy
    from fspo.tasks import Task
    from fspo.training.evaluate import Answer, Evaluation

__all__ = ["Conversation", "Engine", "evaluate", "load_run", "sample", "train"]

Engine = Literal["local", "trl", "verl"]
_CALLS = [name for name, value in vars(Observer).items() if callable(value) and not name.startswith("_")]


def train(
    config: TrainConfig | Mapping[str, Any] | None,
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
        saved = _saved(folder)
        config = saved if config is None else config
        require_same_run(saved, config, force=force)
        require_engine(folder, engine)
    if config is None:
        raise ValueError("there is no configuration to run: give a TrainConfig, or resume=True for a run's own")
    _require_torch()
    if lacking := [name for name in _CALLS if observer is not None and not hasattr(observer, name)]:
        raise ValueError(f"the observer {observer!r} has no {lacking[0]}(): derive its class from fspo.Observer")
    module = import_module("fspo.training.loop" if engine == "local" else f"fspo.engines.{engine}.run")
    module.train(config, folder, resume=resume, observer=observer)
    return load_run(folder)


def _require_torch() -> None:
    try:
        import_module("torch")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "training, evaluation and sampling need torch, which is not installed: pip install 'fspo[train]'",
            name=error.name,
        ) from None


def _saved(folder: Path) -> TrainConfig:
    if not (folder / "config.yaml").is_file():
        raise ValueError(f"there is no run to resume in {folder}: it has no config.yaml")
    return read(folder / "config.yaml", [])


def evaluate(
    model: str | Path,
    settings: Sequence[str] = (),
    *,
    prompts: int | None = None,
    samples: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    split: str | None = None,
    trust: bool = False,
) -> Evaluation:
    """Accuracy of a model on a task, with intervals, by length and by difficulty.

    `model` is a run's folder, a checkpoint, a model folder or hub name, a .gguf file or a `tiny:` preset. A run brings
    its task and its settings of evaluation; `settings` change them as on the command line, and what is given as an
    argument goes before both. `trust` allows a run's configuration to import the Python code that it names.

    >>> import fspo
    >>> found = fspo.evaluate("tiny:1x32", ["task={name: sort, n_max: 5}"], prompts=8)
    >>> found.prompts, found.accuracy <= found.interval[1]
    (8, True)
    """
    loaded = _Loaded.of(model, settings, trust)
    return loaded.evaluate(prompts, samples, temperature, top_p, top_k, split)


def sample(
    model: str | Path,
    prompts: int | str | Sequence[str] = 5,
    settings: Sequence[str] = (),
    *,
    samples: int = 1,
    temperature: float = 1.0,
    split: str | None = None,
    trust: bool = False,
) -> list[Answer]:
    """What a model answers: to the first `prompts` held-out prompts of a task, with rewards, or to texts of one's own.

    `model`, `settings` and `trust` are those of `evaluate`; answers to the same prompt are neighbours.

    >>> import fspo
    >>> [answer.reward for answer in fspo.sample("tiny:1x32", ["sort:dcba="], temperature=0)]  # nothing scores a text
    [None]
    >>> len(fspo.sample("tiny:1x32", 2, ["task={name: sort, n_max: 5}"], samples=3))
    6
    """
    loaded = _Loaded.of(model, settings, trust)
    if isinstance(prompts, int):
        return loaded.evaluate(prompts, samples, temperature, None, None, split).answers
    prompts = [prompts] if isinstance(prompts, str) else prompts
    return loaded.answers(prompts, loaded.encoded(prompts), samples, temperature, loaded.config.seed)


@dataclass(frozen=True)
class _Loaded:
    """A model with the configuration that it is asked under."""

    policy: Policy
    config: TrainConfig
    task: Task

    @classmethod
    def of(cls, model: str | Path, settings: Sequence[str], trust: bool) -> _Loaded:
        """A run's folder brings its configuration and its last checkpoint."""
        _require_torch()
        from fspo import tasks
        from fspo.model.loading import load, set_threads

        folder = Path(model)
        run = _run_of(folder)
        if run is not None and not trust and (code := code_named_in(parse(run / "config.yaml"))):
            raise ValueError(
                f"the run in {run} names Python code to import ({', '.join(code)}): add --trust if you trust it"
            )
        config = read(None if run is None else run / "config.yaml", list(settings))
        source = str(model if run is None else weights_of(run) if run == folder else _whole(folder))
        policy = load(source, dtype=config.model.dtype, device=config.model.device)
        set_threads(policy, config.model.threads)
        asked = any(setting.partition("=")[0].split(".")[0] == "task" for setting in settings)
        return cls(policy, config, tasks.get(config.task if asked else config.eval_task))

    def evaluate(
        self,
        prompts: int | None,
        samples: int | None,
        temperature: float | None,
        top_p: float | None,
        top_k: int | None,
        split: str | None,
    ) -> Evaluation:
        from fspo.tasks.scoring import Scorer
        from fspo.training.evaluate import evaluate as measured

        usual = self.config.eval
        with Scorer(self.task, **self.config.scoring.model_dump()) as scorer:
            return measured(
                self.policy, self.task, scorer, top_p=top_p, top_k=top_k, seed=self.config.seed,
                split=usual.split if split is None else split,
                prompts=usual.prompts if prompts is None else prompts,
                samples=usual.samples if samples is None else samples,
                temperature=usual.temperature if temperature is None else temperature,
                max_new_tokens=self.config.rollout.max_new_tokens, chat=self.config.model.chat,
            )  # fmt: skip

    def encoded(self, prompts: Sequence[str]) -> list[list[int]]:
        from fspo.rollout.generate import encode
        from fspo.tasks import Example

        examples = [Example(prompt=text, answer=None, task="", index=i) for i, text in enumerate(prompts)]
        return encode(self.policy, examples, self.config.model.chat)

    def answers(
        self, prompts: Sequence[str], ids: list[list[int]], samples: int, temperature: float, seed: int
    ) -> list[Answer]:
        """Answers to texts that no task knows, given as token ids too."""
        from fspo.rollout.generate import decode, generate
        from fspo.training.evaluate import Answer

        rollout = generate(
            self.policy, ids, samples, max_new_tokens=self.config.rollout.max_new_tokens, temperature=temperature,
            seed=seed, evaluation=True,
        )  # fmt: skip
        texts = decode(self.policy, rollout.completions)
        return [
            Answer(prompts[g], text, None, len(tokens), not done, 0.0, "")
            for g, text, tokens, done in zip(rollout.group, texts, rollout.completions, rollout.finished, strict=True)
        ]


class Conversation:
    """Turns with a model. With a chat template it sees the turns before; without one every text is a prompt of its own.

    `model`, `settings` and `trust` are those of `evaluate`.
    """

    def __init__(
        self, model: str | Path, settings: Sequence[str] = (), *, temperature: float = 1.0, trust: bool = False
    ) -> None:
        self._loaded = _Loaded.of(model, settings, trust)
        self._temperature = temperature
        self._turns: list[dict[str, str]] = []
        self._said = 0

    def say(self, text: str) -> Answer:
        """The model's answer to the next turn."""
        from fspo.rollout.generate import encode_turns

        loaded, turns = self._loaded, [*self._turns, {"role": "user", "content": text}]
        chat = loaded.config.model.chat
        if chat is not False and loaded.policy.tokenizer.chat_template is not None:
            ids = [encode_turns(loaded.policy, turns)]
        else:
            ids = loaded.encoded([text])
        (answer,) = loaded.answers([text], ids, 1, self._temperature, loaded.config.seed + self._said)
        self._turns = [*turns, {"role": "assistant", "content": answer.completion}]
        self._said += 1
        return answer


def _run_of(folder: Path) -> Path | None:
    """The run that a folder is, or that it is a checkpoint or TRL's last model of."""
    if (folder / "config.yaml").is_file() or not folder.is_dir():
        return folder if folder.is_dir() else None
    parent = folder.absolute().parent
    above = parent.parent if parent.name == "checkpoints" else parent if folder.name == "model" else None
    return above if above is not None and (above / "config.yaml").is_file() else None


def _whole(folder: Path) -> Path:
    """A checkpoint, or TRL's model; one that is not what was written is refused."""
    from fspo.training import checkpoint

    if folder.name.startswith(checkpoint.PREFIX) and (problem := checkpoint.damage(folder)):
        raise ValueError(f"the checkpoint {folder} is damaged ({problem}): give another, or the folder of the run")
    return folder


def weights_of(run: Path) -> Path:
    """The folder of a run's last weights: its newest whole checkpoint, or what TRL saved, at the end or last.

    A damaged checkpoint is passed over with a warning.
    """
    from fspo.training import checkpoint

    def warn(text: str) -> None:
        warnings.warn(text, RunWarning, stacklevel=2)

    saved = [path for path in (run / "checkpoints").glob("checkpoint-*") if path.name[11:].isdecimal()]
    of_trl = [*sorted(saved, key=lambda path: int(path.name[11:])), run / "model"]
    last = checkpoint.latest(run / "checkpoints", warn) or next((p for p in reversed(of_trl) if p.is_dir()), None)
    if last is None:
        raise ValueError(f"the run in {run} has no checkpoint yet: train it further, or give a model's folder")
    return last
