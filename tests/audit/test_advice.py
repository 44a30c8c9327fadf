"""Advice that one can act on: what the audit says about runs whose truth is known, and settings that run as printed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fspo
from fspo.audits.rules import Recommendation
from fspo.config import read
from helpers.simulated_answers import answers, known

MU = -2e-4
FIXED, SQRT, GSPO = 0.0, 0.5, 1.0
Arrays = dict[str, Any]
Rule = Callable[[Arrays], Any]  # rows -> which of them are clipped


# --- twelve runs -----------------------------------------------------------------------------------------------------


def rows(n: int, seed: int, *, tail: str = "Gaussian", mixture: bool = False) -> Arrays:
    rng = np.random.default_rng(seed)
    L = np.exp(rng.uniform(np.log(16), np.log(4000), n)).round()
    Z = rng.standard_normal(n) if tail == "Gaussian" else rng.standard_t(3, n) / np.sqrt(3)
    hard = (L > 60) & (L < 500) & (rng.random(n) < 0.7) if mixture else np.zeros(n, bool)
    S = MU * L + 0.02 * np.where(hard, 3, 1) * np.sqrt(L) * Z
    table = {"length": L.astype(int), "log_ratio": S, "advantage": rng.standard_normal(n)}
    return table | ({"task": np.where(hard, "hard", "easy")} if mixture else {})


def outside(power: float, c: float, *, either: bool = False) -> Rule:
    """Beyond c L^power, on the side where clipping acts or on either; sqrt(L) is centred on the drift."""

    def clipped(table: Arrays) -> Any:
        S, bound = table["log_ratio"], c * table["length"] ** power
        S = S - MU * table["length"] if power == SQRT else S
        return np.abs(S) > bound if either else np.sign(table["advantage"]) * S > bound

    return clipped


@dataclass(frozen=True)
class Run:
    rule: Rule | None
    expert: str  # how an expert's verdict starts
    band: bool  # whether an expert would give a band
    n: int = 8000
    make: Arrays | None = None  # options of `rows`
    signs: bool = True  # whether advantages are recorded

    def table(self, seed: int, n: int | None = None) -> Arrays:
        table = rows(n or self.n, seed, **(self.make or {}))
        if self.rule is None:
            return {"length": table["length"], "log_ratio": table["log_ratio"]}
        table["accepted"] = 1.0 - self.rule(table)
        return table if self.signs else {k: v for k, v in table.items() if k != "advantage"}


RUNS = {
    "fair, sqrt(L)": Run(outside(SQRT, 0.0256), "fair", False, n=40_000),
    "fixed range": Run(outside(FIXED, 0.5), "unfair: length", True),
    "GSPO": Run(outside(GSPO, 2e-3), "unfair: length", True),
    "clipped at 2 %": Run(outside(FIXED, 1.45), "unfair: length", True),
    "clipped at 10 %": Run(outside(FIXED, 0.56), "unfair: length", True),
    "clipped at 45 %": Run(outside(GSPO, 1.2e-4), "too much is clipped: 4", True),
    "clipped at 90 %": Run(outside(GSPO, 1.25e-4, either=True), "too much is clipped: 9", True, signs=False),
    "nothing clipped": Run(outside(FIXED, 50.0), "nothing was clipped", False),
    "mismatch only": Run(None, "these are log-probs of sampler and trainer", False),
    "mixture of tasks": Run(outside(FIXED, 0.6), "unfair: length", True, n=40_000, make={"mixture": True}),
    "heavy tails": Run(outside(FIXED, 0.4), "unfair: length", True, make={"tail": "t"}),
    "40 rows": Run(outside(FIXED, 0.4), "cannot tell", False, n=40),
}


def audited(name: str, seed: int = 0) -> fspo.audits.Audit:
    return fspo.audit(RUNS[name].table(seed), mismatch=RUNS[name].rule is None)


def lre(table: Arrays, clipped: Any) -> float:
    return fspo.fairness.measure(table["length"], 1.0 - clipped).lre


def clipped_by(band: Recommendation, table: Arrays) -> Any:
    L, z = table["length"], table["log_ratio"] - band.mu * table["length"]
    low, high = z < -band.c_low * L**band.exponent, z > band.c_high * L**band.exponent
    A = table.get("advantage")
    return low | high if A is None else np.where(A > 0, high, low)


@pytest.mark.parametrize("name", RUNS)
def test_the_verdict_is_that_of_an_expert(name: str) -> None:
    """And no printed band is less fair than the run's own rule on fresh rows."""
    run, fresh = RUNS[name], RUNS[name].table(99, 100_000)
    for seed in range(3):
        audit = audited(name, seed)
        assert audit.verdict.startswith(run.expert)
        band = audit.recommendation
        assert (band is not None) == run.band, audit.notes
        assert ("clipped nothing" in str(audit.notes)) == (name == "nothing clipped")
        if band is not None:
            assert lre(fresh, clipped_by(band, fresh)) < lre(fresh, 1 - fresh["accepted"])
            assert band.clip_rate <= 0.2


def test_no_band_is_less_fair_than_a_fair_rule_that_clips_a_lot() -> None:
    """Few rows may show a trend over length by chance: at seed 15 an exponent far from 1/2."""
    run = Run(outside(SQRT, 0.002), "too much", True)
    fresh = run.table(99, 60_000)
    for seed in range(13, 17):
        band = fspo.audit(run.table(seed, 400)).recommendation
        assert band is None or lre(fresh, clipped_by(band, fresh)) < lre(fresh, 1 - fresh["accepted"])


# --- each point ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["clipped", "is_clipped", "is_masked", "clip_fraction", "mine"])
def test_a_column_of_what_was_clipped(name: str) -> None:
    frame = answers(4000)
    clipped = 1 - frame["accepted"]
    for values in (clipped, pl.Series([[c == 1] * 3 for c in clipped])):  # also a flag per token
        table = frame.drop("accepted").with_columns(values.alias(name))
        audit = fspo.audit(table, columns={"clipped": name} if name == "mine" else {})
        assert audit.own == fspo.audit(frame).own
        assert f"The column {name!r} is read as what was clipped." in audit.notes


@pytest.mark.parametrize("signs", [True, False])
@pytest.mark.parametrize("name", ["fixed range", "GSPO", "clipped at 45 %", "heavy tails"])
def test_an_inverted_column_is_noticed(name: str, signs: bool) -> None:
    table = RUNS[name].table(0)
    if not signs:
        table["accepted"] = 1.0 - outside(FIXED, 0.4, either=True)(table)
        del table["advantage"]
    assert "seems to hold" not in fspo.audit(table).verdict
    table["kept"] = 1 - table.pop("accepted")
    audit = fspo.audit(table, columns={"accepted": "kept"})
    assert audit.verdict.startswith("cannot tell: among answers of like length")
    assert audit.verdict.endswith("give --clipped kept")
    assert audit.recommendation is None


def test_settings_run_as_printed(tmp_path: Path) -> None:
    """Each block is read by the trainer that it is for: our configuration, TRL's arguments, and hydra with verl."""
    pytest.importorskip("verl")
    from hydra import compose, initialize_config_module
    from hydra.utils import instantiate

    from fspo.engines.trl import FSPOConfig

    band = known(fspo.audit(answers(20_000, H=0.6), clip_rate=0.05).recommendation)
    mismatch = known(fspo.audit(answers(20_000), mismatch=True).mismatch)
    wanted = {"c_low": band.c_low, "c_high": band.c_high, "drift": band.mu, "exponent": band.exponent}
    ours, trl, verl = (text.replace("\\\n", " ") for text in band.snippets.values())
    local = read(None, ours.split()).objective
    assert {key: local[key] for key in wanted} == pytest.approx(wanted, rel=1e-5)
    trl_mismatch, verl_mismatch = (text.replace("\\\n", " ") for text in mismatch.snippets.values())
    for text, expected in ((trl, wanted), (trl_mismatch, {"c": mismatch.c, "drift": mismatch.mu})):
        config = eval(text, {"FSPOConfig": lambda **given: FSPOConfig(str(tmp_path), bf16=False, **given)})
        arguments = config.objective_args.get("mismatch", config.objective_args)
        assert arguments == pytest.approx(expected, rel=1e-5)
    with initialize_config_module("verl.trainer.config", version_base=None):
        policy = compose("ppo_trainer", [*verl.split(), *verl_mismatch.split()]).actor_rollout_ref.actor.policy_loss
    rule = instantiate(policy, _convert_="all").build()
    assert {key: getattr(rule, key) for key in wanted} == pytest.approx(wanted, rel=1e-5)
    assert rule.mismatch.c == pytest.approx(mismatch.c)


# --- the text and the page -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 120])
def test_three_rules_and_nothing_wider_than_the_terminal(width: int) -> None:
    long = answers(2000).with_columns(kind=pl.col("task") + " of a long name" * 9)
    for audit in (fspo.audit(answers(4000)), fspo.audit(long, by="kind"), fspo.audit(answers(300), mismatch=True)):
        text = audit.text(width)
        assert ("own rule  recommended  fixed range" in text) == (audit.mismatch is None)
        assert all(len(line) <= width for line in text.splitlines()), text


def test_what_the_file_cannot_show_is_the_first_line() -> None:
    frame = pl.DataFrame({"completion": ["x" * k for k in range(1, 90)], "reward_format": [1.0] * 89})
    first, headline, *rest = fspo.audit(frame).text().split("\n\n")
    assert first == "the frame: 89 rows"
    assert headline.startswith("No log-probs here, so clipping cannot be audited. Log these columns")
    assert rest == ["- No column is known as the reward: give --reward with one of reward_format."]


def test_a_closed_pipe_does_not_lose_the_page(tmp_path: Path) -> None:
    answers(2000).write_parquet(tmp_path / "a.parquet")
    page = tmp_path / "a.html"
    command = [sys.executable, "-m", "fspo", "audit", str(tmp_path / "a.parquet"), "--html", str(page)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()  # as `| head` does
    process.communicate()
    assert "<svg" in page.read_text()
