"""Sampling answers: each prompt is computed once, ended answers make room for others, and sampling is exact softmax."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from fspo import runtime
from fspo.model.completions import Completions
from fspo.model.decode import Decoder, FamilyDecoder
from fspo.model.family import family
from fspo.model.loading import Policy
from fspo.model.module_decoder import ModuleDecoder
from fspo.rollout.lanes import Lanes, Watch
from fspo.rollout.sampling import draw, restrict

CACHE_GIB = 2.0
"""Memory for keys and values, as `rollout.cache_gib`."""


@dataclass(frozen=True)
class Rollout:
    """Sampled answers in the order of the prompts, `n` in a row per prompt.

    A finished answer ends with its end-of-sequence token; a truncated one has `finished` False and no such token.
    """

    prompts: list[list[int]]
    completions: list[list[int]]
    group: list[int]  # the prompt of each answer
    finished: list[bool]
    logprobs: list[list[float]] | None = None  # one per token, from a sampler other than the trainer's own model

    @property
    def tokens(self) -> int:
        """The number of sampled tokens."""
        return sum(map(len, self.completions))

    def batch(self) -> Completions:
        return Completions(self.prompts, self.completions, self.group)


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. Temperature 0 is greedy."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def check(self, evaluation: bool) -> None:
        """Refuse bad values, and in training whatever changes the distribution."""
        if not evaluation and (self.top_k is not None or self.top_p is not None):
            raise ValueError(
                "top_k and top_p are refused in training: the probabilities of a truncated distribution differ from "
                "those of the trainer, which biases every importance ratio; remove them, or pass evaluation=True"
            )
        if not evaluation and not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}; in training it must be above 0")
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature is {self.temperature}; use a positive number, or 0 for greedy decoding")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k is {self.top_k}; it must be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must be above 0 and at most 1")

    def choose(self, logits: Tensor, uniform: Tensor) -> Tensor:
        """One token per row, from logits (vocabulary, rows) and a random number per row; `logits` is overwritten."""
        if self.temperature == 0:
            return logits.argmax(0)
        if self.temperature != 1.0:
            logits = logits.div_(self.temperature)
        if self.top_k is not None or self.top_p is not None:
            logits = restrict(logits, self.top_k, self.top_p)
        return draw(logits, uniform)


def generate(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    n: int = 1,
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    seed: int = 0,
    evaluation: bool = False,
    top_k: int | None = None,
    top_p: float | None = None,
    places: Sequence[int] | None = None,
    cache_gib: float = CACHE_GIB,
    watch: Watch | None = None,
) -> Rollout:
    """Sample `n` answers per prompt. On the same machine with as many threads, equal seeds give equal answers.

    Each answer has its own stream of random numbers, one per token, so it does not depend on when other answers end.
    `places` are those of the prompts in a larger request: their answers then have the random numbers of that request.
    `watch` gets answers as they end.
    """
    sampling = Sampling(temperature, top_k, top_p)
    sampling.check(evaluation)
    ids, group = check_request(prompts, n, max_new_tokens, policy.context)
    streams = [place * n + i for place in (range(len(ids)) if places is None else places) for i in range(n)]
    threads = torch.get_num_threads()
    with torch.inference_mode(), _sampling_threads(policy):
        parts = family(policy)
        decoder: Decoder
        if parts is None:
            decoder = ModuleDecoder(policy)
        else:
            decoder = FamilyDecoder(parts, max(map(len, ids)) + max_new_tokens, threads)
        lanes = Lanes(
            decoder, ids, group, limit=max_new_tokens, choose=sampling.choose, eos_ids=policy.eos_ids, seed=seed,
            streams=streams, cache_bytes=int(cache_gib * 2**30), device=policy.device, watch=watch,
        )  # fmt: skip
        lanes.run()
    return Rollout(ids, lanes.tokens, group, lanes.finished)


def check_request(
    prompts: Sequence[Sequence[int]], n: int, max_new_tokens: int, context: int | None
) -> tuple[list[list[int]], list[int]]:
    """The prompts as lists, and the index of the prompt of each answer; bad arguments are refused.

    `context` is the most tokens that the model takes, prompt and answer together.
    """
    if n < 1 or max_new_tokens < 1:
        raise ValueError(f"n is {n} and max_new_tokens is {max_new_tokens}; both must be at least 1")
    ids = [list(p) for p in prompts]
    if not ids or not all(ids):
        raise ValueError("there is no prompt, or a prompt is empty; give at least one token per prompt")
    longest = max(map(len, ids))
    if context is not None and longest + max_new_tokens > context:
        raise ValueError(
            f"a prompt of {longest} tokens and rollout.max_new_tokens = {max_new_tokens} exceed the model's context of "
            f"{context} tokens: lower max_new_tokens, or use shorter prompts"
        )
    return ids, [g for g in range(len(ids)) for _ in range(n)]


@contextmanager
def _sampling_threads(policy: Policy) -> Iterator[None]:
    """Sample with the number of threads that suits the model, and restore the old number afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(runtime.sampling_threads(sum(p.numel() for p in policy.model.parameters()), before))
    try:
        yield
    finally:
        torch.set_num_threads(before)
