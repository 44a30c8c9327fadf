"""`fspo train --engine verl`: the same configuration as a run of `verl.trainer.main_ppo`.

The prompts become verl's Parquet files in the run folder, and verl's reward workers call `reward.compute_score`, which
asks the task. What verl needs is checked before anything is written. Importing this module does not import verl, so
that a dry run works without it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fspo.config import TrainConfig
from fspo.engines.sampler_rules import BAND, RULE
from fspo.engines.translate import is_chat, start
from fspo.engines.verl.hydra_settings import command, mismatch, overrides
from fspo.engines.verl.job import dry_run, write_prompts
from fspo.engines.verl.log import collect
from fspo.engines.verl.needs import require
from fspo.engines.verl.probe import environment
from fspo.runs import Metrics, Observer, RunWriter, Timing, claimed, read_lines
from fspo.runtime import SIGNALS
from fspo.training.stopping import RunInterruptedError

__all__ = ["dry_run", "train"]


def train(config: TrainConfig, folder: Path, *, resume: bool = False, observer: Observer | None = None) -> None:
    """Run `config` on verl and merge verl's log into the run folder; with `resume`, go on from its last checkpoint."""
    from transformers import AutoTokenizer

    folder, observer = folder.absolute(), observer or Observer()
    overrides(config, folder)  # refuses before anything is written
    require(config)
    with claimed(folder, resume=resume):
        checkpoints = folder / "checkpoints"
        resumed = _last_step(checkpoints) if resume else 0
        if resumed:
            _collect(folder)  # verl begins a new log
        tokenizer = AutoTokenizer.from_pretrained(start(config, folder, observer.warmup, fresh=not resume))
        write_prompts(config, folder)
        writer = RunWriter(folder)
        writer.cut(resumed or -1)  # later steps are written again
        writer.describe(config.model_dump(mode="json"), engine="verl")
        if mismatch(config) == BAND:
            observer.note(RULE)
        words = command(overrides(config, folder, is_chat(config, tokenizer.chat_template), resumed))
        observer.note(f"verl writes to {folder / 'verl.log'}")
        with (folder / "verl.log").open("a") as log:
            # In the working directory of this process, so that relative paths and modules are found.
            process = subprocess.Popen(words, env=os.environ | environment(folder), stdout=log, stderr=log)
            try:
                with _signals_stop():
                    code = _follow(process, folder, observer)
            except KeyboardInterrupt as stop:
                process.send_signal(signal.SIGINT)
                process.wait()
                _collect(folder)
                number = stop.number if isinstance(stop, _SignalError) else signal.SIGINT
                raise RunInterruptedError(_last_step(checkpoints), number) from None
        if code:
            raise ValueError(f"verl ended with exit code {code}: the reason is at the end of {folder / 'verl.log'}")
        collect(folder / "verl.jsonl", folder)


class _SignalError(KeyboardInterrupt):
    """A signal other than Ctrl-C asked the run to stop."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def _signals_stop() -> Iterator[None]:
    """SIGTERM and SIGHUP end verl too, as Ctrl-C does: left alone, it would go on without its folder's lock."""

    def handle(number: int, frame: Any) -> None:
        raise _SignalError(number)

    before = {}
    with suppress(ValueError):  # not the main thread, which alone may handle signals
        before = {n: signal.signal(n, handle) for n in SIGNALS[1:] if signal.getsignal(n) is not signal.SIG_IGN}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _collect(folder: Path) -> None:
    """Merge verl's log into the run folder, if verl came as far as to begin one."""
    if (folder / "verl.jsonl").is_file():
        collect(folder / "verl.jsonl", folder)


def _last_step(checkpoints: Path) -> int:
    """The step of verl's last checkpoint; 0 for none."""
    path = checkpoints / "latest_checkpointed_iteration.txt"
    return int(path.read_text()) if path.is_file() else 0


def _follow(process: subprocess.Popen[bytes], folder: Path, observer: Observer) -> int:
    """Tell the observer about every step that is done, until verl ends; returns its exit code."""
    told = len(read_lines(folder, Metrics))
    size = 0
    while True:
        try:
            code = process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            code = None
        path = folder / f"{Metrics.file}.jsonl"
        if path.is_file() and path.stat().st_size != size:
            size = path.stat().st_size
            lines = read_lines(folder, Metrics)
            for metrics in lines[told:]:
                observer.step(metrics, Timing(step=metrics.step))
            told = max(told, len(lines))
        if code is not None:
            return code
