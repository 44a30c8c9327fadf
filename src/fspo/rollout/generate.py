"""From prompts to answers: text to tokens, sampling, and tokens to text.

Each prompt is computed once. Answers run side by side in lanes, leave when they end, and others take their lane. Memory
of keys and values is bounded: when the running answers outgrow it, the youngest leave with what they have, and are
resumed later from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from fspo import runtime
from fspo.model.answers import Answers
from fspo.model.decode import BLOCK, FamilyDecoder, ModuleDecoder
from fspo.model.forward import family
from fspo.model.loading import Policy
from fspo.rollout.sampling import Sampling, uniforms
from fspo.tasks.task import Example

CACHE_GIB = 2.0  # memory for keys and values, as `rollout.cache_gib`
ROWS = 256  # answers that run at once
REFILL = 64  # waiting answers are admitted when this many lanes are free: a few at a time cost more than they save
SHRINK = 0.8  # ended answers leave when at most this share of the lanes would remain, for the same reason
SPAN = 32  # steps between two looks at the tokens: random numbers are drawn, and ended answers handed over, for so many
PREFILL = 16_384  # most prompt tokens that are computed at once, which bounds the memory of activations
FILLED = 0.5  # answers are admitted up to this share of the cache's memory; the rest is for those that run

Watch = Callable[[dict[int, list[int]]], None]
"""Called every `SPAN` steps with the answers that have ended since, by index."""


# --- text and tokens --------------------------------------------------------------------------------------------------


def encode(policy: Policy, examples: Sequence[Example], chat: bool | None = None) -> list[list[int]]:
    """Token ids of each prompt. With a chat template the prompt is the user's turn, and the model's turn follows.

    With `chat` None the template is used if the tokenizer has one.
    """
    tokenizer = policy.tokenizer
    if chat is None:
        chat = tokenizer.chat_template is not None
    if not chat:
        return [_ids(policy, example.prompt) for example in examples]
    if tokenizer.chat_template is None:
        raise ValueError("model.chat is on, but the tokenizer has no chat template: set model.chat=false")
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
    evaluation: bool = False,
    top_k: int | None = None,
    top_p: float | None = None,
    indices: Sequence[int] | None = None,
    cache_gib: float = CACHE_GIB,
    watch: Watch | None = None,
) -> Answers:
    """Sample `n` answers per prompt. On the same machine with as many threads, equal seeds give equal answers.

    Each answer has its own stream of random numbers, one per token, so it does not depend on when other answers end.
    `indices` are those of the prompts in a larger request: their answers then have the random numbers of that request.
    `watch` gets answers as they end.
    """
    sampling = Sampling(temperature, top_k, top_p)
    sampling.check(evaluation)
    ids, group = check_request(prompts, n, max_new_tokens, policy.context)
    streams = [index * n + i for index in (range(len(ids)) if indices is None else indices) for i in range(n)]
    threads = torch.get_num_threads()
    with torch.inference_mode(), _sampling_threads(policy):
        parts = family(policy)
        decoder: FamilyDecoder | ModuleDecoder = ModuleDecoder(policy)
        if parts is not None:
            decoder = FamilyDecoder(parts, max(map(len, ids)) + max_new_tokens, threads)
        lanes = Lanes(
            decoder, ids, group, limit=max_new_tokens, choose=sampling.choose, eos_ids=policy.eos_ids, seed=seed,
            streams=streams, cache_bytes=int(cache_gib * 2**30), device=policy.device, watch=watch,
        )  # fmt: skip
        lanes.run()
    return Answers(ids, lanes.tokens, group, lanes.finished)


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


class Lanes:
    """Samples one answer per entry of `group`, the index of its prompt."""

    def __init__(
        self,
        decoder: FamilyDecoder | ModuleDecoder,
        prompts: Sequence[list[int]],
        group: Sequence[int],
        *,
        limit: int,
        choose: Callable[[Tensor, Tensor], Tensor],
        eos_ids: Sequence[int],
        seed: int,
        streams: Sequence[int],
        cache_bytes: int,
        device: torch.device,
        watch: Watch | None = None,
    ) -> None:
        """`choose` takes logits and random numbers; each answer draws from its own of the streams of `seed`."""
        self.decoder, self.prompts, self.group, self.limit = decoder, prompts, group, limit
        self.choose, self.seed, self.streams, self.cache_bytes, self.watch = choose, seed, streams, cache_bytes, watch
        self.device, self.eos = device, torch.tensor(eos_ids, dtype=torch.long, device=device)
        self.tokens: list[list[int]] = [[] for _ in group]
        self.finished = [False] * len(group)
        self.waiting = deque(range(len(group)))
        self.lanes: list[int] = []  # the answer of each lane
        self.alive = torch.zeros(0, dtype=torch.bool, device=device)
        self.columns: list[Tensor] = []  # tokens of all lanes, per step since the last look
        self.ends: dict[int, int] = {}  # of ended lanes: how many of the columns count
        self.ended: list[int] = []  # answers to hand over

    def run(self) -> None:
        """Sample all answers to their end or limit."""
        (logits,) = self._admit()
        while self.lanes:
            if len(self.columns) == SPAN:
                self._look()
            token = self.choose(logits, self.numbers[len(self.columns)])
            self.columns.append(token)
            self._end(token)
            running = len(self.lanes) - len(self.ends)
            if running <= SHRINK * len(self.lanes):
                token = self._keep(token, running)
            while self.lanes and self.decoder.held() * self.decoder.token_bytes > self.cache_bytes and running > 1:
                running -= -(-running // 4)
                token = self._keep(token, running)
            parts = [self.decoder.step(token)] if self.lanes else []
            if self.waiting and ROWS - len(self.lanes) >= min(REFILL, ROWS):
                parts += self._admit()
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
            self.ended.append(self.lanes[lane])
        if self.ended:
            self.alive &= ~now

    def _keep(self, token: Tensor, running: int) -> Tensor:
        """Only the first `running` lanes that have not ended go on; others that have not are resumed later."""
        self._look(refresh=False)
        kept = self.alive.nonzero().squeeze(1)
        self.waiting.extendleft(reversed([self.lanes[i] for i in kept[running:].tolist()]))
        kept = kept[:running]
        self.lanes = [self.lanes[i] for i in kept.tolist()]
        self.ends = {}
        self.alive = self.alive[kept]
        self.decoder.keep(kept)
        self._refresh()
        return token[kept]

    def _look(self, refresh: bool = True) -> None:
        """Move the sampled tokens to their answers, and hand over the answers that have ended."""
        if self.columns:
            for lane, row in enumerate(torch.stack(self.columns, 1).tolist()):
                self.tokens[self.lanes[lane]] += row[: self.ends.get(lane, len(row))]
        self.columns = []
        self.ends = dict.fromkeys(self.ends, 0)
        if self.watch is not None:
            self.watch({i: self.tokens[i] for i in self.ended})
        self.ended = []
        if refresh:
            self._refresh()

    def _refresh(self) -> None:
        """Random numbers for the next steps, and how many steps are left before an answer reaches the limit."""
        counts = [len(self.tokens[i]) for i in self.lanes]
        self.left = self.limit - max(counts, default=0)
        self.start = torch.tensor(counts, dtype=torch.long, device=self.device)
        streams = torch.tensor([self.streams[i] for i in self.lanes], dtype=torch.long, device=self.device)
        self.numbers = uniforms(self.seed, streams, self.start, SPAN)

    def _admit(self) -> list[Tensor]:
        """Give free lanes to waiting answers, if any fits; the logits of their next tokens."""
        chosen = self._next()
        if not chosen:
            return []
        if self.columns:
            self._look(refresh=False)
        prompts: list[list[int]] = []
        position: dict[int, int] = {}
        group: list[int] = []
        for i in chosen:
            # An answer that was interrupted continues from its own tokens; new answers share their prompt.
            key = -1 - i if self.tokens[i] else self.group[i]
            if key not in position:
                position[key] = len(prompts)
                prompts.append([*self.prompts[self.group[i]], *self.tokens[i]])
            group.append(position[key])
        logits = self.decoder.admit(prompts, group)
        self.lanes += chosen
        self.alive = torch.cat((self.alive, self.alive.new_ones(len(chosen))))
        self._refresh()
        return [logits]

    def _next(self) -> list[int]:
        """The waiting answers that fit: by lanes, by prompt tokens, and by memory. At least one if none runs."""
        chosen: list[int] = []
        free = ROWS - len(self.lanes)
        memory = self.cache_bytes * FILLED / max(self.decoder.token_bytes, 1) - self.decoder.held()
        computed: set[int] = set()
        prefill = 0
        while self.waiting and len(chosen) < free:
            i = self.waiting[0]
            resumed = bool(self.tokens[i])
            if chosen and resumed != bool(self.tokens[chosen[0]]):
                break  # a short prompt would be padded to the length of a resumed answer
            cost = len(self.prompts[self.group[i]]) + len(self.tokens[i])
            cost *= resumed or self.group[i] not in computed
            memory -= cost + BLOCK
            prefill += cost
            if (chosen or self.lanes) and (memory < 0 or prefill > PREFILL):
                break
            computed.add(self.group[i])
            chosen.append(self.waiting.popleft())
        return chosen
