"""What another trainer's sampler may do: draw from the whole distribution, and be corrected fairly over lengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BAND: dict[str, Any] = {"c": 0.05}
"""The `mismatch` of an objective whose answers vLLM samples, unless another is given.

A weight of a whole answer that is held in a fixed range, as TRL's and verl's own rules do, is cut more often the longer
the answer is: its logarithm is a sum over tokens, with a standard deviation that grows as sqrt(L).
"""

RULE = (
    "vLLM samples: its mismatch with the trainer is corrected by one weight per answer, masked outside "
    f"exp(± {BAND['c']} sqrt(L)); objective.mismatch changes the rule, null switches it off"
)

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_p": (None, 1), "top_k": (None, 0, -1), "min_p": (None, 0), "typical_p": (None, 1), "top_h": (None,),
    "epsilon_cutoff": (None, 0), "eta_cutoff": (None, 0), "repetition_penalty": (None, 1),
    "presence_penalty": (None, 0), "frequency_penalty": (None, 0),
    "encoder_repetition_penalty": (None, 1), "no_repeat_ngram_size": (None, 0),
    "length_penalty": (None, 1), "logit_bias": (None,), "bad_words": (None,), "bad_words_ids": (None,),
    "allowed_token_ids": (None,), "suppress_tokens": (None,), "begin_suppress_tokens": (None,), "min_tokens": (None, 0),
    "min_new_tokens": (None, 0), "min_length": (None, 0), "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,), "sequence_bias": (None,), "guidance_scale": (None, 1), "penalty_alpha": (None,),
    "num_beams": (None, 1), "do_sample": (None, True), "structured_outputs": (None,), "guided_decoding": (None,),
    "vllm_structured_outputs_regex": (None,), "watermarking_config": (None,), "logits_processors": (None,),
    "remove_invalid_values": (None, False), "renormalize_logits": (None, False, True),
    "override_generation_config": (None,), "repetition_detection": (None,), "best_of": (None, 1),
}  # fmt: skip
"""Settings that change what is sampled, and the values at which they do not."""


def refuse_cut(settings: Mapping[str, Any], where: str = "") -> None:
    """Refuse a setting that makes the sampler draw from another distribution than the one that training computes."""
    for name, value in settings.items():
        if name in NEUTRAL and not any(value == neutral for neutral in NEUTRAL[name]):
            raise ValueError(
                f"{where}{name} = {value!r} is refused in training: the answers would come from another distribution "
                "than the one whose log-probs the ratio is made of; leave it out"
            )
