"""vLLM as the sampler of a run, in a process of its own.

Imported into the trainer, vLLM would replace `torch.set_num_threads` by nothing, seed the global generator and, on a
CPU, pin threads. The child gets its orders through a socket, and the weights through a folder in the Hugging Face
format, which any vLLM build loads on any device.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from fspo.local.family import dense
from fspo.local.models import Policy
from fspo.local.rollout import Rollout, Sampling, check_request

LAUNCH = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from fspo.local.vllm_process import main; main(int(sys.argv[2]))"
)


class VllmSampler:
    """Samples with vLLM under the weights of the last `sync`. Use as a context: leaving it ends vLLM."""

    def __init__(self, policy: Policy, cache_gib: float, log: Path) -> None:
        self.eos_ids, self.log = policy.eos_ids, log
        self._scratch = tempfile.TemporaryDirectory(prefix="fspo-vllm-")
        save_merged(policy, self._scratch.name)
        self._connection, self._process = _launch(log)
        settings = {
            "model": self._scratch.name,
            "dtype": str(next(policy.model.parameters()).dtype).removeprefix("torch."),
            "kv_cache_memory_bytes": int(cache_gib * 2**30),
        }
        try:
            self._ask("start", settings)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()  # the child takes this as the order to end
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._scratch.cleanup()

    def sync(self, policy: Policy) -> None:
        save_merged(policy, self._scratch.name)
        self._ask("load", self._scratch.name)

    def generate(
        self, prompts: Sequence[Sequence[int]], n: int, *, max_new_tokens: int, temperature: float, seed: int
    ) -> Rollout:
        """Draw `n` answers a prompt, each from its own seed: a run on the same machine is repeatable."""
        Sampling(temperature).check(evaluation=False)
        ids, group = check_request(prompts, n, max_new_tokens)
        answers = self.answers(ids, group, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
        return Rollout(ids, [a["tokens"] for a in answers], group, [a["finished"] for a in answers])

    def answers(
        self,
        prompts: list[list[int]],
        group: list[int],
        *,
        max_new_tokens: int,
        temperature: float,
        seed: int,
        logprobs: bool = False,
    ) -> list[dict[str, Any]]:
        """Tokens of each answer, whether it ended, and, if wanted, vLLM's own log-probs at the temperature."""
        seeds = torch.randint(2**62, (len(group),), generator=torch.Generator().manual_seed(seed))
        settings = {
            "temperature": temperature, "max_tokens": max_new_tokens, "stop_token_ids": list(self.eos_ids),
            "logprobs": 0 if logprobs else None,
        }  # fmt: skip
        return self._ask("generate", prompts, group, seeds.tolist(), settings)

    def _ask(self, order: str, *arguments: Any) -> Any:
        try:
            self._connection.send((order, arguments))
            answer, problem = self._connection.recv()
        except (EOFError, OSError):
            answer, problem = None, "its process ended"
        if problem is not None:
            raise RuntimeError(f"vLLM failed to {order}: {problem} (more in {self.log})")
        return answer


def save_merged(policy: Policy, folder: str | Path) -> None:
    """Write the whole model for another engine: LoRA's products are added to the weights they adapt.

    The sums are copies: merging in place and taking it back would leave rounding errors in the frozen weights.
    """
    base = policy.base()
    with torch.no_grad():
        base.save_pretrained(folder, state_dict=None if base is policy.model else _merged(base))


def _merged(base: Any) -> dict[str, Tensor]:
    state = base.state_dict()
    for name, module in base.named_modules():
        if hasattr(module, "base_layer"):
            for key in [key for key in state if key.startswith(f"{name}.")]:
                del state[key]
            weight, bias = dense(module)
            state[f"{name}.weight"] = weight
            if bias is not None:
                state[f"{name}.bias"] = bias
    return state


def _launch(log: Path) -> tuple[Connection, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair()
    with theirs, log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, json.dumps(sys.path), str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C in the terminal is for the trainer
            env={**os.environ, **environment(torch.get_num_threads())},
        )
    return Connection(ours.detach()), process


def environment(threads: int) -> dict[str, str]:
    """What vLLM reads from the environment, before its process starts."""
    return {
        "OMP_NUM_THREADS": str(threads),
        # Trainer and vLLM compute in turns on the same cores: nothing is pinned.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # The model lives in the child itself, not in a grandchild that polls while it waits.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_HOST_IP": "127.0.0.1",  # one process: nothing listens to the network
        "VLLM_NO_USAGE_STATS": "1",
    }
