"""Settings for all tests, and what tests of several folders use: the command, and a small run to train."""

from __future__ import annotations

import os
import signal
import sys

import pytest
import torch
from hypothesis import settings

from helpers.processes import Command, Done

torch.set_num_threads(1)
os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is looked up in the hub, and trainers send no telemetry
# A shell ignores these in what it runs in the background, and the tests of signals would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
settings.register_profile("default", deadline=None, derandomize=True)
settings.register_profile("quick", settings.get_profile("default"), max_examples=25)
settings.load_profile("default")

SMALL_RUN = [
    "task={name: sort, n_min: 2, n_max: 8, letters: 4}", "objective=fspo", "processes=1", "warmup=null", "steps=6",
    "rollout.prompts=8", "rollout.group=4", "rollout.max_new_tokens=10", "update.minibatches=2", "update.lr=0.0002",
    "update.schedule=constant", "eval.prompts=16", "eval.every=3", "checkpoint.every=2",
]  # fmt: skip


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Settings of a run small enough to repeat: a one-layer model that solves some of its prompts, so that rewards
    vary."""
    from fspo import tasks
    from fspo.config import read
    from fspo.training.warmup import warm_start

    warm = ["model.path=tiny:1x32", "warmup={solved: 0.2, max_steps: 400, check_every: 10, prompts: 128}"]
    config = read(None, [*SMALL_RUN, *warm])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FSPO_CACHE", str(tmp_path_factory.mktemp("cache")))
        folder = warm_start(config, tasks.get(config.task))
    return [*SMALL_RUN, f"model.path={folder}"]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command in this process: the entry point of `python -m fspo`, without importing everything each time."""
    from fspo.cli.main import main

    def run(*arguments: str, check: bool = True) -> Done:
        monkeypatch.setattr(sys, "argv", ["fspo", *arguments])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        done = Done(code, *capsys.readouterr())
        assert not (check and code), f"exit {code}: {done.stdout}\n{done.stderr}"
        return done

    return run
