"""From the text of a task to the token ids of a prompt, and from the tokens of an answer back to text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fspo.model.loading import Policy
from fspo.tasks.task import Example


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
    return [encode_turns(policy, [{"role": "user", "content": example.prompt}]) for example in examples]


def encode_turns(policy: Policy, turns: Sequence[Mapping[str, str]]) -> list[int]:
    """Token ids of a conversation by the tokenizer's chat template, with the start of the model's next turn."""
    text = policy.tokenizer.apply_chat_template(list(turns), tokenize=False, add_generation_prompt=True)
    return _ids(policy, text, add_special_tokens=False)


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
