"""Sampling answers: each prompt is computed once, finished answers leave the batch, and sampling is exact softmax."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from fspo import runtime
from fspo.model.completions import Completions
from fspo.model.decode import Decoder, FamilyDecoder, ModuleDecoder
from fspo.model.family import family
from fspo.model.loading import Policy
from fspo.rollout.sampling import draw, restrict

ROWS = 256
"""Answers sampled at once; more are sampled in turns, so that memory does not grow with the rollout."""

LANES = 16
"""The number of rows is padded to a multiple of this: a matrix product with fewer or an odd number of columns is
slower."""

SHRINK = 0.8
"""Finished rows are removed when at most this share of the rows would remain; removing them more often costs more than
it saves."""


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
        if self.temperature < 0:
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
) -> Rollout:
    """Sample `n` answers per prompt. On the same machine with as many threads, equal seeds give equal answers.

    Each answer has its own stream of random numbers, one per token, so it does not depend on when other answers end.
    `places` are those of the prompts in a larger request: their answers then have the random numbers of that request.
    """
    sampling = Sampling(temperature, top_k, top_p)
    sampling.check(evaluation)
    ids, group = check_request(prompts, n, max_new_tokens, policy.context)
    generator = torch.Generator().manual_seed(seed)
    places = range(len(ids)) if places is None else places
    uniform = torch.rand(n * (max(places) + 1), max_new_tokens, generator=generator, dtype=torch.float64)
    uniform = uniform.view(-1, n, max_new_tokens)[list(places)].view(-1, max_new_tokens).to(policy.device)
    completions: list[list[int]] = []
    finished: list[bool] = []
    with torch.inference_mode(), _sampling_threads(policy):
        for a in range(0, len(group), ROWS):
            wave = group[a : a + ROWS]
            tokens, lengths, ended = _wave(policy, ids[wave[0] : wave[-1] + 1], wave, uniform[a : a + ROWS], sampling)
            completions += [row[:length] for row, length in zip(tokens.tolist(), lengths.tolist(), strict=True)]
            finished += ended.tolist()
    return Rollout(ids, completions, group, finished)


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


def _wave(
    policy: Policy, prompts: list[list[int]], group: list[int], uniform: Tensor, sampling: Sampling
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (rows, limit), lengths (rows,) and whether each row ended, for rows that are sampled together."""
    device, (rows, limit) = policy.device, uniform.shape
    members = torch.tensor(group, device=device) - group[0]
    eos = torch.tensor(policy.eos_ids, device=device)
    tokens = torch.zeros(rows, limit, dtype=torch.long, device=device)
    lengths = torch.full((rows,), limit, device=device)
    ended = torch.zeros(rows, dtype=torch.bool, device=device)

    parts = family(policy)
    decoder: Decoder
    # `row` is the answer of each lane; lanes that are padding repeat the last answer, and their tokens are not used.
    row = torch.arange(rows, device=device)
    real = rows
    if parts is None:
        decoder = ModuleDecoder(policy, prompts, members, limit)
    else:
        row = _fill(row)
        decoder = FamilyDecoder(parts, prompts, members[row], limit)
    logits = decoder.start()
    for t in range(limit):
        token = sampling.choose(logits, uniform[row, t])
        tokens[row[:real], t] = token[:real]
        alive = ~ended[row[:real]]
        now = alive & torch.isin(token[:real], eos)
        lengths[row[:real][now]] = t + 1
        ended[row[:real][now]] = True
        lanes = (alive & ~now).nonzero().squeeze(1)
        if t + 1 == limit or not len(lanes):
            break
        wanted = lanes if parts is None else _fill(lanes)
        if len(wanted) <= SHRINK * len(row):
            real = len(lanes)
            decoder.keep(wanted)
            row, token = row[wanted], token[wanted]
        logits = decoder.step(token)
    return tokens, lengths, ended


def _fill(rows: Tensor) -> Tensor:
    """Repeat the last row up to the next multiple of LANES."""
    return torch.cat((rows, rows[-1:].expand(-len(rows) % LANES)))
