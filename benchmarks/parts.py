"""The parts of a step, each alone: the loss, the log-probs of a batch and of its tokens, and single operations.

    python benchmarks/parts.py objectives     every objective, forward and backward on (512, 4096) float32
    python benchmarks/parts.py forward        fspo's packed forward against the padded one that TRL uses
    python benchmarks/parts.py logprobs       chunked log-probs against the full logits and TRL's kernel
    python benchmarks/parts.py operations     where the time of a step goes, and the speed of matrix products
    python benchmarks/parts.py overhead       records in a plain loop, and losses inside verl against verl's own GSPO

- objectives: a ratio to the plain loss `(exp(lp - old) * A * mask).sum()`, timed right before each objective; medians.
  Then the packed form of each against its padded form.
  tests/objectives/test_cost.py has the memory.
- forward: the work of one update, half of the rollout, gradients of a weighted sum of log-probs. The padded version
  pads prompts on the left and completions on the right, keeps only the logits of the completions, and processes
  `--rows` sequences at a time (0: all).
- logprobs: the median of one forward and one backward pass; the methods take turns. Peak memory is the resident
  high-water mark of the process (VmHWM, reset before each call) minus the memory resident before the call and minus the
  two gradients, which are the result.
- operations: one thread, 64 completions of up to 128 tokens of counting chains, every row computed. --model may be the
  folder that `vs_trl.py --case tiny` makes. Printed are the operations with the largest share of the updates' and of
  the rollout's time (torch.profiler), and the speed of products of N tokens.
- overhead: four updates on 128 completions (mean 57 tokens) of a model of 4 layers of width 128, with --smol also of
  SmolLM2-135M, in micro-batches of --budget tokens; the sides take turns. Medians of a step's processor time over the
  repeats and of its peak memory, as ratios to the same step with verl's GSPO or with GSPO in plain PyTorch.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
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
from fspo.model.forward import logprobs, token_logprobs  # noqa: E402
from fspo.model.loading import Policy  # noqa: E402
from workloads import COUNT, Ours, batch, policies, settings  # noqa: E402

# --- the loss ---------------------------------------------------------------------------------------------------------

B, T = 512, 4096
SEQUENCE_LEVEL = ("fspo", "fspo_adaptive", "gspo", "luspo", "rloo")


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
    print(f"{'objective':>16}  {'time / plain':>12}  {'bar':>4}")
    for name, ratio in measure(arguments.repeats).items():
        bar = "" if name == "plain" else "1.2" if name in SEQUENCE_LEVEL else "3.0"
        print(f"{name:>16}  {ratio:>12.2f}  {bar:>4}")
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
        print(f"{name:>16}  {statistics.median(times):>12.2f}   1.2", flush=True)


# --- log-probs of a batch ---------------------------------------------------------------------------------------------


def packed(policy: Policy, work: Answers, weights: torch.Tensor, budget: int) -> float:
    loss = 0.0
    for micro, indices in split(work, budget):
        out = logprobs(policy, micro)
        part = (out.logprobs * weights[indices].unsqueeze(1)).sum()
        part.backward()
        loss += part.item()
    return loss


def padded(policy: Policy, work: Answers, weights: torch.Tensor, rows: int) -> float:
    prompts = [work.prompts[g] for g in work.group]
    p_max, c_max = max(map(len, prompts)), max(work.lengths)
    pad = policy.eos_ids[0]
    ids = torch.tensor(
        [
            [pad] * (p_max - len(p)) + list(p) + list(c) + [pad] * (c_max - len(c))
            for p, c in zip(prompts, work.completions, strict=True)
        ]
    )
    mask = torch.tensor(
        [
            [0] * (p_max - len(p)) + [1] * (len(p) + len(c)) + [0] * (c_max - len(c))
            for p, c in zip(prompts, work.completions, strict=True)
        ]
    )
    loss = 0.0
    step = rows or len(work)
    for a in range(0, len(work), step):
        i, m = ids[a : a + step], mask[a : a + step]
        logits = policy.model(i, attention_mask=m, logits_to_keep=c_max + 1, use_cache=False).logits[:, :-1]
        targets = i[:, -c_max:].unsqueeze(-1)
        logp = logits.gather(-1, targets).squeeze(-1) - logits.logsumexp(-1)
        part = (logp * m[:, -c_max:] * weights[a : a + step].unsqueeze(1)).sum()
        part.backward()
        loss += part.item()
    return loss


def forward(args: argparse.Namespace) -> None:
    """Packed against padded log-probs, forward and backward."""
    for work, policy in policies(args.smol):
        whole = batch(work, policy)
        half = whole.select(range(len(whole) // 2))
        weights = torch.randn(len(half), generator=torch.Generator().manual_seed(0))
        runs = {
            "fspo": lambda h=half, w=weights, p=policy: packed(p, h, w, args.budget),
            "padded": lambda h=half, w=weights, p=policy: padded(p, h, w, args.rows),
        }
        times: dict[str, list[float]] = {name: [] for name in runs}
        for repeat in range(args.repeats + 1):
            for name, run in runs.items():
                policy.model.zero_grad()
                start = time.perf_counter()
                loss = run()
                if repeat:
                    times[name].append(time.perf_counter() - start)
                else:
                    print(f"{work.name}: {name} loss {loss:.4f}")
        ours, theirs = (statistics.median(times[n]) for n in ("fspo", "padded"))
        print(
            f"{work.name}: {half.tokens} completion tokens; fspo {ours:.3f} s "
            f"({half.tokens / ours:.0f} tokens/s), "
            f"padded {theirs:.3f} s ({half.tokens / theirs:.0f} tokens/s): {theirs / ours:.2f}x"
        )


# --- log-probs of tokens ----------------------------------------------------------------------------------------------

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


def logprobs_of_tokens(args: argparse.Namespace) -> None:
    """Chunked log-probs against the full logits and TRL's kernel."""
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


# --- operations -------------------------------------------------------------------------------------------------------

SHAPES = ((128, 128), (128, 384), (384, 128))  # inputs and outputs of the layers of a tiny 4x128 model
TOKENS = (1024, 2350, 4700)


def shares(work: Callable[[], object], most: int = 8) -> list[tuple[str, float]]:
    """The operations with the largest share of the time of `work`."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        work()
    rows = sorted(profiled.key_averages(), key=lambda row: row.self_cpu_time_total, reverse=True)
    total = sum(row.self_cpu_time_total for row in rows)
    return [(row.key, row.self_cpu_time_total / total) for row in rows[:most]]


def speed(rows: int, inner: int, columns: int) -> float:
    """GFLOP/s of a product, the best of 12 in CPU time."""
    import torch

    a, b = torch.randn(rows, inner), torch.randn(inner, columns)
    seconds = []
    for _ in range(13):
        start = time.process_time()
        for _ in range(3):
            a @ b
        seconds.append((time.process_time() - start) / 3)
    return 2e-9 * rows * inner * columns / min(seconds[1:])


def operations(args: argparse.Namespace) -> None:
    """The operations that take the time of a step, and the speed of products."""
    from fspo.training.collect import collect

    side = Ours(settings(args.model, COUNT, 8, 8, 128, token_budget=16384, all_rows=True), threads=1)

    def rollout() -> object:
        return collect(side.policy, side.task, side.scorer, side.config, 1, 0, side.team)

    side.step()  # not counted
    experience, _ = collect(side.policy, side.task, side.scorer, side.config, 1, 0, side.team)
    for name, work in (("updates", lambda: side.learner.learn(experience, 2)), ("rollout", rollout)):
        print(f"{name}: " + ", ".join(f"{key} {100 * share:.0f} %" for key, share in shares(work)))
    for n in TOKENS:
        speeds = ", ".join(f"{i} to {o}: {speed(n, i, o):.0f}" for i, o in SHAPES)
        print(f"products of {n} tokens, GFLOP/s on one core: {speeds}; weights' gradient {speed(128, n, 384):.0f}")
    print(f"product of 2,048 x 2,048: {speed(2048, 2048, 2048):.0f}")


# --- records and losses inside a step ---------------------------------------------------------------------------------


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

    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for repeat in range(args.repeats + 1):  # the first is a warm-up
        for name, loss in sides.items():
            print(f"{title}: repeat {repeat} of {args.repeats}: {name}", file=sys.stderr, flush=True)
            found[name].append(step(loss))
    for name, measured in found.items():
        first = "plain loop" if name.startswith("plain") else "verl, gspo"
        pairs = list(zip(measured, found[first], strict=True))[1:]
        times, peaks = (statistics.median(own[k] / base[k] for own, base in pairs) for k in (0, 1))
        median = statistics.median(own[0] for own, _ in pairs)
        print(f"{title}: {name:24} {median:7.3f} s, {times:.3f}x the time and {peaks:.3f}x the memory of {first}")
    step_of_loop = statistics.median(seconds for seconds, _ in found["plain loop"][1:])
    share = sum(recording) / (args.repeats + 1) / step_of_loop
    print(f"{title}: the calls of the recorder took {share:.2%} of the plain loop's processor time")


PARTS = {
    "objectives": objectives, "forward": forward, "logprobs": logprobs_of_tokens, "operations": operations,
    "overhead": overhead,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--smol", help="forward, overhead: folder of SmolLM2-135M in safetensors")
    parser.add_argument("--budget", type=int, default=4096, help="forward, overhead: tokens per packed micro-batch")
    parser.add_argument("--rows", type=int, default=0, help="forward: sequences per padded micro-batch; 0: all")
    for name, default in (("tokens", 2048), ("hidden", 1024), ("vocabulary", 151936)):
        parser.add_argument(f"--{name}", type=int, default=default, help="logprobs")
    parser.add_argument("--trl-width", type=int, help="logprobs: run TRL's kernel with this tile width as well")
    parser.add_argument("--model", default="tiny:4x128", help="operations: a model")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{args.part}, {args.repeats} repeats", flush=True)
    PARTS[args.part](args)


if __name__ == "__main__":
    main()
