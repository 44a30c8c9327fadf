"""Chunked log-probs against the full logits and TRL's kernel: time, peak extra memory, gradient error.

    python benchmarks/chunked_logprob.py [--tokens 2048] [--hidden 1024] [--vocabulary 151936] [--repeats 5]

Time is the median of one forward and one backward pass; the methods take turns. Peak memory is the resident high-water
mark of the process (VmHWM, reset before each call) minus the memory resident before the call and minus the two
gradients, which are the result.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from fspo.model.forward import token_logprobs

Method = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _status(key: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {key}")


def full(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (hidden @ weight.t()).log_softmax(-1).gather(1, targets.unsqueeze(1)).squeeze(1)


def ours(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return token_logprobs(hidden, weight, targets)[0]


def trl(width: int | None) -> Method:
    """TRL's kernel with its trainer's own tile width, or with another one."""
    from trl.kernels.chunked_logprob import ChunkedLogProbFunction
    from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE

    columns = width or _CHUNKED_LOGPROB_CHUNK_SIZE
    return lambda h, w, t: ChunkedLogProbFunction.apply(h, w, None, t, 1.0, columns, None, 1.0, ())[0]


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (
        ("tokens", 2048),
        ("hidden", 1024),
        ("vocabulary", 151936),
        ("repeats", 5),
        ("threads", 2),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--trl-width", type=int, help="run TRL's kernel with this tile width as well")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    hidden = torch.randn(args.tokens, args.hidden).requires_grad_()
    weight = (torch.randn(args.vocabulary, args.hidden) * args.hidden**-0.5).requires_grad_()
    targets = torch.randint(args.vocabulary, (args.tokens,))
    upstream = torch.randn(args.tokens)
    logits_mb = args.tokens * args.vocabulary * 4 / 2**20
    results_mb = (hidden.numel() + weight.numel()) * 4 / 2**20

    def run(fn: Method) -> tuple[float, float]:
        hidden.grad = weight.grad = None
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # otherwise freed memory that is still resident would hide the peak
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        start = time.perf_counter()
        fn(hidden, weight, targets).backward(upstream)
        seconds = time.perf_counter() - start
        return seconds, _status("VmHWM") - before - results_mb

    methods = {"full logits": full, "fspo": ours, "trl": trl(None)}
    if args.trl_width:
        methods[f"trl, {args.trl_width}"] = trl(args.trl_width)
    grads, times, peaks = {}, {m: [] for m in methods}, {m: [] for m in methods}
    for repeat in range(args.repeats + 1):
        for name, fn in methods.items():
            seconds, peak = run(fn)
            if repeat == 0:  # the first round is a warm-up; its gradients are compared
                grads[name] = (hidden.grad.clone(), weight.grad.clone())
                continue
            times[name].append(seconds)
            peaks[name].append(peak)
            print(f"repeat {repeat}: {name:12s} {seconds:7.2f} s, peak extra {peak:7.0f} MB", flush=True)
    base = statistics.median(times["full logits"])
    print(f"full logits are {logits_mb:.0f} MB; 5 % is {0.05 * logits_mb:.0f} MB")
    worst = {}
    for name in methods:
        median, peak = statistics.median(times[name]), max(peaks[name])
        errors = [((a - b).norm() / b.norm()).item() for a, b in zip(grads[name], grads["full logits"], strict=True)]
        worst[name] = max(errors)
        print(
            f"{name:12s} {median:7.2f} s  {median / base:5.2f}x  peak extra {peak:7.0f} MB "
            f"({100 * peak / logits_mb:5.1f} %)  gradient error {worst[name]:.1e}"
        )
    mine, theirs = statistics.median(times["fspo"]), statistics.median(times["trl"])
    share = max(peaks["fspo"]) / logits_mb
    for what, value, bar, met in (
        ("peak extra memory over the full logits", f"{share:.1%}", "under 5 %", share < 0.05),
        ("time over the full logits", f"{mine / base:.2f}x", "at most 1.35x", mine <= 1.35 * base),
        ("gradient error", f"{worst['fspo']:.1e}", "at most 1e-5", worst["fspo"] <= 1e-5),
        ("time over TRL's kernel", f"{mine / theirs:.2f}x", "at most 1x", mine <= theirs),
    ):
        print(f"{what}: {value} (bar: {bar}): {'met' if met else 'NOT met'}")


if __name__ == "__main__":
    main()
