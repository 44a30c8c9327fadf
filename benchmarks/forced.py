"""Answers of given lengths, the same for every sampler: log-uniform, so that a few are long and most are short."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any


def log_uniform(count: int, shortest: int, longest: int, seed: int) -> list[int]:
    """Lengths in tokens, in random order; their mean is (longest - shortest) / log(longest / shortest).

    One from each of `count` equal parts of the distribution, so that every seed has almost the same mean.
    """
    rng = random.Random(seed)
    span = math.log(longest / shortest)
    found = [round(shortest * math.exp(span * (i + rng.random()) / count)) for i in range(count)]
    rng.shuffle(found)
    return found


class ForcedLanes:
    """While active, fspo's sampler ends each answer at its length and nowhere else; the last token is the end token."""

    def __init__(self) -> None:
        from fspo.rollout.generate import Lanes

        self.lengths: Sequence[int] = ()
        forced = self

        class Forced(Lanes):
            def _end(self, token: Any) -> None:
                import torch

                steps = len(self.columns)
                aims = torch.tensor([forced.lengths[self.streams[i]] for i in self.lanes])
                now = (self.start + steps >= aims) & self.alive
                for lane in now.nonzero().squeeze(1).tolist():
                    token[lane] = self.eos[0]
                    self.ends[lane] = steps
                    self.finished[self.lanes[lane]] = True
                    self.ended.append(self.lanes[lane])
                if self.ended:
                    self.alive &= ~now

        import fspo.rollout.generate as rollout

        rollout.Lanes = Forced  # type: ignore[misc]


def force_hugging_face(model_class: Any) -> Any:
    """Make `generate` of a transformers class end each row at its length; returns a holder with `lengths` to set."""
    import torch
    from transformers import LogitsProcessor, LogitsProcessorList

    class Holder:
        lengths: Sequence[int] = ()

    class Force(LogitsProcessor):
        def __init__(self, eos: int, prompt: int) -> None:
            self.eos, self.prompt = eos, prompt
            self.last = torch.tensor(Holder.lengths) - 1

        def __call__(self, ids: Any, scores: Any) -> Any:
            scores[:, self.eos] = -torch.inf
            now = self.last == ids.shape[1] - self.prompt
            scores[now] = -torch.inf
            scores[now, self.eos] = 0.0
            return scores

    plain = model_class.generate

    def generate(self: Any, *args: Any, **options: Any) -> Any:
        ids = options["input_ids"] if "input_ids" in options else args[0]
        eos = self.config.eos_token_id
        force = Force(eos[0] if isinstance(eos, list) else eos, ids.shape[1])
        return plain(self, *args, **options, logits_processor=LogitsProcessorList([force]))

    model_class.generate = generate
    return Holder
