"""The parts of a step, each alone: the loss, and records and losses inside a step.

    python benchmarks/parts.py objectives     every objective, forward and backward on (512, 4096) float32
    python benchmarks/parts.py overhead       records in a plain loop, and losses inside verl against verl's own GSPO

- objectives: a ratio to the plain loss `(exp(lp - old) * A * mask).sum()`, timed right before each objective; medians.
  Then the packed form of each against its padded form.
  tests/objectives/test_cost.py has the memory.
- overhead: four updates on 128 completions (mean 57 tokens) of a model of 4 layers of width 128, with --smol also of
  SmolLM2-135M, in micro-batches of --budget tokens; the sides take turns. Medians of a step's time over the repeats and
  of its peak memory, as ratios to the same step with verl's GSPO or with GSPO in plain PyTorch.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fspo import runtime

runtime.prepare()

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

import fspo  # noqa: E402
from fspo.model.answers import Answers, split  # noqa: E402
from fspo.model.forward import logprobs  # noqa: E402
from fspo.model.loading import Policy  # noqa: E402
from workloads import batch, policies  # noqa: E402

# --- the loss ---------------------------------------------------------------------------------------------------------

B, T = 512, 4096


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    old = -torch.rand(B, T, generator=g)
    logprobs = (old + 0.02 * torch.randn(B, T, generator=g)).requires_grad_()
    lengths = torch.randint(T // 8, T + 1, (B, 1), generator=g)
    return logprobs, old, torch.randn(B, generator=g), torch.arange(T) < lengths


def plain(logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    return (torch.exp(logprobs - old) * advantages.unsqueeze(-1) * mask).sum()


def seconds(loss: Callable[[], Tensor], logprobs: Tensor) -> float:
    logprobs.grad = None
    start = time.perf_counter()
    loss().backward()
    return time.perf_counter() - start


def measure(rounds: int) -> dict[str, float]:
    """Time ratio by objective."""
    batch = inputs()
    losses: dict[str, Callable[[], Tensor]] = {"plain": lambda: plain(*batch)}
    for name in fspo.objectives.names():
        objective = fspo.objectives.get(name)
        losses[name] = lambda objective=objective: objective(*batch).loss
    for loss in losses.values():
        seconds(loss, batch[0])
    ratios: dict[str, list[float]] = {name: [] for name in losses}
    for k in range(rounds):
        print(f"round {k + 1} of {rounds}", file=sys.stderr, flush=True)
        for name, loss in losses.items():
            base = seconds(losses["plain"], batch[0])
            ratios[name].append(seconds(loss, batch[0]) / base)
    return {name: statistics.median(r) for name, r in ratios.items()}


def objectives(arguments: argparse.Namespace) -> None:
    """Time of every objective against the plain loss."""
    print(f"forward + backward on ({B}, {T}) float32, {arguments.threads} threads, {arguments.repeats} rounds")
    print(f"{'objective':>16}  {'time / plain':>12}", flush=True)
    for name, ratio in measure(arguments.repeats).items():
        print(f"{name:>16}  {ratio:>12.2f}")
    print("\n100,000 tokens of 100 responses without padding, packed against padded")
    new, old, A, _ = (x[:100, :1000].detach() if x.dim() == 2 else x[:100] for x in inputs())
    new = new.clone().requires_grad_()
    ends, full = torch.arange(101) * 1000, torch.ones(100, 1000, dtype=torch.bool)
    for name in fspo.objectives.names():
        objective, times = fspo.objectives.get(name), []
        for _ in range(2 * arguments.repeats):
            base = seconds(lambda objective=objective: objective(new, old, A, full).loss, new)
            flat = lambda objective=objective: objective(new.flatten(), old.flatten(), A, cu_seqlens=ends).loss  # noqa: E731
            times.append(seconds(flat, new) / base)
        print(f"{name:>16}  {statistics.median(times):>12.2f}", flush=True)


# --- records and losses inside a step ---------------------------------------------------------------------------------


def _status(key: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {key}")


def gspo(logprobs: Tensor, old: Tensor, A: Tensor, mask: Tensor) -> Tensor:
    ratio = (((logprobs - old) * mask).sum(-1) / mask.sum(-1)).exp()
    return -torch.min(ratio * A, ratio.clamp(1 - 3e-4, 1 + 4e-4) * A).mean()


def verl_loss(name: str, records: str | None, rows: int) -> Callable[..., Tensor]:
    """GSPO by verl, or by this package as `fspo`: called as verl's actor does, for an update of so many rows."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import ActorConfig

    from fspo.engines.verl import PolicyLoss

    own: dict[str, object] = {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4} if name != "fspo" else {}
    if name != "gspo":
        objective = {"name": "gspo"} if name == "fspo" else {}
        own["policy_loss"] = PolicyLoss(loss_mode=name, objective=objective, updates=4, records=records)
    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **own)

    def loss(logprobs: Tensor, old: Tensor, A: Tensor, mask: Tensor) -> Tensor:
        config.global_batch_info.update(dp_size=1, batch_num_tokens=rows * 57, global_batch_size=rows)
        value: Tensor = get_policy_loss_fn(name)(
            old_log_prob=old, log_prob=logprobs, advantages=A.unsqueeze(-1) * mask, response_mask=mask,
            loss_agg_mode="token-mean" if name == "fspo" else "seq-mean-token-mean", config=config,
        )[0]  # fmt: skip
        return value

    return loss


def overhead(args: argparse.Namespace) -> None:
    """A step with records, and with the losses of the verl plug-in, against the same step without."""
    with tempfile.TemporaryDirectory() as scratch:
        for work, policy in policies(args.smol):
            _overhead(work.name, policy, batch(work, policy), f"{scratch}/{work.name}", args)


def _overhead(title: str, policy: Policy, whole: Answers, folder: str, args: argparse.Namespace) -> None:
    parts = split(whole, args.budget)
    with torch.no_grad():
        old = [logprobs(policy, micro).logprobs for micro, _ in parts]
    A = torch.randn(len(whole), generator=torch.Generator().manual_seed(0))
    recorder = fspo.Recorder(f"{folder}/loop", rule="gspo", updates=4, parts=len(parts))
    recording: list[float] = []  # processor time of each call

    def recorded(*tensors: Tensor) -> Tensor:
        start = time.thread_time()
        recorder.record(*tensors)
        recording.append(time.thread_time() - start)
        return gspo(*tensors)

    sides: dict[str, Callable[..., Tensor]] = {"plain loop": gspo, "plain loop, recorded": recorded}
    for name in ("gspo", "fspo", "fspo.measure:gspo") if importlib.util.find_spec("verl") else ():
        sides[f"verl, {name}"] = verl_loss(name, f"{folder}/{name}", len(whole))
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=1e-6)

    def step(loss: Callable[..., Tensor]) -> tuple[float, float]:
        """Seconds of processor time and the largest resident memory of four updates."""
        Path("/proc/self/clear_refs").write_text("5")
        start = time.process_time()
        for _ in range(4):
            optimizer.zero_grad()
            for (micro, rows), before in zip(parts, old, strict=True):
                out = logprobs(policy, micro)
                loss(out.logprobs, before, A[rows], out.mask).backward()
            optimizer.step()
        return time.process_time() - start, _status("VmHWM")

    costs: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for repeat in range(args.repeats + 1):  # the first is a warm-up
        for name, loss in sides.items():
            print(f"{title}: repeat {repeat} of {args.repeats}: {name}", file=sys.stderr, flush=True)
            costs[name].append(step(loss))
    for name, measured in costs.items():
        first = "plain loop" if name.startswith("plain") else "verl, gspo"
        pairs = list(zip(measured, costs[first], strict=True))[1:]
        times, peaks = (statistics.median(own[k] / base[k] for own, base in pairs) for k in (0, 1))
        median = statistics.median(own[0] for own, _ in pairs)
        print(f"{title}: {name:24} {median:7.3f} s, {times:.3f}x the time and {peaks:.3f}x the memory of {first}")
    step_of_loop = statistics.median(seconds for seconds, _ in costs["plain loop"][1:])
    share = sum(recording) / (args.repeats + 1) / step_of_loop
    print(f"{title}: the calls of the recorder took {share:.2%} of the plain loop's processor time")


PARTS = {"objectives": objectives, "overhead": overhead}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--smol", help="overhead: folder of SmolLM2-135M in safetensors")
    parser.add_argument("--budget", type=int, default=4096, help="overhead: tokens per packed micro-batch")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{args.part}, {args.repeats} repeats", flush=True)
    PARTS[args.part](args)


if __name__ == "__main__":
    main()
