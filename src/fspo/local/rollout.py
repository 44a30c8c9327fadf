"""Sampling answers: every prompt computed once, finished answers leave the batch, exact softmax sampling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from fspo.local import runtime
from fspo.local.batch import Batch
from fspo.local.decode import Decoder, FamilyDecoder, ModuleDecoder
from fspo.local.family import family
from fspo.local.models import Policy
from fspo.local.sampling import draw, restrict

ROWS = 256
"""Answers that run at once; more are sampled in turns, so that memory does not grow with the rollout."""

LANES = 16
"""Rows come in multiples of this: a product with fewer columns, or an odd number, takes longer, not
shorter."""

SHRINK = 0.8
"""Rows are compacted once at most this share of them would remain; more often would cost more than it
saves."""


@dataclass(frozen=True)
class Rollout:
    """Sampled answers in order of the prompts, `n` neighbours a prompt.

    A finished answer ends with its end-of-sequence token; one that met the limit has `finished` False and no
    end.
    """

    prompts: list[list[int]]
    completions: list[list[int]]
    group: list[int]
    finished: list[bool]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.completions))

    def batch(self) -> Batch:
        return Batch(self.prompts, self.completions, self.group)


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. Temperature 0 takes the likeliest."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def check(self, evaluation: bool) -> None:
        if not evaluation and (self.top_k is not None or self.top_p is not None):
            raise ValueError(
                "top_k and top_p are refused in training: answers drawn from a cut distribution have other "
                "probabilities than the ones that train, which biases every importance ratio; "
                "remove them, or pass evaluation=True"
            )
        if not evaluation and not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}; training samples, so it must be above 0")
        if self.temperature < 0:
            raise ValueError(f"temperature is {self.temperature}; use 0 for greedy decoding or a number above it")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k is {self.top_k}; it must be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must be above 0 and at most 1")

    def choose(self, logits: Tensor, uniform: Tensor) -> Tensor:
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
) -> Rollout:
    """Draw `n` answers a prompt. The same seed gives the same answers to the bit on one machine and thread
    count.

    Each answer has its own stream of random numbers, one a token, so what it says does not depend on when
    others end.
    """
    sampling = Sampling(temperature, top_k, top_p)
    sampling.check(evaluation)
    ids, group = check_request(prompts, n, max_new_tokens)
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(len(group), max_new_tokens, generator=generator, dtype=torch.float64).to(policy.device)
    completions: list[list[int]] = []
    finished: list[bool] = []
    with torch.inference_mode(), _sampling_threads(policy):
        for a in range(0, len(group), ROWS):
            wave = group[a : a + ROWS]
            tokens, lengths, ended = _wave(policy, ids[wave[0] : wave[-1] + 1], wave, uniform[a : a + ROWS], sampling)
            completions += [row[:length] for row, length in zip(tokens.tolist(), lengths.tolist(), strict=True)]
            finished += ended.tolist()
    return Rollout(ids, completions, group, finished)


def check_request(prompts: Sequence[Sequence[int]], n: int, max_new_tokens: int) -> tuple[list[list[int]], list[int]]:
    """The prompts as lists, and the prompt of every answer; refuses what nobody could answer."""
    if n < 1 or max_new_tokens < 1:
        raise ValueError(f"n is {n} and max_new_tokens is {max_new_tokens}; both must be at least 1")
    ids = [list(p) for p in prompts]
    if not ids or not all(ids):
        raise ValueError("a prompt is empty or there is none; give at least one token for every prompt")
    return ids, [g for g in range(len(ids)) for _ in range(n)]


@contextmanager
def _sampling_threads(policy: Policy) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(runtime.sampling_threads(sum(p.numel() for p in policy.model.parameters()), before))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _wave(
    policy: Policy, prompts: list[list[int]], group: list[int], uniform: Tensor, sampling: Sampling
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (rows, limit), lengths and whether each row ended, for rows that run together."""
    device, (rows, limit) = policy.device, uniform.shape
    members = torch.tensor(group, device=device) - group[0]
    eos = torch.tensor(policy.eos_ids, device=device)
    tokens = torch.zeros(rows, limit, dtype=torch.long, device=device)
    lengths = torch.full((rows,), limit, device=device)
    ended = torch.zeros(rows, dtype=torch.bool, device=device)

    parts = family(policy)
    decoder: Decoder
    # `row` names the answer of each lane; lanes that only fill up repeat the last answer and are never read.
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
