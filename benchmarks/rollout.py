"""Rollout alone: fspo against `model.generate` of transformers.

    python benchmarks/rollout.py [--case tiny|smol|long] [--smol FOLDER] [--repeats 5] [--threads 2]

All samplers draw the same number of tokens: every completion ends at a given length and nowhere else, so that none
gains by stopping early. That is the limit, or in the long case log-uniform from 16 to 2,048 tokens, the same list for
all. The samplers take turns; medians are in completion tokens per second. Peak memory is that of fspo's process, which
also holds the model for model.generate. With --output FILE the medians are also written as JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from fspo import runtime

runtime.prepare()

import torch  # noqa: E402

from fspo.model.loading import Policy, load, set_threads  # noqa: E402
from fspo.rollout.generate import generate  # noqa: E402
from workloads import (  # noqa: E402
    LONG,
    SMOL,
    TINY,
    ForcedLanes,
    Workload,
    force_hugging_face,
    lengths,
    policies,
    prompts,
)


def ours(work: Workload, policy: Policy) -> Callable[[int], int]:
    ids, forced = prompts(work, policy), ForcedLanes()

    def run(seed: int) -> int:
        forced.lengths = lengths(work, seed)
        return generate(policy, ids, work.members, max_new_tokens=work.limit, seed=seed).tokens

    return run


def hugging_face(work: Workload, policy: Policy) -> Callable[[int], int]:
    ids, forced = prompts(work, policy), force_hugging_face(type(policy.model))
    longest = max(map(len, ids))
    pad = policy.pad_id
    rows = torch.tensor([[pad] * (longest - len(p)) + p for p in ids]).repeat_interleave(work.members, 0)
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in ids]).repeat_interleave(work.members, 0)

    def run(seed: int) -> int:
        torch.manual_seed(seed)
        forced.lengths = lengths(work, seed)
        policy.model.generate(
            rows,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=work.limit,
            pad_token_id=pad,
        )
        return sum(forced.lengths)

    return run


def chosen(case: str, smol: str | None) -> tuple[Workload, Policy]:
    if case == "long":
        return LONG, load("tiny:2x64")
    pairs = {work.name: (work, policy) for work, policy in policies(smol)}
    return pairs[SMOL.name if case == "smol" else TINY.name]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--case", choices=("tiny", "smol", "long"), default="tiny")
    parser.add_argument("--smol", help="folder of SmolLM2-135M in safetensors")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    if args.case == "smol" and not args.smol:
        parser.error("--case smol needs --smol FOLDER")
    work, policy = chosen(args.case, args.smol)
    set_threads(policy, args.threads)
    runs = {"fspo": ours(work, policy), "model.generate": hugging_face(work, policy)}
    speeds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(args.repeats + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            count = run(repeat)
            seconds = time.perf_counter() - start
            print(f"{work.name}: repeat {repeat}: {name:14s} {count} tokens in {seconds:.2f} s", flush=True)
            if repeat:  # the first round is a warm-up
                speeds[name].append(count / seconds)
    base = statistics.median(speeds["fspo"])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    summary = {}
    for name, values in speeds.items():
        median = statistics.median(values)
        summary[name] = {"tokens_per_second": median, "each": values, "fspo_over_it": base / median}
        print(f"{work.name}: {name:14s} {median:8.0f} tokens/s   fspo is {base / median:.2f}x")
    print(f"{work.name}: peak memory {peak:.0f} MB")
    if args.output is not None:
        args.output.write_text(json.dumps({"case": args.case, "peak_mb": peak, "samplers": summary}, indent=1))


if __name__ == "__main__":
    main()
