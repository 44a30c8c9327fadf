"""The process that holds vLLM: starts it, loads weights into it, and samples, as `vllm_sampler` orders."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


def main(fd: int) -> None:
    """Serve orders until the trainer closes the connection or dies."""
    connection = Connection(fd)
    engine = Engine()
    orders: dict[str, Callable[..., Any]] = {"start": engine.start, "load": engine.load, "generate": engine.generate}
    while True:
        try:
            order, arguments = connection.recv()
        except EOFError:
            return
        answer, problem = None, None
        try:
            answer = orders[order](*arguments)
        except Exception as error:
            traceback.print_exc()  # into the log
            problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
        try:
            connection.send((answer, problem))
        except BrokenPipeError:
            return


class Engine:
    def start(self, settings: dict[str, Any]) -> None:
        from vllm import LLM
        from vllm.platforms import current_platform

        self.cpu = current_platform.is_cpu()
        self.llm = LLM(
            **settings,
            skip_tokenizer_init=True,  # prompts and answers are token ids
            generation_config="vllm",  # not the model's own, which may cut the distribution
            logprobs_mode="processed_logprobs",  # at the temperature, as the trainer takes them
            max_model_len=-1,  # the longest that fits
            enforce_eager=self.cpu,
            disable_log_stats=True,
        )

    def load(self, folder: str) -> None:
        """New weights in the place of the old, and nothing kept that was computed with those."""
        self.llm.collective_rpc("reload_weights", kwargs={"weights_path": folder})
        if self.cpu:
            self.llm.apply_model(_pack_head)
        self.llm.reset_prefix_cache()

    def generate(
        self, prompts: list[list[int]], group: list[int], seeds: list[int], settings: dict[str, Any]
    ) -> list[dict[str, Any]]:
        from vllm import SamplingParams, TokensPrompt

        # The trainer's end tokens and no others: vLLM's own idea of the end is switched off.
        each = [SamplingParams(**settings, seed=s, ignore_eos=True, detokenize=False) for s in seeds]
        asked = [TokensPrompt(prompt_token_ids=prompts[g]) for g in group]
        outputs = [result.outputs[0] for result in self.llm.generate(asked, each, use_tqdm=False)]
        return [
            {
                "tokens": list(output.token_ids),
                "finished": output.finish_reason == "stop",
                "logprobs": output.logprobs
                and [step[t].logprob for step, t in zip(output.logprobs, output.token_ids, strict=True)],
            }
            for output in outputs
        ]


def _pack_head(model: Any) -> None:
    """On a CPU vLLM multiplies by repacked copies of weights, and reloading renews the copy of a layer only when the
    checkpoint names that layer's weight. A tied head has none of its own, so it would go on with its old copy."""
    head = getattr(model, "lm_head", None)
    if head is not None and hasattr(head, "quant_method"):
        head.quant_method.process_weights_after_loading(head)
