"""The vLLM part of `rollout.py`, in its own process, so that it shares neither threads nor allocator with fspo.

The first line on standard input is a JSON object: the model's folder, prompts, and the longest prompt with its
completion. Each further line requests one rollout: a JSON list of the length of each completion, those of a prompt next
to each other. The reply is the number of tokens drawn and the seconds it took.
"""

from __future__ import annotations

import json
import os
import sys
import time


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints to standard output, which is kept for replies
    from vllm import LLM, SamplingParams, TokensPrompt

    order = json.loads(sys.stdin.readline())
    engine = LLM(
        order["folder"], dtype="float32", enforce_eager=True, max_model_len=order["positions"],
        kv_cache_memory_bytes=2 << 30, skip_tokenizer_init=True, disable_log_stats=True,
    )  # fmt: skip
    prompts = order["prompts"]
    for line in sys.stdin:
        lengths = json.loads(line)
        members = len(lengths) // len(prompts)
        asked = [TokensPrompt(prompt_token_ids=p) for p in prompts for _ in range(members)]
        # Without seeds: one generator per completion would slow vLLM down, and the comparison does not need it.
        settings = [SamplingParams(temperature=1.0, max_tokens=n, ignore_eos=True, detokenize=False) for n in lengths]
        start = time.perf_counter()
        results = engine.generate(asked, settings, use_tqdm=False)
        seconds = time.perf_counter() - start
        print(sum(len(o.token_ids) for r in results for o in r.outputs), seconds, file=replies, flush=True)


if __name__ == "__main__":
    main()
