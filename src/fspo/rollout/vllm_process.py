"""The process that runs vLLM: starts it, loads weights and samples, on requests of `vllm_sampler`."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypedDict


class SampledAnswer(TypedDict):
    """One sampled answer."""

    tokens: list[int]
    finished: bool
    logprobs: list[float]  # vLLM's own, one per token; empty unless requested


def main(fd: int) -> None:
    """Serve requests until the trainer closes the connection or dies."""
    connection = Connection(fd)
    engine = VllmEngine()
    requests: dict[str, Callable[..., Any]] = {
        "start": engine.start,
        "load": engine.load,
        "generate": engine.generate,
    }
    while True:
        try:
            request, arguments = connection.recv()
        except EOFError:
            return
        reply, problem = None, None
        try:
            reply = requests[request](*arguments)
        except Exception as error:
            traceback.print_exc()  # into the log
            problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
        try:
            connection.send((reply, problem))
        except BrokenPipeError:
            return


class VllmEngine:
    """vLLM with one model."""

    def start(self, settings: dict[str, Any]) -> None:
        from vllm import LLM
        from vllm.platforms import current_platform

        self.cpu = current_platform.is_cpu()
        self.llm = LLM(
            **settings,
            skip_tokenizer_init=True,  # prompts and answers are token ids
            generation_config="vllm",  # not the model's own, which may truncate the distribution
            logprobs_mode="processed_logprobs",  # at the sampling temperature, as the trainer computes them
            max_model_len=-1,  # the longest that fits into memory
            enforce_eager=self.cpu,
            disable_log_stats=True,
        )

    def load(self, folder: str) -> None:
        """Replace the weights, and drop the cache that was computed with the old ones."""
        self.llm.collective_rpc("reload_weights", kwargs={"weights_path": folder})
        if self.cpu:
            self.llm.apply_model(_pack_head)
        self.llm.reset_prefix_cache()

    def generate(
        self, prompts: list[list[int]], group: list[int], seeds: list[int], settings: dict[str, Any]
    ) -> list[SampledAnswer]:
        """One answer per entry of `group`, the index of its prompt, each with its own seed."""
        from vllm import SamplingParams, TokensPrompt

        # Only the trainer's end tokens stop an answer: vLLM's own are ignored.
        each = [SamplingParams(**settings, seed=s, ignore_eos=True, detokenize=False) for s in seeds]
        asked = [TokensPrompt(prompt_token_ids=prompts[g]) for g in group]
        outputs = [result.outputs[0] for result in self.llm.generate(asked, each, use_tqdm=False)]
        return [
            SampledAnswer(
                tokens=list(output.token_ids), finished=output.finish_reason == "stop", logprobs=_logprobs(output)
            )
            for output in outputs
        ]


def _logprobs(output: Any) -> list[float]:
    """The log-prob of each sampled token; empty if none were requested."""
    if output.logprobs is None:
        return []
    return [step[token].logprob for step, token in zip(output.logprobs, output.token_ids, strict=True)]


def _pack_head(model: Any) -> None:
    """Renew the repacked copy of a tied head.

    On a CPU vLLM multiplies by repacked copies of the weights, and reloading renews the copy of a layer only if the
    checkpoint contains that layer's weight. A tied head has none of its own and would keep its old copy.
    """
    head = getattr(model, "lm_head", None)
    if head is not None and hasattr(head, "quant_method"):
        head.quant_method.process_weights_after_loading(head)
