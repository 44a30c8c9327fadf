"""The processes of a run as one team: how they share the work, how they are started, and what each executes (`main`).

Every process holds the whole model, the whole rollout and the same optimiser. Each samples and scores its share of the
prompts and differentiates its share of every minibatch; answers, log-ratios and gradients are exchanged, so that all
take the same optimiser step. Only the main process, the first, writes, prints and saves. `Team` is one process, which
has nothing to exchange; `ProcessTeam` is several, by torch.distributed.

The command's own process is the main one and starts the others, which end with it: its end closes their standard input.
When another process ends, the main process says which and how at the next exchange, and stops.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import accumulate, chain, zip_longest
from pathlib import Path
from typing import IO, Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from fspo import runtime, settings
from fspo.config import TrainConfig, names_in

T = TypeVar("T")
_NOTHING = object()

PATIENCE = timedelta(hours=6)  # for one exchange: the slowest process may have hours of sampling left
GRACE = 5.0  # seconds to wait for another process's exit code
POLL = 0.05
LOST_MAIN = 75  # exit code of a process that ended only because another had


class ProcessEndedError(ValueError):
    """A process of the run has ended before the run; the message says which and how."""


class Team:
    """One process."""

    rank = 0
    size = 1

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes, prints and saves."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """The values of all processes, in their order."""
        return [value]

    def broadcast(self, value: T) -> T:
        """The main process's value."""
        return self.gather(value)[0]

    def total(self, values: list[float]) -> list[float]:
        """Each number, summed over the processes."""
        return [sum(numbers) for numbers in zip(*self.gather(values), strict=True)]

    def sum_gradients(self, weights: Sequence[torch.nn.Parameter]) -> None:
        """Replace each gradient by its sum over the processes. A weight that has none anywhere keeps none."""

    def scatter(self, items: Sequence[T]) -> list[T]:
        """The items of this process: every `size`-th, for work whose size is not known yet."""
        return list(items[self.rank :: self.size])

    def unscatter(self, own: list[T]) -> list[T]:
        """The items of all processes, in the order that they had before `scatter`."""
        rounds = zip_longest(*self.gather(own), fillvalue=_NOTHING)
        return [item for item in chain.from_iterable(rounds) if item is not _NOTHING]  # type: ignore[misc]

    def share(self, costs: Sequence[float]) -> range:
        """The indices of this process in a list: neighbours, of about the same cost for each process."""
        ends, total = list(accumulate(costs)), sum(costs)
        owner = [int(self.size * (end - cost / 2) / total) for end, cost in zip(ends, costs, strict=True)]
        return range(sum(k < self.rank for k in owner), sum(k <= self.rank for k in owner))


class ProcessTeam(Team):
    """Several processes, with torch.distributed set up; `lost` is called when another process has ended."""

    def __init__(self, lost: Callable[[], None] = lambda: None) -> None:
        self._lost = lost
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def gather(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.size
        with self._exchange():
            dist.all_gather_object(values, value)
        return values

    def sum_gradients(self, weights: Sequence[torch.nn.Parameter]) -> None:
        # One buffer: all gradients, then for each weight whether it has one.
        parts = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
        has = torch.tensor([w.grad is not None for w in weights], dtype=parts[0].dtype)
        buffer = torch.cat([part.reshape(-1) for part in [*parts, has]])
        with self._exchange():
            dist.all_reduce(buffer)
        *sums, counts = buffer.split([*(w.numel() for w in weights), len(weights)])
        for weight, total, count in zip(weights, sums, counts.tolist(), strict=True):
            weight.grad = total.view_as(weight) if count else None

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError:  # torch.distributed's, where a connection is closed
            self._lost()
            raise


# --- how many ---------------------------------------------------------------------------------------------------------


def chosen(config: TrainConfig) -> int:
    """How many processes a run has: as configured, or for 0 what suits the model and the machine."""
    alone = _alone(config)
    if config.processes > 1 and alone:
        raise ValueError(f"processes = {config.processes} is not possible {alone}")
    if config.processes or alone:
        return config.processes or 1
    return runtime.processes(runtime.parameters(config.model.path), prompts=config.rollout.prompts)


def _alone(config: TrainConfig) -> str | None:
    """The reason why several processes are unsupported and what to set, or None."""
    if config.model.device != "cpu":
        return f"with model.device={config.model.device}: set processes=1, or use --engine trl or verl for several GPUs"
    here = settings.only_here(name for s in (config.objective, config.task, config.eval_task) for name in names_in(s))
    return f"while {here[0]!r} is only known to this process: write module:Class, or set processes=1" if here else None


# --- the main process -----------------------------------------------------------------------------------------------


class _Other:
    """Another process, started by the main one: it imports what training needs, then reads its work."""

    def __init__(self) -> None:
        self.output = tempfile.TemporaryFile()  # noqa: SIM115  # what it prints; closed when the run ends
        command = runtime.python_command("from fspo.training.processes import main; main()")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=self.output, stderr=subprocess.STDOUT)

    def send(self, work: Any) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, which is noticed when it is waited for
            self.process.stdin.write(pickle.dumps(work))
            self.process.stdin.flush()  # and left open: it is closed when the main process ends

    def close(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=2 * GRACE)
        self.process.kill()
        with suppress(BrokenPipeError):
            self.process.communicate()
        self.output.close()

    def end(self) -> str | None:
        """Why it ended; None if running, finished, or exited because another did."""
        code = self.process.poll()
        if code in (None, 0, LOST_MAIN):  # 0 before the main process has ended is an error there
            return None
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        self.output.seek(0)
        last = self.output.read().decode(errors="replace").strip().splitlines()[-1:]
        return f"ended with code {code}" + (f" ({last[0]})" if last else "")


@contextmanager
def assembled(config: TrainConfig, folder: Path) -> Iterator[Team]:
    """The team of a run, of `config.processes` processes."""
    size = config.processes
    if size == 1:
        yield Team()
        return
    if any(name == "lo" for _, name in socket.if_nameindex()):  # need not be what this machine's name resolves to
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False, timeout=PATIENCE)
    others = [_Other() for _ in range(1, size)]
    try:
        for rank, other in enumerate(others, start=1):
            other.send((config, folder, store.port, rank, size))
        while not store.check([f"ready {rank}" for rank in range(1, size)]):
            if any(other.process.poll() is not None for other in others):
                _lost(others)
            time.sleep(POLL)
        dist.init_process_group("gloo", timeout=PATIENCE, store=store, rank=0, world_size=size)
        yield ProcessTeam(lambda: _lost(others))
    except BaseException:
        for other in others:
            other.process.kill()
        raise
    finally:
        for other in others:
            other.close()
        if dist.is_initialized():
            dist.destroy_process_group()


def _lost(others: list[_Other]) -> NoReturn:
    """An exchange has failed: wait until the process that ended is known, and say how it did."""
    deadline = time.monotonic() + GRACE
    while time.monotonic() < deadline:
        for rank, other in enumerate(others, start=1):
            if (how := other.end()) is not None:
                raise ProcessEndedError(
                    f"process {rank} of 0 to {len(others)} {how}; --resume goes on from the last checkpoint"
                )
        time.sleep(POLL)
    raise ProcessEndedError("the connection to another process of the run is lost; --resume goes on")


# --- the others -----------------------------------------------------------------------------------------------------


def _follow() -> int:
    """One of the other processes: its exit code."""
    for number in runtime.SIGNALS:  # the main process decides when to stop
        signal.signal(number, lambda *_: None)
    from fspo.runs import Observer
    from fspo.training.loop import run
    from fspo.training.stopping import RunInterruptedError

    runtime.quiet()
    source = sys.stdin.buffer
    try:
        config, folder, port, rank, size = pickle.load(source)
    except EOFError:  # the main process ended before there was work
        return LOST_MAIN
    threading.Thread(target=_end_with_main, args=(source,), daemon=True).start()
    store = TCPStore("127.0.0.1", port, size, is_master=False, timeout=PATIENCE)
    store.set(f"ready {rank}", "")
    dist.init_process_group("gloo", timeout=PATIENCE, store=store, rank=rank, world_size=size)
    with suppress(RunInterruptedError):
        run(config, folder, ProcessTeam(lambda: os._exit(LOST_MAIN)), Observer())
    dist.destroy_process_group()
    return 0


def _end_with_main(source: IO[bytes]) -> None:
    source.read()  # returns when the main process has ended, however it did
    os._exit(LOST_MAIN)


def main() -> NoReturn:
    code = 1
    try:
        code = _follow()
    except Exception:
        traceback.print_exc()  # its last line is the error, which the main process shows
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a scoring process that hangs must not keep this one
