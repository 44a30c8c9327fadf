"""What an audit costs: time against a polars scan of the same columns, and peak memory.

    python benchmarks/audit.py [--rows 10000000] [--tokens 100000000] [--repeats 7]

Writes four Parquet files into a temporary folder: answers, with polars' default compression and with snappy, and
per-token log-probs, in row groups of 10,000 answers and in a single row group. A scan (streaming sum of every column)
and the audit take turns, each in its own process, which stays alive for all rounds; the first round is not counted.
Peak memory is the high-water mark of a process, libraries included.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

CHUNK = 1_000_000


def write_answers(path: Path, n: int) -> None:
    """Answers of 8 to 8,192 tokens, clipped by GSPO's rule."""
    parts = path.parent / "parts"
    parts.mkdir()
    for k, first in enumerate(range(0, n, CHUNK)):
        rng, size = np.random.default_rng(k), min(CHUNK, n - first)
        L = np.exp(rng.uniform(np.log(8), np.log(8192), size)).astype(np.int32)
        S, A = rng.normal(-2e-4 * L, 0.02 * np.sqrt(L)), rng.standard_normal(size).astype(np.float32)
        clipped = ((A > 0) & (S > 4e-4 * L)) | ((A < 0) & (S < -3e-4 * L))
        columns = {
            "step": (first + np.arange(size)) // 10_000, "length": L, "log_ratio": S, "advantage": A,
            "accepted": 1 - clipped.astype(np.float32), "truncated": L > 8000, "reward": (A > 0).astype(np.float32),
        }  # fmt: skip
        pl.DataFrame(columns).cast({"step": pl.Int32}).write_parquet(parts / f"{k:04d}.parquet")
    scan = pl.scan_parquet(parts / "*.parquet")
    scan.sink_parquet(path)
    scan.sink_parquet(path.with_name("snappy.parquet"), compression="snappy")


def write_tokens(path: Path, tokens: int, rows_per_group: int) -> None:
    """Lists of 100 to 900 log-probs in float32, current and old."""
    rng = np.random.default_rng(0)
    kind = pa.list_(pa.float32())
    schema = pa.schema([("logprobs", kind), ("old_logprobs", kind), ("advantage", pa.float32())])
    held: list[pa.RecordBatch] = []
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while tokens > 0 or held:
            if tokens > 0:
                L = rng.integers(100, 901, 10_000)
                offsets = np.concatenate([[0], np.cumsum(L)]).astype(np.int32)
                old = rng.normal(-1, 0.3, offsets[-1]).astype(np.float32)
                new = old + rng.normal(-2e-4, 0.02, len(old)).astype(np.float32)
                lists = [pa.ListArray.from_arrays(offsets, values) for values in (new, old)]
                advantage = pa.array(rng.standard_normal(len(L)).astype(np.float32))
                held.append(pa.record_batch([*lists, advantage], schema))
                tokens -= int(offsets[-1])
            if tokens <= 0 or sum(len(b) for b in held) >= rows_per_group:
                writer.write_table(pa.Table.from_batches(held), row_group_size=rows_per_group)
                held = []


def worker(what: str, path: str, pipe: Connection) -> None:
    run = _audit if what == "audit" else _scan
    while pipe.recv():
        start, used = time.perf_counter(), time.process_time()
        run(path)
        times = time.perf_counter() - start, time.process_time() - used
        pipe.send((*times, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def _audit(name: str) -> object:
    import fspo

    return fspo.audit(name)


def _scan(name: str) -> object:
    table = pl.scan_parquet(name)
    return table.select(_totals(table)).collect(engine="streaming")


def _totals(scan: pl.LazyFrame) -> list[pl.Expr]:
    kinds = scan.collect_schema()
    lists = [name for name, kind in kinds.items() if isinstance(kind, pl.List)]
    return [pl.col(name).explode().sum() if name in lists else pl.col(name).sum() for name in kinds]


@dataclass
class Cost:
    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    peak: float = 0.0


def measure(path: Path, repeats: int) -> tuple[Cost, Cost]:
    """The cost of a scan and of an audit of the same file."""
    spawn = multiprocessing.get_context("spawn")
    costs = {"scan": Cost(), "audit": Cost()}
    pipes, processes = {}, []
    for what in costs:
        pipes[what], other = spawn.Pipe()
        processes.append(spawn.Process(target=worker, args=(what, str(path), other), daemon=True))
        processes[-1].start()
    for k in range(repeats + 1):
        for what, pipe in pipes.items():
            pipe.send(True)
            seconds, processor, costs[what].peak = pipe.recv()
            if k:
                costs[what].seconds.append(seconds)
                costs[what].processor.append(processor)
    for pipe in pipes.values():
        pipe.send(False)
    for process in processes:
        process.join()
    return costs["scan"], costs["audit"]


def ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--tokens", type=int, default=100_000_000)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        answers, tokens, single = folder / "zstd.parquet", folder / "tokens.parquet", folder / "single.parquet"
        jobs: list[tuple[Callable[..., None], Any]] = [
            (write_answers, (answers, args.rows)),
            (write_tokens, (tokens, args.tokens, 10_000)),
            (write_tokens, (single, args.tokens, args.tokens)),
        ]
        for target, values in jobs:
            print(f"writing {values[0].name} ...", flush=True)
            process = spawn.Process(target=target, args=values)
            process.start()
            process.join()
        print(
            f"{'file':34} {'MB':>5} {'scan s':>7} {'audit s':>8} {'ratio':>6} {'of processor time':>18} {'scan MB':>8} "
            f"{'audit MB':>9}",
            flush=True,
        )
        cases = [
            (f"{args.rows:,} answers, zstd", answers, args.repeats),
            (f"{args.rows:,} answers, snappy", folder / "snappy.parquet", args.repeats),
            (f"{args.tokens:,} tokens", tokens, 2),
            (f"{args.tokens:,} tokens, one group", single, 2),
        ]
        for label, path, repeats in cases:
            scan, audit = measure(path, repeats)
            print(
                f"{label:34} {path.stat().st_size / 1e6:>5.0f} {statistics.median(scan.seconds):>7.3f} "
                f"{statistics.median(audit.seconds):>8.3f} {ratio(audit.seconds, scan.seconds):>6.2f} "
                f"{ratio(audit.processor, scan.processor):>18.2f} {scan.peak:>8.0f} {audit.peak:>9.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
