"""The measured cosine between clipped and true update, and its bound, on a small transformer during training.

    python benchmarks/cosine.py

A Qwen3 of two layers samples responses of 8 to 64 tokens and is trained for a few optimiser steps with the unclipped
objective. At each step the gradients of each bin of length are compared for three objectives whose ranges leave the
same share of responses outside.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator

import torch
from torch import Tensor

import fspo
from fspo.fairness.cosine import MeasuredCosine

VOCABULARY, RESPONSES, LONGEST = 32, 192, 64


def at_rate(S: Tensor, L: Tensor, rate: float) -> dict[str, fspo.objectives.Objective]:
    """Three sequence-level objectives, each with the range that leaves the same share of these responses outside."""
    mu = float(S.sum() / L.sum())

    def width(x: Tensor) -> float:
        return float(torch.quantile(x.abs(), 1 - rate))

    c, mean, total = width((S - mu * L) / L.sqrt()), width(S / L), width(S)
    return {
        "fspo": fspo.objectives.get("fspo", c_low=c, c_high=c, drift="kl", dual=None),
        "gspo": fspo.objectives.get("gspo", clip_low=-math.expm1(-mean), clip_high=math.expm1(mean)),
        "rloo": fspo.objectives.get("rloo", clip_low=-math.expm1(-total), clip_high=math.expm1(total)),
    }


def tiny_model(seed: int) -> torch.nn.Module:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=256,
    )  # fmt: skip
    return Qwen3ForCausalLM(config)


def logprobs_of(model: torch.nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens).logits[:, :-1].log_softmax(-1)
    return logits.gather(-1, tokens[:, 1:].unsqueeze(-1)).squeeze(-1)


@torch.no_grad()
def sample(model: torch.nn.Module, generator: torch.Generator) -> Tensor:
    tokens = torch.zeros(RESPONSES, 1, dtype=torch.long)
    for _ in range(LONGEST):
        probabilities = model(tokens).logits[:, -1].softmax(-1)
        tokens = torch.cat([tokens, torch.multinomial(probabilities, 1, generator=generator)], 1)
    return tokens


def run(updates: int, seed: int, rate: float = 0.1) -> Iterator[tuple[str, int, MeasuredCosine]]:
    """(method, update, cosine and bounds) for a model trained on one batch of its own samples."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = tiny_model(seed)
    tokens = sample(model, generator)
    lengths = torch.randint(8, LONGEST + 1, (RESPONSES,), generator=generator)
    mask = torch.arange(LONGEST) < lengths.unsqueeze(-1)
    # The reward is the share of one token, so that length and advantage are independent.
    rewards = ((tokens[:, 1:] == 7) & mask).sum(-1) / lengths
    advantages = (rewards - rewards.mean()) / rewards.std()
    old = logprobs_of(model, tokens).detach()
    index = torch.bucketize(lengths.float(), torch.quantile(lengths.float(), torch.tensor([0.25, 0.5, 0.75])))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    for update in range(updates):
        logprobs = logprobs_of(model, tokens)
        S = torch.where(mask, logprobs - old, 0.0).sum(-1)
        true = S.exp() * advantages
        if update:  # the first update is on-policy: nothing is clipped
            for name, objective in at_rate(S.detach(), lengths.float(), rate).items():
                accepted = objective(logprobs, old, advantages, mask).accepted
                # All objectives gate the same unclipped update, so that only their acceptance differs.
                result = fspo.fairness.measure_cosine(true, true * accepted, accepted, index, model.parameters())
                yield name, update, result
        optimizer.zero_grad()
        (-true.mean()).backward()
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(f"{'method':>6}  update  measured  bound (eta = 0)  bound    LRE    eta  kappa", flush=True)
    for name, update, r in run(arguments.updates, arguments.seed):
        print(
            f"{name:>6}  {update:>6}  {r.measured:>8.4f}  {float(r.tight):>15.4f}  {float(r.bound):>5.2f}"
            f"  {r.tight.lre:>5.3f}  {r.bound.eta:>5.2f}  {r.bound.kappa:>5.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
