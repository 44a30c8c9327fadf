"""One side of `vs_trl.py`: some steps of fspo or TRL, alone or as one of the processes of torchrun.

    python benchmarks/side.py CASE OUTPUT      (or: torchrun --nproc_per_node 2 benchmarks/side.py CASE OUTPUT)

CASE is the JSON of `Piece`. The first step is a warm-up; the others are written to OUTPUT, a JSON list.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fspo import runtime

runtime.prepare()

from forced import ForcedLanes, force_hugging_face, log_uniform  # noqa: E402
from steps import Chance, Ours, Sums, settings  # noqa: E402

COUNT = {"name": "count", "n_min": 4, "n_max": 40}
TASKS: dict[str, Any] = {"count": COUNT, "sums": Sums(), "chance": Chance()}


@dataclass(frozen=True)
class Piece:
    """Some steps of one side."""

    engine: str  # fspo or trl
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
    found = []
    for step in range(piece.steps + 1):
        if forced is not None:
            forced.lengths = piece.lengths(step)
        found.append(side.step())
    return found


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
    found: list[dict[str, float]] = []

    def reward(completions: list[Any], completion_ids: list[list[int]], index: list[int], **rest: Any) -> list[float]:
        texts = [c[0]["content"] if chat else c for c in completions]
        scores = [task.score(examples[i], text) for i, text in zip(index, texts, strict=True)]
        total = torch.tensor([sum(map(len, completion_ids)), sum(scores)], dtype=torch.float64)
        if RANKS > 1:
            torch.distributed.all_reduce(total)
        first = len(found) * piece.prompts
        seen.update(
            tokens=total[0].item(), reward=total[1].item() / rows, rollout=time.perf_counter() - seen["start"],
            prompt=sum(prompt_tokens[first : first + piece.prompts]),
        )  # fmt: skip
        return scores

    class Turns(TrainerCallback):
        """Measure each step of four updates."""

        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            self.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step % 4 == 0:
                cpu, seconds = time.process_time() - seen["cpu_start"], time.perf_counter() - seen["start"]
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                found.append({**seen, "seconds": seconds, "cpu": cpu, "peak_mb": peak})
                self.begin()

        def begin(self) -> None:
            if holder is not None:
                holder.lengths = piece.lengths(len(found))[RANK * rows // RANKS : (RANK + 1) * rows // RANKS]
            seen.update(start=time.perf_counter(), cpu_start=time.process_time())

    with tempfile.TemporaryDirectory() as scratch:
        options = GRPOConfig(
            output_dir=scratch, use_cpu=True, bf16=False, gradient_checkpointing=False,
            per_device_train_batch_size=rows // 2 // RANKS, gradient_accumulation_steps=1, steps_per_generation=2,
            num_iterations=2, num_generations=piece.group, max_completion_length=piece.limit, temperature=1.0,
            beta=0.0, loss_type="grpo", epsilon=0.2, scale_rewards="group", learning_rate=1e-6,
            lr_scheduler_type="constant", max_steps=4 * (piece.steps + 1), shuffle_dataset=False, seed=0,
            save_strategy="no", logging_strategy="no", report_to="none", disable_tqdm=True,
            model_init_kwargs={"dtype": "float32"}, ddp_find_unused_parameters=False,
        )  # fmt: skip
        data = Dataset.from_dict({"prompt": asked, "index": list(range(len(asked)))})
        trainer = GRPOTrainer(piece.folder, reward, options, data, callbacks=[Turns()])
        tokenizer = trainer.processing_class
        texts = [
            tokenizer.apply_chat_template(r, tokenize=False, add_generation_prompt=True) if chat else r for r in asked
        ]
        prompt_tokens = [len(i) for i in tokenizer(texts, add_special_tokens=False).input_ids]
        torch.set_num_threads(piece.threads)
        trainer.train()
    return found


def main() -> None:
    values = json.loads(sys.argv[1])
    piece = Piece(**{**values, "forced": tuple(values["forced"]) if values["forced"] else None})
    found = (ours if piece.engine == "fspo" else trl)(piece)
    if RANK == 0:
        Path(sys.argv[2]).write_text(json.dumps(found[1:]))
    sys.stdout.flush()
    os._exit(0)  # the group of processes is left without ceremony: the measurement is written


if __name__ == "__main__":
    main()
