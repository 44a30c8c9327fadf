"""The dumps that trainers write, as tables that an audit reads; recognised by their columns, whose names they keep."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

FILES = (
    "token_exports/step_*/rank_*.jsonl", "step_*/rank_*.jsonl", "train_data_step*.jsonl", "train_data/*.pt",
    "completions/completions_*.parquet", "dumped_data/*.pkl",
)  # fmt: skip
"""Where a folder, or one below it, has the dumps of a trainer; the last is SkyRL's, which is not read."""


@dataclass(frozen=True)
class Dump:
    """A trainer's format: the columns by which it is recognised, and what is changed in the columns of its table."""

    trainer: str
    columns: frozenset[str]
    changed: Callable[[pl.Schema], list[pl.Expr]] = lambda schema: []


def _prime_rl(schema: pl.Schema) -> list[pl.Expr]:
    """Trained tokens are those in prime-rl's mismatch metric; tokens of another model (with ce_weights) are not.

    Only its default loss fills is_masked.
    """
    trained = pl.col("loss_mask").cast(pl.List(pl.Float64))
    if "ref_kl_weights" in schema:
        rl, ref_kl = (
            pl.col(name).list.eval(pl.element().fill_null(missing).abs())
            for name, missing in {"rl_weights": 1.0, "ref_kl_weights": 0.0}.items()
        )
        trained *= rl + ref_kl
    masked = pl.when(pl.col("is_masked").list.drop_nulls().list.len() > 0).then("is_masked")
    return [trained, masked] if "is_masked" in schema else [trained]


def _nemo_rl(schema: pl.Schema) -> list[pl.Expr]:
    """Lists hold one value (a batch of 1). NeMo-RL writes zeros for old log-probs that it did not compute."""
    first = {name: pl.col(name).list.first() for name, kind in schema.items() if isinstance(kind, pl.List)}
    if "prev_logprobs" not in first:
        raise pl.exceptions.SchemaError("the prev_logprobs of a line are no list of numbers")
    first["prev_logprobs"] = pl.when(first["prev_logprobs"].list.min() < 0).then(first["prev_logprobs"])
    first["token_loss_mask"] = pl.col("token_loss_mask").list.first() * first.get("sample_loss_mask", 1)
    if "filtered_rewards" in first:  # those of the answers; `rewards` has all that were sampled
        first["rewards"] = first["filtered_rewards"]
    return [value.alias(name) for name, value in first.items()]


DUMPS = (
    Dump("prime-rl", frozenset({"trainer_logprobs", "inference_logprobs"}), _prime_rl),
    Dump("NeMo-RL", frozenset({"prev_logprobs", "generation_logprobs"}), _nemo_rl),
    Dump("TRL", frozenset({"step", "prompt", "completion", "advantage"})),
    Dump("verl", frozenset({"input", "output", "gts", "score", "step"})),
)


def recognised(table: pl.LazyFrame) -> tuple[pl.LazyFrame, str]:
    """Table in the audit's columns, and its trainer; a table of no known trainer is unchanged."""
    schema = table.collect_schema()
    dump = next((dump for dump in DUMPS if dump.columns <= set(schema)), Dump("", frozenset()))
    return table.with_columns(dump.changed(schema)), dump.trainer


def slime(path: Path) -> pl.DataFrame:
    """The samples of a .pt file of slime; only tensors and plain values are loaded, never code."""
    try:
        import torch
    except ImportError:
        raise ValueError(f"{path} is read with torch, which is not installed: pip install torch") from None
    try:
        payload = torch.load(path, map_location="cpu", weights_only=True)
        samples, rewards = dict(payload)["samples"], payload.get("raw_reward")
        position = [k if (at := sample.get("rollout_position")) is None else at for k, sample in enumerate(samples)]
        table: dict[str, list[Any]] = {
            name: [_plain(sample[name]) for sample in samples]
            for name in ("log_probs", "rollout_log_probs", "loss_masks", "advantages", "truncated")
            if all(sample.get(name) is not None for sample in samples)
        }
        if rewards is not None and all(isinstance(rewards[k], int | float) for k in position):
            table["reward"] = [float(rewards[k]) for k in position]
        frame = pl.DataFrame(table)
    except Exception as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        if isinstance(error, pickle.UnpicklingError):
            why = "it holds more than tensors and plain values"
        raise ValueError(f"{path} is not a file of slime's --save-debug-train-data, format 2 ({why})") from None
    if lacking := [name for name in ("log_probs", "rollout_log_probs") if name not in table or not samples]:
        raise ValueError(f"{path} has no {lacking[0]} of every sample, so sampler and trainer cannot be compared")
    return frame


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
