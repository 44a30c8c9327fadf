"""TRL's AsyncGRPOTrainer without the server and the model that it starts with: its collator and its loss are real."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor


def async_inputs() -> dict[str, Tensor]:
    """What TRL's own collator makes of four completions, two of which share a prompt, for one process."""
    from trl.experimental.async_grpo.async_grpo_trainer import DataCollatorForRollout
    from trl.experimental.async_grpo.packing import TreeRow

    random = torch.Generator().manual_seed(0)
    row = TreeRow()
    for i, length in enumerate((3, 9, 5, 14)):
        prompt = torch.tensor([1, 2, 3 + i // 2])
        completion = torch.randint(5, 30, (length,), generator=random)
        mask = torch.cat([torch.zeros(3), torch.ones(length)])
        mask[4] = 0  # a token that a tool wrote
        old = torch.randn(length + 3, generator=random) * 0.3 - 1.5
        row.add(
            {
                "input_ids": torch.cat([prompt, completion]), "completion_mask": mask, "old_log_probs": old,
                "advantage": (1.0, -0.5, 0.7, -1.2)[i], "group_id": i // 2, "metrics": {},
            }
        )  # fmt: skip
    collator = DataCollatorForRollout(pad_token_id=0)
    inputs: dict[str, Tensor] = collator.torch_call([[row]])
    return inputs


def async_trainer(kind: type) -> Any:
    """A trainer of this class, derived from AsyncGRPOTrainer."""
    from accelerate import Accelerator

    trainer: Any = object.__new__(kind)
    trainer.accelerator, trainer._metrics = Accelerator(cpu=True), {"train": defaultdict(list)}
    trainer.epsilon_low = trainer.epsilon_high = 0.2
    trainer.aux_loss_enabled, trainer.current_gradient_accumulation_steps = False, 2
    for name in ("forward_tokens", "trained_tokens", "seq_len_weighted", "samples", "forward_s"):
        setattr(trainer, f"_step_{name}", 0.0)
    return trainer


def forward(weights: Tensor) -> Callable[..., Any]:
    """A model whose log-probs are a differentiable function of the tokens and of what they predict."""

    def model(input_ids: Tensor, shift_labels: Tensor, **_: Any) -> Any:
        logprobs = -1.5 + weights[input_ids] * weights[shift_labels.clamp(min=0)]
        return SimpleNamespace(log_probs=logprobs, entropy=logprobs.detach() * 0 + 1.0)

    return model


def async_loss(compute: Callable[..., Tensor], inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    weights = (torch.arange(30, dtype=torch.float32) / 20 - 0.5).requires_grad_()
    loss = compute(forward(weights), inputs)
    (gradient,) = torch.autograd.grad(loss, weights)
    return loss.detach(), gradient
