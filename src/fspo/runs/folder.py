"""A run folder: its lock, the writer that every engine uses, and the reader that every page uses.

Reading needs nothing but the folder: what is missing, torn or of another shape is named in `notes`, and the rest is
read. Answers are kept from some steps only, and rows are read separately, by `fspo.runs.rows`.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from fspo.files import BadLine, json_lines, json_text, replace_file, replacing, yaml_value
from fspo.runs import rows as row_files
from fspo.runs.schema import FORMAT, LINES, Cosine, Evaluated, Facts, Line, Metrics, Sample, Timing, UpdateState
from fspo.text import slug

# What makes a folder that of a run.
PARTS = ("config.yaml", "run.json", "metrics.jsonl", "evaluations.jsonl", "samples.jsonl", "records")

SAMPLE_STEPS = 40  # at most this many steps' answers are kept, evenly spread
OWN_LOOP = "own loop"  # the engine of a run that a Recorder wrote
SAMPLES_PER_STEP = 4
LONGEST_TEXT = 2000  # characters of a prompt or an answer that are kept

L = TypeVar("L", bound=Line)


class RunWarning(UserWarning):
    """Something about a run's folder that the user should know."""


def is_run(folder: Path) -> bool:
    """Whether the folder has any file of a run."""
    return any((folder / name).exists() for name in PARTS)


def run_folder(folder: Path) -> Path:
    """The folder of a run: this one, or its `fspo/`, which FSPOTrainer writes into the output folder of TRL."""
    inside = folder / "fspo"
    return inside if not is_run(folder) and is_run(inside) else folder


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder against other processes; the lock ends with the block or the process."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another process is writing to {folder}: wait for it to end, or choose another folder"
            ) from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def claimed(folder: Path, *, resume: bool) -> Iterator[None]:
    """A folder for a run: not one that holds a run already, unless it is resumed."""
    if not resume and (part := next((name for name in PARTS if (folder / name).exists()), None)):
        way = "add --resume to go on with it, or choose" if part == "config.yaml" else "choose"
        raise ValueError(f"{folder} already holds a run (it has {part}): {way} another folder")
    with locked(folder):
        yield


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What a run's folder holds, but for its rows."""

    folder: Path
    label: str = ""  # the name to show, where the folder's own is not enough
    facts: Facts = field(default_factory=Facts)
    config: dict[str, Any] = field(default_factory=dict)
    metrics: list[Metrics] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)
    evaluations: list[Evaluated] = field(default_factory=list)
    cosine: list[Cosine] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)  # of steps spread over the run, first and last included
    notes: list[str] = field(default_factory=list)  # what is missing or could not be read

    @property
    def name(self) -> str:
        """The label, the name that TRL has for the run, or the folder's."""
        trl = self.config.get("trl")
        named = (trl.get("run_name") or Path(str(trl.get("output_dir", ""))).name) if isinstance(trl, dict) else ""
        return self.label or str(named) or self.folder.resolve().name

    @property
    def objective(self) -> dict[str, Any]:
        """Name and parameters, as the configuration has them."""
        value = self.config.get("objective")
        return value if isinstance(value, dict) else {"name": value} if isinstance(value, str) else {}


def load_all(folders: Sequence[str | Path]) -> list[Run]:
    """Several runs, each with a name of its own."""
    runs = [load(folder) for folder in folders]
    if len({slug(run.name) for run in runs}) == len(runs):
        return runs
    return [replace(run, label=f"{k}: {run.name}") for k, run in enumerate(runs, 1)]


def load(folder: str | Path) -> Run:
    """Read a run folder: configuration, metrics, evaluations and samples, and notes on what is missing.

    >>> import fspo
    >>> small = {"prompts": 4, "group": 4, "max_new_tokens": 6}
    >>> config = {"model": {"path": "tiny:1x32"}, "warmup": None, "steps": 1, "rollout": small, "eval": {"prompts": 8}}
    >>> run = fspo.train(config | {"task": {"name": "sort", "n_max": 5}}, "runs/read")
    >>> run = fspo.load_run("runs/read")
    >>> run.objective, run.metrics[-1].step, run.notes
    ({'name': 'fspo_gate'}, 1, [])
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder: give the folder that `fspo train` wrote")
    notes: list[str] = []
    facts = read_facts(folder / "run.json", notes)
    local = facts.engine == "local"  # other engines may write no timings, evaluations or samples
    return Run(
        folder=folder,
        facts=facts,
        config=read_config(folder / "config.yaml", notes),
        metrics=_ordered(_noted(folder, Metrics, notes)),
        timings=_ordered(_noted(folder, Timing, notes, optional=not local)),
        evaluations=_ordered(_noted(folder, Evaluated, notes, optional=not local)),
        cosine=_ordered(_noted(folder, Cosine, notes, optional=True)),
        samples=_spread(_noted(folder, Sample, notes, optional=not local)),
        notes=notes,
    )


def read_lines(folder: Path, kind: type[L]) -> list[L]:
    """All lines of a file, in the order in which they were written; bad ones are left out."""
    return list(_noted(folder, kind, []))


def last_state(folder: Path, step: int) -> UpdateState | None:
    """What an engine knew about its updates after a step; of several lines the last one counts."""
    states = [state for state in read_lines(folder, UpdateState) if state.step == step]
    return states[-1] if states else None


def _noted(folder: Path, kind: type[L], notes: list[str], *, optional: bool = False) -> Iterator[L]:
    """The lines of a file; what is wrong with it is added to `notes`, that it is missing only if it should be there."""
    path = folder / f"{kind.file}.jsonl"
    if not path.is_file():
        if not optional:
            notes.append(f"{path.name} is missing: no {kind.what}.")
        return
    good = bad = 0
    for row in json_lines(path):
        try:
            line = None if isinstance(row, BadLine) else kind.model_validate(row)
        except ValidationError:
            line = None
        if line is None:
            bad += 1
        else:
            good += 1
            yield line
    if bad:
        notes.append(f"{path.name}: {bad} unreadable line{'s' * (bad > 1)} left out.")
    elif not good:
        notes.append(f"{path.name} is empty: no {kind.what} yet.")


def _ordered(lines: Iterator[L]) -> list[L]:
    """In order, one line per step (and split): after a resume the later line counts."""
    table = {(line.step, getattr(line, "split", "")): line for line in lines}
    return [table[key] for key in sorted(table)]


def _spread(lines: Iterator[Sample]) -> list[Sample]:
    """Some answers of steps spread over the run, the first and the last included; long texts are cut."""
    by_step: dict[int, list[Sample]] = {}
    for line in lines:
        kept = by_step.setdefault(line.step, [])
        if len(kept) < SAMPLES_PER_STEP:
            kept.append(line.model_copy(update={"prompt": _cut(line.prompt), "completion": _cut(line.completion)}))
    steps = sorted(by_step)
    count = min(SAMPLE_STEPS, len(steps))
    shown = {steps[round(k * (len(steps) - 1) / max(1, count - 1))] for k in range(count)}
    return [line for step in sorted(shown) for line in by_step[step]]


def _cut(text: str) -> str:
    left = len(text) - LONGEST_TEXT
    return text[:LONGEST_TEXT] + (f"\n… {left:,} more characters" if left > 0 else "")


def read_facts(path: Path, notes: list[str]) -> Facts:
    """run.json; what is wrong with it is added to `notes`."""
    if not path.is_file():
        return Facts()
    try:
        facts = Facts.model_validate_json(path.read_bytes())
    except (ValidationError, OSError):
        notes.append("run.json cannot be read: which version wrote this folder is not known.")
        return Facts()
    if facts.format > FORMAT:
        notes.append(f"run.json says format {facts.format}, and this version knows up to {FORMAT}: update fspo.")
    return facts


def require_engine(folder: Path, engine: str) -> None:
    """Refuse to go on with a run by another engine than its own, which would not find its checkpoints."""
    if (folder / "run.json").is_file() and (own := read_facts(folder / "run.json", []).engine) != engine:
        add = f"add --engine {own}" if own != "local" else "leave --engine out"
        if own == OWN_LOOP:
            add = "go on in that loop, with start= of its recorder"
        raise ValueError(f"the run in {folder} is of the engine {own}, and {engine} cannot go on with it: {add}")


def read_config(path: Path, notes: list[str]) -> dict[str, Any]:
    """config.yaml as a mapping; what is wrong with it is added to `notes`."""
    if not path.is_file():
        notes.append("config.yaml is missing: the configuration is not shown.")
        return {}
    try:
        config = yaml_value(path.read_text(encoding="utf-8", errors="replace"))
    except ValueError as error:
        notes.append(f"config.yaml cannot be read: {error}.")
        return {}
    if not isinstance(config, dict):
        notes.append("config.yaml is not a mapping: the configuration is not shown.")
        return {}
    return config


# --- writing ----------------------------------------------------------------------------------------------------------


class RunWriter:
    """The files of a run's folder. Nothing is written that is not in the schema."""

    def __init__(self, folder: str | Path, *, keep_rows: bool = True) -> None:
        self.folder = Path(folder)
        self.keep_rows = keep_rows

    def describe(self, config: Mapping[str, Any], *, engine: str, threads: int | None = None) -> None:
        """Write config.yaml and run.json."""
        text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
        facts = Facts(engine=engine, versions=_versions(engine), python=platform.python_version(), threads=threads)
        replace_file(self.folder / "config.yaml", text)
        replace_file(self.folder / "run.json", json_text(facts.model_dump(exclude_none=True), indent=1))

    def append(self, line: Line) -> None:
        """One more line of its file, given to the system when this returns."""
        text = json_text(line.model_dump(exclude_none=True))
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.path(type(line)), "a", encoding="utf-8") as file:
            file.write(text + "\n")

    def rows(self, step: int, columns: dict[str, list[Any]]) -> None:
        """The rows of a step, see `fspo.runs.rows`."""
        if self.keep_rows and columns["step"]:
            with replacing(row_files.path_of(self.folder, step)) as scratch:
                row_files.table(columns).write_parquet(scratch)

    def cut(self, step: int) -> None:
        """Drop what was written after `step`, so that a resumed run writes it again."""
        for kind in LINES:
            path = self.path(kind)
            if path.is_file():
                self._replace(path, [row for row in _readable(path) if row["step"] <= step])
        folder = row_files.folder_of(self.folder)
        for scratch in folder.glob("*.writing"):
            scratch.unlink()
        for path in row_files.files(self.folder):
            if int(path.stem.removeprefix("step-")) > step:
                path.unlink()

    def merge(self, kind: type[Line], lines: list[Line]) -> None:
        """Merge lines into a file, in the order of their steps; a line replaces that of the same step (and split)."""
        path = self.path(kind)
        known = _readable(path) if path.is_file() else []
        known += [line.model_dump(exclude_none=True) for line in lines]
        table = {(row["step"], str(row.get("split"))): row for row in known}
        self._replace(path, [table[key] for key in sorted(table)])

    def path(self, kind: type[Line]) -> Path:
        return self.folder / f"{kind.file}.jsonl"

    @staticmethod
    def _replace(path: Path, lines: list[dict[str, Any]]) -> None:
        replace_file(path, "".join(json_text(line) + "\n" for line in lines))


def _readable(path: Path) -> list[dict[str, Any]]:
    """The lines of a file that have a step; one that is torn or of another format is left out."""
    rows = [row for row in json_lines(path) if not isinstance(row, BadLine)]
    return [row for row in rows if isinstance(row.get("step"), int)]


def _versions(engine: str) -> dict[str, str]:
    versions = {}
    for name in dict.fromkeys(["fspo", "torch", "transformers", engine]):
        with suppress(importlib.metadata.PackageNotFoundError):  # "local" is no package
            versions[name] = importlib.metadata.version(name)
    return versions
