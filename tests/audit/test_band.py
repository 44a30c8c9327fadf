"""The recommended band: robust, certain only as far as its rows go, with its own rates by length."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

import fspo
from fspo.audits.rules import Recommendation
from fspo.fairness.bins import cut
from helpers.simulated_answers import answers, known

RATE = 0.1


def clip_rates(band: Recommendation, frame: pl.DataFrame) -> Any:
    """Of a band in each of 8 bins of length."""
    L, S, A = (frame[name].to_numpy() for name in ("length", "log_ratio", "advantage"))
    z = (S - band.mu * L) / L**band.exponent
    bins = cut(L, 8)
    return bins.sum(np.where(A > 0, z > band.c_high, z < -band.c_low)) / bins.sum()


def band(frame: pl.DataFrame, **options: Any) -> Recommendation:
    return known(fspo.audit(frame, clip_rate=RATE, **options).recommendation)


def with_outliers(frame: pl.DataFrame, share: float) -> pl.DataFrame:
    """With some rows far below all others of like length."""
    S = frame["log_ratio"].to_numpy().copy()
    S[np.random.default_rng(0).choice(frame.height, round(share * frame.height), replace=False)] -= 10
    return frame.with_columns(log_ratio=pl.Series(S))


def test_outliers_set_neither_a_band_of_a_low_rate_nor_the_model_of_s() -> None:
    low = known(fspo.audit(with_outliers(answers(6000), 0.01), clip_rate=0.02).recommendation)
    assert clip_rates(low, answers(100_000, seed=99)) == pytest.approx(np.full(8, 0.02), abs=0.01)
    result = fspo.audit(with_outliers(answers(3000), 1 / 300), clip_rate=RATE)
    law = known(result.law)
    assert law.exponent == pytest.approx(0.5, abs=0.02)
    for truth, (least, most) in ((0.5, law.interval), (-3e-4, law.mu_interval), (0.02, law.scale_interval)):
        assert least <= truth <= most
    assert "10 of 3,000 rows are outliers for their length" in str(result)


# --- few rows ------------------------------------------------------------------------------------------------------


def test_a_band_of_few_rows_is_refused_or_uncertain() -> None:
    few = fspo.audit(answers(30), clip_rate=RATE)
    assert few.recommendation is None
    assert "30 rows are too few for a clip rate of 10.0 %" in str(few)
    assert "at least 46 are needed" in str(few)
    text = str(fspo.audit(answers(60).drop("accepted"), clip_rate=RATE))
    assert "From 60 rows: of fresh rows 3.9 % to 18.6 % will be clipped" in text


# --- rates by length, and advice ------------------------------------------------------------------------------------


def test_the_bands_own_rates_are_shown(tmp_path: Path) -> None:
    frame = answers(6000, H=0.65)
    result = fspo.audit(frame, clip_rate=RATE)
    recommended = known(result.recommendation)
    report = recommended.report
    assert [b.clip_rate for b in report.bins] == pytest.approx(list(clip_rates(recommended, frame)), abs=1e-9)
    assert [rates.name for rates in recommended.rates] == ["recommended", "sqrt(L)"]
    assert recommended.rates[1].report.flatness > 3 * report.flatness
    result.write_html(tmp_path / "a.html")
    for text in (str(result), (tmp_path / "a.html").read_text()):
        assert f"{report.lre_interval[0]:.2f}–{report.lre_interval[1]:.2f}" in text
        assert "of fresh rows" in text
    figures = json.loads(result.to_json())["recommendation"]
    assert figures["rates"][0]["report"]["bins"][0]["clip_interval"]
    assert figures["rates"][0]["report"]["lre"] == pytest.approx(report.lre)
    assert figures["fresh_interval"][0] < RATE < figures["fresh_interval"][1]


def test_chance_is_not_explained() -> None:
    result = [b for seed in range(5) if (b := band(answers(400, seed=seed).drop("accepted"))).report.lre > 0.05]
    assert result
    assert not any(b.advice for b in result)


@pytest.mark.parametrize("sign", [1, -1])
def test_advantages_of_one_sign(sign: int) -> None:
    result = band(answers(3000).with_columns(advantage=sign * pl.col("advantage").abs()))
    assert result.report.clip_rate == pytest.approx(RATE, abs=1e-3)
    assert result.c_low == pytest.approx(result.c_high, rel=0.1)


# --- simulated files with known truth: intervals cover, and the band stays flat on clean rows -------------------------


SIMULATE = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "simulate.py")))


def check(name: str, n: int, files: int) -> None:
    process = SIMULATE.Process(**SIMULATE.PROCESSES[name])
    fresh = process.fresh(0)
    judged = [SIMULATE.judge(process, n, seed, fresh) for seed in range(files)]
    for key in judged[0].covers:
        known = [j.covers[key] for j in judged if j.covers[key] is not None]
        # 93 %, less three standard errors of the count: there are 200 of them.
        assert sum(known) >= 0.93 * len(known) - 3 * np.sqrt(0.93 * 0.07 * len(known)), (name, n, key)
    worse = [j.flatness - j.clean for j in judged if j.flatness is not None and j.clean is not None]
    if n >= 300:
        assert np.mean(np.array(worse) <= 0.02) >= 0.95, (name, n)


@pytest.mark.parametrize("name", ["Gaussian", "1 % shifted by -10", "jumps of 3 in 1 % of the rows, by length"])
def test_a_few_files(name: str) -> None:
    for n in (30, 60, 300):
        check(name, n, 15)


@pytest.mark.slow
@pytest.mark.parametrize("n", [30, 60, 300, 3000])
def test_all_processes(n: int) -> None:
    for name in SIMULATE.PROCESSES:
        check(name, n, 60)
