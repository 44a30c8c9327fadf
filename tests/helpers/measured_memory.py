"""Peak memory of one training step of this package, beyond what the libraries take.

    python -m helpers.measured_memory SETTING...

prints the bytes measured and the bytes that `fspo plan` computes. Run it as a process of its own: the peak of a process
never falls.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import fspo.engines.planning.planner as planner
from fspo.config import read
from fspo.engines.planning.devices import DEVICES
from fspo.runs import Metrics, read_lines
from fspo.training.loop import train


def status(name: str) -> int:
    """A figure of this process from the system, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    shared = ["task=sort", "update.minibatches=2", "steps=1", "eval.prompts=1", "warmup=null", "processes=1"]
    config = read(None, [*sys.argv[1:], *shared, "log.samples=0", "update.all_rows=true"])
    with tempfile.TemporaryDirectory() as small:  # everything is imported and used once before memory is read
        tiny = ["model.path=tiny:1x32", "rollout.prompts=2", "rollout.group=2", "rollout.max_new_tokens=4"]
        train(read(None, [*tiny, *shared]), Path(small) / "run")
    before = status("VmRSS")
    with tempfile.TemporaryDirectory() as folder:
        train(config, Path(folder) / "run")
        peak = status("VmHWM") - before
        sampled = read_lines(Path(folder) / "run", Metrics)[0].length or 1
    # A random model ends its answers early: planned for answers of the length that it had.
    same = config.model_copy(update={"rollout": config.rollout.model_copy(update={"max_new_tokens": round(sampled)})})
    place = planner.Situation("local", DEVICES["4090"], "4090", prompt=24)  # tokens of the task's prompts, about
    print(peak, planner.plan(same, place).peak)
