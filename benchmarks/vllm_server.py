"""vLLM's side of `rollout.py`, in a process of its own, so that neither side's threads and allocator are the other's.

The first line on standard input is a JSON object: the model's folder, prompts, answers a prompt, tokens an answer. Each
further line asks for one rollout, answered by the number of tokens drawn and the seconds it took.
"""

from __future__ import annotations

import json
import os
import sys
import time


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints; only replies go to standard output
    from vllm import LLM, SamplingParams, TokensPrompt

    order = json.loads(sys.stdin.readline())
    engine = LLM(
        order["folder"], dtype="float32", enforce_eager=True, max_model_len=512, kv_cache_memory_bytes=2 << 30,
        skip_tokenizer_init=True, disable_log_stats=True,
    )  # fmt: skip
    asked = [TokensPrompt(prompt_token_ids=p) for p in order["prompts"]]
    # Without seeds: a generator for every answer would cost vLLM time that the comparison does not ask for.
    settings = SamplingParams(
        n=order["members"], temperature=1.0, max_tokens=order["limit"], ignore_eos=True, detokenize=False
    )
    for _ in sys.stdin:
        start = time.perf_counter()
        results = engine.generate(asked, settings, use_tqdm=False)
        seconds = time.perf_counter() - start
        print(sum(len(o.token_ids) for r in results for o in r.outputs), seconds, file=replies, flush=True)


if __name__ == "__main__":
    main()
