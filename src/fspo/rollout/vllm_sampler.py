"""vLLM as the sampler of a run, in a process of its own.

In the trainer's process vLLM would disable `torch.set_num_threads`, seed the global generator and, on a CPU, pin
threads. Its process receives requests through a socket, and weights through a folder in the Hugging Face format, which
every vLLM build loads on every device.
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

from fspo.model.family import dense
from fspo.model.loading import Policy
from fspo.rollout.generate import Rollout, Sampling, check_request
from fspo.rollout.lanes import Watch
from fspo.rollout.vllm_process import SampledAnswer

LAUNCH = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from fspo.rollout.vllm_process import main; main(int(sys.argv[2]))"
)


class VllmSampler:
    """Samples with vLLM from the weights of the last `sync`. A context manager: leaving it ends vLLM."""

    def __init__(self, policy: Policy, cache_gib: float, log: Path, *, logprobs: bool = False) -> None:
        """With `logprobs`, rollouts carry vLLM's own log-probs, which `objective.mismatch` needs."""
        self.eos_ids, self.context, self.log, self.logprobs = policy.eos_ids, policy.context, log, logprobs
        self._scratch = tempfile.TemporaryDirectory(prefix="fspo-vllm-")
        save_merged(policy, self._scratch.name)
        self._connection, self._process = _launch(log)
        settings = {
            "model": self._scratch.name,
            "dtype": str(next(policy.model.parameters()).dtype).removeprefix("torch."),
            "kv_cache_memory_bytes": int(cache_gib * 2**30),
        }
        try:
            self._request("start", settings)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End vLLM and remove the folder of weights."""
        self._connection.close()  # this ends the process
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._scratch.cleanup()

    def sync(self, policy: Policy) -> None:
        """Sample with the policy's current weights from now on."""
        save_merged(policy, self._scratch.name)
        self._request("load", self._scratch.name)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        *,
        max_new_tokens: int,
        temperature: float,
        seed: int,
        places: Sequence[int] | None = None,
        watch: Watch | None = None,
    ) -> Rollout:
        """Sample `n` answers per prompt, each with its own seed: a run on the same machine is repeatable.

        `places` are all of them: with vLLM a run has one process. It returns all answers at once, so `watch` is not
        called.
        """
        Sampling(temperature).check(evaluation=False)
        ids, group = check_request(prompts, n, max_new_tokens, self.context)
        answers = self.answers(
            ids, group, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed, logprobs=self.logprobs
        )
        logprobs = [a["logprobs"] for a in answers] if self.logprobs else None
        return Rollout(ids, [a["tokens"] for a in answers], group, [a["finished"] for a in answers], logprobs)

    def answers(
        self,
        prompts: list[list[int]],
        group: list[int],
        *,
        max_new_tokens: int,
        temperature: float,
        seed: int,
        logprobs: bool = False,
    ) -> list[SampledAnswer]:
        """One answer per entry of `group`, the index of its prompt; `logprobs` are at the sampling temperature."""
        seeds = torch.randint(2**62, (len(group),), generator=torch.Generator().manual_seed(seed))
        settings = {
            "temperature": temperature, "max_tokens": max_new_tokens, "stop_token_ids": list(self.eos_ids),
            "logprobs": 0 if logprobs else None,
        }  # fmt: skip
        answers: list[SampledAnswer] = self._request("generate", prompts, group, seeds.tolist(), settings)
        return answers

    def _request(self, name: str, *arguments: Any) -> Any:
        try:
            self._connection.send((name, arguments))
            reply, problem = self._connection.recv()
        except (EOFError, OSError):
            reply, problem = None, "its process ended"
        if problem is not None:
            raise RuntimeError(f"vLLM failed to {name}: {problem} (more in {self.log})")
        return reply


def save_merged(policy: Policy, folder: str | Path) -> None:
    """Write the whole model for another engine, with LoRA's products added to the weights that they adapt.

    The sums are copies: merging in place and undoing it would leave rounding errors in the frozen weights.
    """
    base = policy.base()
    with torch.no_grad():
        base.save_pretrained(folder, state_dict=None if base is policy.model else _merged(base))


def _merged(base: Any) -> dict[str, Tensor]:
    state: dict[str, Tensor] = base.state_dict()
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
            start_new_session=True,  # Ctrl-C in the terminal must reach the trainer only
            env={**os.environ, **environment(torch.get_num_threads())},
        )
    return Connection(ours.detach()), process


def environment(threads: int) -> dict[str, str]:
    """The environment variables of the vLLM process."""
    return {
        "OMP_NUM_THREADS": str(threads),
        # Trainer and vLLM compute in turns on the same cores, so threads are not pinned.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # The model runs in the process itself, not in another one that polls while it waits.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_HOST_IP": "127.0.0.1",  # one process: no network is needed
        "VLLM_NO_USAGE_STATS": "1",
    }
