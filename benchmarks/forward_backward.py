"""Log-probs, forward and backward: fspo's packed forward against the padded Hugging Face forward that TRL uses.

    python benchmarks/forward_backward.py [--smol FOLDER] [--repeats 5] [--threads 2] [--budget 4096] [--rows 8]

The work of one update: half of the rollout, gradients of a weighted sum of log-probs. The padded version pads prompts
on the left and completions on the right, keeps only the logits of the completions, and processes `--rows` sequences at
a time (0: all).
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from fspo.model.answers import Answers, split
from fspo.model.forward import logprobs
from fspo.model.loading import Policy
from workloads import batch, policies


def packed(policy: Policy, work: Answers, weights: torch.Tensor, budget: int) -> float:
    loss = 0.0
    for micro, indices in split(work, budget):
        out = logprobs(policy, micro)
        part = (out.logprobs * weights[indices].unsqueeze(1)).sum()
        part.backward()
        loss += part.item()
    return loss


def padded(policy: Policy, work: Answers, weights: torch.Tensor, rows: int) -> float:
    prompts = [work.prompts[g] for g in work.group]
    p_max, c_max = max(map(len, prompts)), max(work.lengths)
    pad = policy.pad_id
    ids = torch.tensor(
        [
            [pad] * (p_max - len(p)) + list(p) + list(c) + [pad] * (c_max - len(c))
            for p, c in zip(prompts, work.completions, strict=True)
        ]
    )
    mask = torch.tensor(
        [
            [0] * (p_max - len(p)) + [1] * (len(p) + len(c)) + [0] * (c_max - len(c))
            for p, c in zip(prompts, work.completions, strict=True)
        ]
    )
    loss = 0.0
    step = rows or len(work)
    for a in range(0, len(work), step):
        i, m = ids[a : a + step], mask[a : a + step]
        logits = policy.model(i, attention_mask=m, logits_to_keep=c_max + 1, use_cache=False).logits[:, :-1]
        targets = i[:, -c_max:].unsqueeze(-1)
        logp = logits.gather(-1, targets).squeeze(-1) - logits.logsumexp(-1)
        part = (logp * m[:, -c_max:] * weights[a : a + step].unsqueeze(1)).sum()
        part.backward()
        loss += part.item()
    return loss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--smol", help="folder of SmolLM2-135M in safetensors")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=int, default=4096, help="tokens per packed micro-batch")
    parser.add_argument("--rows", type=int, default=0, help="sequences per padded micro-batch; 0: all")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for work, policy in policies(args.smol):
        whole = batch(work, policy)
        half = whole.select(range(len(whole) // 2))
        weights = torch.randn(len(half), generator=torch.Generator().manual_seed(0))
        runs = {
            "fspo": lambda h=half, w=weights, p=policy: packed(p, h, w, args.budget),
            "padded": lambda h=half, w=weights, p=policy: padded(p, h, w, args.rows),
        }
        times: dict[str, list[float]] = {name: [] for name in runs}
        for repeat in range(args.repeats + 1):
            for name, run in runs.items():
                policy.model.zero_grad()
                start = time.perf_counter()
                loss = run()
                if repeat:
                    times[name].append(time.perf_counter() - start)
                else:
                    print(f"{work.name}: {name} loss {loss:.4f}")
        ours, theirs = (statistics.median(times[n]) for n in ("fspo", "padded"))
        print(
            f"{work.name}: {half.tokens} completion tokens; fspo {ours:.3f} s "
            f"({half.tokens / ours:.0f} tokens/s), "
            f"padded {theirs:.3f} s ({half.tokens / theirs:.0f} tokens/s): {theirs / ours:.2f}x"
        )


if __name__ == "__main__":
    main()
