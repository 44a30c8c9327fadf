"""Dumps of other trainers, in exactly the shape that their code writes, are audited from their folder with no flag.

The shapes are from the public sources named in docs/audit.md. TRL's and verl's own writers are called.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import fspo
from fspo.model import tiny
from helpers.simulated_answers import known

Answer = dict[str, Any]
SIGMA = 0.05
PROMPT = 3  # tokens that no trainer trains


def made(n: int, seed: int = 0) -> list[Answer]:
    """Answers with log-probs of trainer and sampler per token."""
    rng = np.random.default_rng(seed)
    answers = []
    for _ in range(n):
        L = int(np.exp(rng.uniform(np.log(8), np.log(600))))
        sampler = -rng.exponential(0.7, L)
        trainer = sampler + rng.normal(0, SIGMA, L)
        answers.append({"length": L, "sampler": sampler, "trainer": trainer, "advantage": float(rng.standard_normal())})
    return answers


def expected(answers: list[Answer]) -> Any:
    """D and L of each answer, as sums."""
    return {
        "length": [a["length"] for a in answers],
        "log_ratio": [float((a["trainer"] - a["sampler"]).sum()) for a in answers],
    }


def prime_rl(folder: Path, answers: list[Answer]) -> None:
    """`TokenExporter.export`: lists over prompt and answer, with null for what is not finite.

    The last two answers are another model's: cross-entropy trains on their tokens, which have no sampler.
    """
    for k, a in enumerate([*answers, *answers[:2]]):
        step, rank, L, sampled = 1 + k % 3, k % 2, a["length"], float(k < len(answers))
        zeros = [0.0] * PROMPT
        ratio = (a["trainer"] - a["sampler"]).tolist()
        far = [abs(value) > 2 * SIGMA for value in ratio]
        line = {
            "schema_version": 1, "step": step, "rank": rank, "micro_step": 0, "micro_sequence_idx": 0,
            "export_sequence_idx": k, "env_name": "gsm8k", "token_ids": [7] * (PROMPT + L),
            "position_ids": list(range(PROMPT + L)), "loss_mask": [False] * PROMPT + [True] * L,
            "advantages": [a["advantage"]] * (PROMPT + L), "inference_logprobs": zeros + a["sampler"].tolist(),
            "trainer_logprobs": [None, *zeros[1:], *a["trainer"].tolist()], "entropy": [0.5] * (PROMPT + L),
            "mismatch_kl": zeros + ratio, "log_importance_ratio": zeros + ratio,
            "importance_ratio": [1.0] * PROMPT + np.exp(ratio).tolist(), "prob_delta": zeros + ratio,
            "is_masked": [False] * PROMPT + far, "is_masked_high": [False] * PROMPT + far,
            "is_masked_low": [False] * (PROMPT + L), "rl_weights": [None if sampled else 0.0] * (PROMPT + L),
            "ce_weights": [1 - sampled] * (PROMPT + L), "ref_kl_weights": [None] * (PROMPT + L),
        }  # fmt: skip
        path = folder / "token_exports" / f"step_{step}" / f"rank_{rank}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")


def nemo_rl(folder: Path, answers: list[Answer]) -> None:
    """`Logger.log_batched_dict_as_jsonl`: every value is a batch of one, padded to the longest of its step."""
    (folder / "exp_001").mkdir(parents=True)
    for step, part in enumerate((answers[::2], answers[1::2]), 1):
        width = PROMPT + max(a["length"] for a in part)
        lines = []
        for k, a in enumerate(part):
            pad = [0.0] * (width - PROMPT - a["length"])
            mask = [0.0] * PROMPT + [1.0] * a["length"] + pad
            lines.append({
                "content": ["2 + 2 = 4"], "rewards": [float(a["advantage"] > 0)], "input_lengths": [len(mask)],
                "token_ids": [[7] * width], "token_loss_mask": [mask], "sample_loss_mask": [1.0],
                "advantages": [[a["advantage"]] * width],
                "generation_logprobs": [[0.0] * PROMPT + a["sampler"].tolist() + pad],
                "prev_logprobs": [[0.0] * PROMPT + a["trainer"].tolist() + pad], "idx": k,
            })  # fmt: skip
        lines.append(lines[0] | {"sample_loss_mask": [0.0], "idx": len(part)})  # left out of the loss
        path = folder / "exp_001" / f"train_data_step{step}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / "exp_001" / f"val_data_step{step}.jsonl").write_text('{"content": "x", "rewards": 1.0, "idx": 0}\n')


def slime(folder: Path, answers: list[Answer]) -> None:
    """`_build_dump_payload`, format 2: one dictionary of tensors per sample; a removed one is masked out."""
    folder.mkdir(parents=True)
    for rollout, part in enumerate((answers[::2], answers[1::2])):
        samples = [
            {
                "data_parallel_rank": 0, "sample_index": k, "rollout_position": k if rollout else None,
                "tokens": torch.zeros(PROMPT + a["length"], dtype=torch.long), "response_lengths": a["length"],
                "total_lengths": PROMPT + a["length"], "rewards": a["advantage"], "truncated": 0,
                "loss_masks": torch.ones(a["length"], dtype=torch.int),
                "log_probs": torch.tensor(a["trainer"]), "rollout_log_probs": torch.tensor(a["sampler"]),
                "advantages": torch.full((a["length"],), a["advantage"]),
            } for k, a in enumerate([*part, part[0]])
        ]  # fmt: skip
        samples[-1]["loss_masks"] *= 0
        payload = {
            "format_version": 2, "rollout_id": rollout, "rank": 0, "samples": samples,
            "dp_shards": [{"rank": 0, "data_parallel_rank": 0, "partition": list(range(len(part)))}],
            "raw_reward": [float(a["advantage"] > 0) for a in [*part, part[0]]],
        }  # fmt: skip
        torch.save(payload, folder / f"train_{rollout}.pt")


WRITERS = {"prime-rl": prime_rl, "NeMo-RL": nemo_rl, "slime": slime}


@pytest.mark.parametrize("trainer", WRITERS)
def test_sampler_against_trainer(tmp_path: Path, trainer: str) -> None:
    answers = made(240)
    WRITERS[trainer](tmp_path / "run" / "train_data", answers)
    audit = fspo.audit(tmp_path / "run" / "train_data")
    assert fspo.audit(tmp_path).verdict == audit.verdict
    sums = fspo.audit(expected(answers), mismatch=True)
    assert {f"Read as a dump of {trainer}.", "2 answers without a trained token were left out."} <= {*audit.notes}
    assert (audit.rows, audit.sampled) == (242, 240)
    assert audit.verdict == sums.verdict
    assert [rule.name for rule in known(audit.mismatch).rules] == ["TRL", "verl", "geometric", "sqrt(L)"]
    for ours, theirs in zip(known(audit.mismatch).rules, known(sums.mismatch).rules, strict=True):
        assert [b.clip_rate for b in ours.report.bins] == pytest.approx([b.clip_rate for b in theirs.report.bins])
    assert audit.recommendation is None
    assert "no clip band follows" in str(audit)
    if trainer == "prime-rl":  # its own mask is known
        assert "The column 'is_masked' is read as what was clipped." in audit.notes
        ratios = [a["trainer"] - a["sampler"] for a in answers]
        assert known(audit.own).clip_rate == pytest.approx(np.mean([np.mean(np.abs(r) > 2 * SIGMA) for r in ratios]))
    else:
        assert any(row.reward is not None for row in audit.lengths)


def changed(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    for path in folder.glob("**/*ra[ni]*.jsonl"):
        path.write_text("".join(json.dumps(change(json.loads(line))) + "\n" for line in path.open()))


def test_what_a_trainer_leaves_out(tmp_path: Path) -> None:
    """prime-rl fills is_masked for its default loss only; NeMo-RL may not compute old log-probs, or filter answers."""
    answers = made(120)
    prime_rl(tmp_path / "prime", answers)
    changed(tmp_path / "prime", lambda line: line | {"is_masked": [None] * len(line["is_masked"])})
    assert fspo.audit(tmp_path / "prime").own is None
    nemo_rl(tmp_path / "nemo", answers)
    changed(tmp_path / "nemo", lambda line: line | {"filtered_rewards": line["rewards"], "rewards": [7.0]})
    assert all((row.reward or 0) <= 1 for row in fspo.audit(tmp_path / "nemo").lengths)
    changed(tmp_path / "nemo", lambda line: line | {"prev_logprobs": [[0.0] * len(line["prev_logprobs"][0])]})
    with pytest.raises(ValueError, match=r"step1.jsonl, row 1, column 'prev_logprobs' is empty"):
        fspo.audit(tmp_path / "nemo")
    changed(tmp_path / "nemo", lambda line: line | {"prev_logprobs": "none" if line["idx"] == 3 else [[0.0]]})
    with pytest.raises(ValueError, match=r"^[^\n]+step1.jsonl[^\n]+prev_logprobs of a line are no list of numbers$"):
        fspo.audit(tmp_path / "nemo")
    changed(tmp_path / "prime", lambda line: {name: line[name] for name in line if name != "loss_mask"})
    with pytest.raises(ValueError, match=r"^[^\n]+unable to find column \"loss_mask\"[^\n]+$"):
        fspo.audit(tmp_path / "prime")
    torch.save({"samples": [{"log_probs": torch.zeros(3)}]}, tmp_path / "train_0.pt")
    with pytest.raises(ValueError, match=r"train_0.pt has no rollout_log_probs of every sample"):
        fspo.audit(tmp_path / "train_0.pt")


def test_trl_completions(tmp_path: Path) -> None:
    """`GRPOTrainer.log` with log_completions: texts or messages, a column per reward function, the advantage."""
    folder = tmp_path / "completions"
    folder.mkdir()
    for step in (1, 2):
        pl.DataFrame({
            "step": [step] * 60, "prompt": [[{"role": "user", "content": "2 + 2"}]] * 60,
            "completion": [[{"role": "assistant", "content": "x" * (1 + k)}] for k in range(60)],
            "accuracy_reward": [float(k % 2) for k in range(60)], "advantage": [float(k % 2) for k in range(60)],
        }).write_parquet(folder / f"completions_{step:05d}.parquet")  # fmt: skip
    audit = fspo.audit(tmp_path)
    assert audit.verdict.startswith("no log-probs here")
    assert audit.unit == "characters"
    assert "No column is known as the reward: give --reward with one of accuracy_reward." in audit.notes
    assert all(row.reward is not None for row in fspo.audit(tmp_path, columns={"reward": "accuracy_reward"}).lengths)
    trl, runs = pytest.importorskip("trl"), pytest.importorskip("helpers.trl_runs")  # TRL itself writes them
    for part in tiny.build("1x32"):
        part.save_pretrained(tmp_path / "model")
    options = {"max_steps": 2, "log_completions": True}
    runs.trainer(tmp_path / "model", tmp_path / "out", trl.GRPOTrainer, trl.GRPOConfig, **options).train()
    audit = fspo.audit(tmp_path / "out")
    assert ("Read as a dump of TRL." in audit.notes, audit.sampled) == (True, 16)


def test_a_verl_rollout_dump(tmp_path: Path) -> None:
    """`RayPPOTrainer._write_generations` itself writes it: input, output, gts, score and step, no log-probs."""
    RayPPOTrainer = pytest.importorskip("verl.trainer.ppo.ray_trainer").RayPPOTrainer
    rng = np.random.default_rng(0)
    for step in (1, 2):
        outputs = ["x" * int(rng.integers(0, 90)) for _ in range(150)]
        scores = [float(k % 2) for k in range(150)]
        RayPPOTrainer._write_generations(["2 + 2 ="] * 150, outputs, ["4"] * 150, scores, {}, str(tmp_path), step)
    audit = fspo.audit(tmp_path)
    assert audit.verdict.startswith("no log-probs here")
    assert "Read as a dump of verl." in audit.notes
    assert any("empty answers were left out" in note for note in audit.notes)
    assert all(row.reward is not None for row in audit.lengths)


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return Path.touch, (self.target,)


@pytest.mark.parametrize("name", ["global_step_1_training_input.pkl", "train_0.pt"])
def test_code_in_a_dump_is_never_run(tmp_path: Path, name: str) -> None:
    """SkyRL's `dump_data` is a pickle; a .pt file is one too."""
    target = tmp_path / "ran"
    folder = tmp_path / "exports" / ("dumped_data" if name.endswith("pkl") else "train_data")
    folder.mkdir(parents=True)
    (folder / name).write_bytes(pickle.dumps(Bomb(target)))
    sentence = "is a pickle, as SkyRL writes it" if name.endswith("pkl") else "is not a file of slime's"
    for path in (folder, folder / name, tmp_path):
        with pytest.raises(ValueError, match=rf"^[^\n]+{sentence}[^\n]+$"):
            fspo.audit(path)
    assert not target.exists()


# --- mismatch rules --------------------------------------------------------------------------------------------------


def test_rules_drop_what_they_say() -> None:
    rng = np.random.default_rng(0)
    L = np.exp(rng.uniform(np.log(16), np.log(8000), 20_000)).round()
    D = -2e-4 * L + 0.02 * np.sqrt(L) * rng.standard_normal(20_000)
    audit = fspo.audit({"length": L, "log_ratio": D}, mismatch=True)
    mismatch = known(audit.mismatch)
    rates = {rule.name: [b.clip_rate for b in rule.report.bins] for rule in mismatch.rules}
    overall = {rule.name: rule.report.clip_rate for rule in mismatch.rules}
    ratio = np.exp(D)
    assert overall["TRL"] == pytest.approx(np.mean(ratio > 3))
    assert overall["verl"] == pytest.approx(np.mean((ratio > 2) | (ratio < 0.5)))
    mean = np.exp(D / L)
    assert overall["geometric"] == pytest.approx(np.mean((mean > 1.001) | (mean < 0.999)))
    assert overall["sqrt(L)"] == pytest.approx(0.1, abs=1e-3)
    assert rates["verl"][0] == 0 < 0.5 < rates["verl"][-1]
    assert rates["geometric"][0] > 0.7 > rates["geometric"][-1]
    assert np.ptp(rates["sqrt(L)"]) < 0.03
    assert f"sqrt(L) drops 10.0 %: {100 * rates['sqrt(L)'][0]:.1f} % of length 16–" in audit.verdict
    header = next(line for line in audit.text(80).splitlines() if "geometric" in line)
    assert header.split() == ["tokens", "rows", "TRL", "verl", "geometric", "sqrt(L)"]  # one beside the other
    long = np.quantile(L, 7 / 8) < L
    assert mismatch.weights[-1] == pytest.approx(np.where(ratio > 3, 0, ratio)[long].mean(), rel=1e-3)
    assert f"{mismatch.weights[-1]:.2f} at" in " ".join(audit.notes)


def test_which_ratio_it_is() -> None:
    """Log-probs of a policy that moved are drift, also beside the sampler's; one flag asks for the mismatch."""
    answers = made(300)
    table = {
        "logprobs": [a["trainer"] - 0.01 for a in answers], "old_logprobs": [a["trainer"] for a in answers],
        "rollout_log_probs": [a["sampler"] for a in answers], "accepted": [1.0, 0.0] * 150,
    }  # fmt: skip
    assert fspo.audit(table).mismatch is None
    asked = fspo.audit(table, mismatch=True)
    assert asked.own is None
    assert asked.verdict == fspo.audit(expected(answers), mismatch=True).verdict
    del table["logprobs"]
    assert fspo.audit(table).mismatch is not None
    assert "9 rows are too few, 30" in fspo.audit({name: values[:9] for name, values in table.items()}).verdict
