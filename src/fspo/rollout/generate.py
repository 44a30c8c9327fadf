"""From prompts to answers: text to tokens, sampling, and tokens to text.

Each prompt is computed once. Answers run side by side in lanes, leave when they end, and others take their lane. There
are as many lanes as fit into the memory for keys and values if every answer takes its limit.

A model that is not of the Llama family or has adapters is sampled by transformers' own `generate`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fspo import runtime
from fspo.config import is_chat
from fspo.model.answers import Answers
from fspo.model.decode import FamilyDecoder
from fspo.model.forward import family
from fspo.model.loading import Policy
from fspo.rollout.sampling import choose, uniforms
from fspo.tasks.task import Example

CACHE = 2 << 30  # bytes for keys and values
ROWS = 256  # most answers that run at once
REFILL = 64  # waiting answers are admitted when this many lanes are free: a few at a time cost more than they save
SHRINK = 0.8  # ended answers leave when at most this share of the lanes would remain, for the same reason
SPAN = 32  # steps between two reads of the tokens, for which random numbers are drawn at once
PREFILL = 16_384  # most prompt tokens that are computed at once, which bounds the memory of activations


# --- text and tokens --------------------------------------------------------------------------------------------------


def encode(policy: Policy, examples: Sequence[Example], chat: bool | None = None) -> list[list[int]]:
    """Token ids of each prompt. With a chat template the prompt is the user's turn, and the model's turn follows.

    With `chat` None the template is used if the tokenizer has one.
    """
    tokenizer = policy.tokenizer
    if not is_chat(chat, tokenizer.chat_template):
        return [_ids(policy, example.prompt) for example in examples]
    turns = [[{"role": "user", "content": example.prompt}] for example in examples]
    texts = [tokenizer.apply_chat_template(t, tokenize=False, add_generation_prompt=True) for t in turns]
    return [_ids(policy, text, add_special_tokens=False) for text in texts]


def _ids(policy: Policy, text: str, **options: bool) -> list[int]:
    """Token ids of a text; a character that the vocabulary lacks is named."""
    try:
        ids: list[int] = policy.tokenizer(text, **options).input_ids
    except Exception as error:  # the class that the tokenizers library raises, with no subclass to name
        known = policy.tokenizer.get_vocab()
        missing = sorted({character for character in text if character not in known})
        raise ValueError(
            f"the tokenizer of {policy.spec!r} cannot encode {text[:60]!r} ({error}; not in its vocabulary: "
            f"{''.join(missing)[:40]!r}): change the prompts, or use a model whose tokenizer knows them"
        ) from None
    return ids


def encode_solution(policy: Policy, example: Example) -> list[int]:
    """Token ids of a worked solution, with the end-of-sequence token."""
    if example.solution is None:
        raise ValueError(f"task {example.task!r} has no worked solutions to warm up on: set warmup=null")
    return [*_ids(policy, example.solution, add_special_tokens=False), policy.eos_ids[0]]


def decode(policy: Policy, completions: Sequence[Sequence[int]]) -> list[str]:
    """The text of each answer, without its end-of-sequence token."""
    ends = set(policy.eos_ids)
    trimmed = [c[:-1] if c and c[-1] in ends else c for c in completions]
    texts: list[str] = policy.tokenizer.batch_decode([list(c) for c in trimmed], skip_special_tokens=False)
    return texts


# --- sampling ---------------------------------------------------------------------------------------------------------


def generate(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    n: int = 1,
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    seed: int = 0,
    indices: Sequence[int] | None = None,
) -> Answers:
    """Sample `n` answers per prompt from the whole vocabulary; temperature 0 is greedy. On the same machine with as
    many threads, equal seeds give equal answers.

    Each answer has its own stream of random numbers, one per token, so it does not depend on when other answers end.
    `indices` are those of the prompts in a larger request: their answers then have the random numbers of that request.
    """
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature is {temperature}; use a positive number, or 0 for greedy decoding")
    if n < 1 or max_new_tokens < 1:
        raise ValueError(f"n is {n} and max_new_tokens is {max_new_tokens}; both must be at least 1")
    ids = [list(p) for p in prompts]
    if not ids or not all(ids):
        raise ValueError("there is no prompt, or a prompt is empty; give at least one token per prompt")
    longest, context = max(map(len, ids)), policy.context
    if context is not None and longest + max_new_tokens > context:
        raise ValueError(
            f"a prompt of {longest} tokens and rollout.max_new_tokens = {max_new_tokens} exceed the model's context of "
            f"{context} tokens: lower max_new_tokens, or use shorter prompts"
        )
    group = [g for g in range(len(ids)) for _ in range(n)]
    streams = [index * n + i for index in (range(len(ids)) if indices is None else indices) for i in range(n)]
    parts = family(policy)
    if parts is None:
        return _by_transformers(policy, ids, group, max_new_tokens, temperature, seed + streams[0])
    threads = torch.get_num_threads()
    torch.set_num_threads(runtime.sampling_threads(sum(p.numel() for p in policy.model.parameters()), threads))
    try:
        with torch.inference_mode():
            decoder = FamilyDecoder(parts, longest + max_new_tokens, threads)
            rows = max(1, min(ROWS, CACHE // (decoder.token_bytes * (longest + max_new_tokens))))
            lanes = Lanes(
                decoder, ids, group, limit=max_new_tokens, temperature=temperature, eos_ids=policy.eos_ids, seed=seed,
                streams=streams, rows=rows,
            )  # fmt: skip
            lanes.run()
    finally:
        torch.set_num_threads(threads)
    return Answers(ids, lanes.tokens, group, lanes.finished)


def _by_transformers(
    policy: Policy, prompts: list[list[int]], group: list[int], limit: int, temperature: float, seed: int
) -> Answers:
    """Answers of any other model, prompts padded left."""
    longest, pad = max(map(len, prompts)), policy.eos_ids[0]
    options: dict[str, Any] = {"do_sample": False}
    if temperature > 0:  # whatever the model's own settings cut off
        options = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    completions, finished = [], []
    with torch.inference_mode(), torch.random.fork_rng():
        torch.manual_seed(seed)
        for start in range(0, len(group), ROWS):
            part = [prompts[g] for g in group[start : start + ROWS]]
            out = policy.model.generate(
                input_ids=torch.tensor([[pad] * (longest - len(p)) + p for p in part], device=policy.device),
                attention_mask=torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in part]).to(policy.device),
                max_new_tokens=limit, eos_token_id=list(policy.eos_ids), pad_token_id=pad, use_cache=True, **options,
            )  # fmt: skip
            for tokens in out[:, longest:].tolist():
                end = next((i for i, token in enumerate(tokens, start=1) if token in policy.eos_ids), None)
                completions.append(tokens[:end])
                finished.append(end is not None)
    return Answers(prompts, completions, group, finished)


class Lanes:
    """Samples one answer per entry of `group`, the index of its prompt."""

    def __init__(
        self,
        decoder: FamilyDecoder,
        prompts: Sequence[list[int]],
        group: Sequence[int],
        *,
        limit: int,
        temperature: float,
        eos_ids: Sequence[int],
        seed: int,
        streams: Sequence[int],
        rows: int,
    ) -> None:
        """At most `rows` answers run at once; each has its own random stream of `seed`."""
        self.decoder, self.prompts, self.group, self.limit, self.rows = decoder, prompts, group, limit, rows
        self.temperature, self.seed, self.streams = temperature, seed, streams
        # Tokens are chosen with float64, which MPS does not have.
        self.device = torch.device("cpu") if decoder.device.type == "mps" else decoder.device
        self.eos = torch.tensor(eos_ids, dtype=torch.long, device=self.device)
        self.tokens: list[list[int]] = [[] for _ in group]
        self.finished = [False] * len(group)
        self.waiting = deque(range(len(group)))
        self.lanes: list[int] = []  # the answer of each lane
        self.alive = torch.zeros(0, dtype=torch.bool, device=self.device)
        self.columns: list[Tensor] = []  # tokens of all lanes, per step since the last read
        self.ends: dict[int, int] = {}  # of ended lanes: how many of the columns count

    def run(self) -> None:
        """Sample all answers to their end or limit."""
        logits = self._admit()
        while self.lanes:
            if len(self.columns) == SPAN:
                self._store_tokens()
            token = choose(logits.to(self.device), self.numbers[len(self.columns)], self.temperature)
            self.columns.append(token)
            self._end(token)
            if len(self.lanes) - len(self.ends) <= SHRINK * len(self.lanes):
                token = self._keep_running(token)
            parts = [self.decoder.step(token.to(self.decoder.device))] if self.lanes else []
            if self.waiting and self.rows - len(self.lanes) >= min(REFILL, self.rows):
                parts.append(self._admit())
            logits = parts[0] if len(parts) == 1 else torch.cat([*parts, logits[:, :0]], 1)

    def _end(self, token: Tensor) -> None:
        """Note the lanes that have sampled an end token or reached the limit."""
        steps = len(self.columns)
        stop = torch.isin(token, self.eos) & self.alive
        now = stop
        if steps >= self.left:
            now = stop | ((self.start + steps >= self.limit) & self.alive)
        for lane in now.nonzero().squeeze(1).tolist():
            self.ends[lane] = steps
            self.finished[self.lanes[lane]] = bool(stop[lane])
            self.alive[lane] = False

    def _keep_running(self, token: Tensor) -> Tensor:
        """Only the lanes that have not ended go on; returns their tokens."""
        self._store_tokens(refresh=False)
        kept = self.alive.nonzero().squeeze(1)
        self.lanes = [self.lanes[i] for i in kept.tolist()]
        self.ends = {}
        self.alive = self.alive[kept]
        self.decoder.keep(kept.to(self.decoder.device))
        self._refresh()
        return token[kept]

    def _store_tokens(self, refresh: bool = True) -> None:
        """Move the sampled tokens to their answers."""
        if self.columns:
            for lane, row in enumerate(torch.stack(self.columns, 1).tolist()):
                self.tokens[self.lanes[lane]] += row[: self.ends.get(lane, len(row))]
        self.columns = []
        self.ends = dict.fromkeys(self.ends, 0)
        if refresh:
            self._refresh()

    def _refresh(self) -> None:
        """Random numbers for the next steps, and how many steps are left before an answer reaches the limit."""
        counts = [len(self.tokens[i]) for i in self.lanes]
        self.left = self.limit - max(counts, default=0)
        self.start = torch.tensor(counts, dtype=torch.long, device=self.device)
        streams = torch.tensor([self.streams[i] for i in self.lanes], dtype=torch.long, device=self.device)
        self.numbers = uniforms(self.seed, streams, self.start, SPAN)

    def _admit(self) -> Tensor:
        """Give free lanes to waiting answers, as many as `PREFILL` allows; the logits of their next tokens."""
        if self.columns:
            self._store_tokens(refresh=False)
        chosen: list[int] = []
        prompts: list[list[int]] = []
        position: dict[int, int] = {}  # in `prompts`, of each prompt
        while self.waiting and len(self.lanes) + len(chosen) < self.rows:
            prompt = self.group[self.waiting[0]]
            if prompt not in position:
                if prompts and sum(map(len, prompts)) + len(self.prompts[prompt]) > PREFILL:
                    break
                position[prompt] = len(prompts)
                prompts.append(self.prompts[prompt])
            chosen.append(self.waiting.popleft())
        logits = self.decoder.admit(prompts, [position[self.group[i]] for i in chosen])
        self.lanes += chosen
        self.alive = torch.cat((self.alive, self.alive.new_ones(len(chosen))))
        self._refresh()
        return logits
