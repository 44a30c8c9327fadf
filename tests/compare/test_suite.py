"""Suites and their plans: the cells, the trial that is chosen, and what may start when."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fspo.comparisons.plan import Cell, Plan, merge
from fspo.comparisons.store import read
from fspo.comparisons.suite import Suite, load, names
from fspo.comparisons.views import comparison_tables
from fspo.config import TrainConfig

FSPO = {"objective": {"name": "fspo"}, "trials": [{"c_low": 0.03, "c_high": 0.03}, {"c_low": 0.1, "c_high": 0.2}]}
GSPO = {"objective": {"name": "gspo"}, "trials": [{"clip_low": 1e-3}, {"clip_low": 1e-2}]}


def suite(**changes: Any) -> Suite:
    values: dict[str, Any] = {
        "name": "small", "title": "a suite of the tests", "base": {"steps": 4, "warmup": {"solved": 0.1}},
        "tasks": {"sort": {"task": {"name": "sort", "n_max": 8}}, "add": {"task": "add"}},
        "settings": {"near": {}, "stale": {"rollout": {"staleness": 2}}},
        "methods": {"fspo": FSPO, "gspo": GSPO, "reinforce": {"objective": {"name": "reinforce"}, "advantage": "grpo"}},
        "reference": "fspo", "seeds": 3,
    }  # fmt: skip
    return Suite(**values | changes)


def row(cell: Cell, score: float = 0.5, status: str = "finished") -> dict[str, Any]:
    return {"key": cell.key, "score": score, "status": status}


def test_every_combination_is_a_cell() -> None:
    plan = Plan(suite())
    assert len(plan.tuning) == 2 * 2 * 2 * 2  # tasks, settings, tuned methods, trials
    assert plan.total == 16 + 2 * 2 * 3 * 3
    assert {cell.seed for cell in plan.tuning} == {1000}
    assert {cell.seed for cell in plan.test} == {0, 1, 2}
    assert len({cell.key for cell in plan.tuning + plan.test}) == len(plan.tuning + plan.test)
    cell = next(c for c in plan.tuning if (c.task, c.setting, c.method, c.trial) == ("sort", "stale", "fspo", 1))
    config = TrainConfig(**cell.config)
    assert config.objective == {"name": "fspo", "c_low": 0.1, "c_high": 0.2}
    assert (config.eval.split, config.rollout.staleness, config.steps, config.seed) == ("validation", 2, 4, 1000)
    assert (config.model.threads, config.log.samples, config.checkpoint.every) == (1, 0, 4)
    assert (cell.x, cell.phase) == (0.1, "tune")
    test = next(c for c in plan.test if c.method == "reinforce")
    assert (test.config["eval"]["split"], test.config["advantage"], test.trial, test.x) == ("eval", "grpo", -1, None)


def test_cells_that_are_compared_differ_in_the_method_alone() -> None:
    plan = Plan(suite())
    shared: dict[tuple[str, str, int, str], set[str]] = {}
    for cell in plan.tuning + plan.test:
        rest = {key: value for key, value in cell.config.items() if key not in ("objective", "advantage")}
        shared.setdefault((cell.task, cell.setting, cell.seed, cell.phase), set()).add(json.dumps(rest))
    assert all(len(configs) == 1 for configs in shared.values())


def test_one_warm_start_per_task() -> None:
    plan = Plan(suite())
    assert len(plan.warm) == 2
    assert all(warm.config["seed"] == 0 and warm.config["rollout"]["staleness"] == 0 for warm in plan.warm.values())
    for task in ("sort", "add"):
        assert len({cell.warm for cell in plan.tuning + plan.test if cell.task == task}) == 1
    assert len(Plan(suite(settings={"a": {}, "b": {"model": {"path": "tiny:1x32"}}})).warm) == 4
    assert Plan(suite(base={"steps": 4, "warmup": None})).warm == {}


def test_seeds_are_dealt_to_the_warm_starts() -> None:
    plan = Plan(suite(warm_starts=3, seeds=7, tuning={"seeds": 2}))
    assert len(plan.warm) == 2 * 3
    numbers = {key: warm.config["seed"] for key, warm in plan.warm.items()}
    assert all(cell.warm and numbers[cell.warm] == cell.warm_start for cell in plan.tuning + plan.test)
    assert {(cell.seed, cell.warm_start) for cell in plan.test} == {(s, s % 3) for s in range(7)}
    assert {(cell.seed, cell.warm_start) for cell in plan.tuning} == {(1000, 0), (1001, 1)}
    one = {c.key for c in Plan(suite(seeds=7)).test}
    same = {c.seed for c in plan.test if c.key in one}
    assert same == {0, 3, 6}  # the runs that start from the same model are the same runs
    alone = Plan(suite(warm_starts=3, base={"steps": 4, "warmup": None}))
    assert {(cell.warm, cell.warm_start) for cell in alone.test} == {(None, 0)}


CONFIRM = {"stack": {"task": "stack"}}


def test_confirming_tasks_come_last_and_are_tuned_like_the_others() -> None:
    plan = Plan(suite(confirm=CONFIRM))
    assert [c.task for c in plan.test].index("stack") == sum(c.task != "stack" for c in plan.test)
    assert {c.task for c in plan.tuning} == {"sort", "add", "stack"}
    assert {c.place[0] for c in plan.test} == {"sort", "add", "stack"}


def test_a_shared_trial_is_chosen_by_the_choosing_tasks_alone() -> None:
    plan = Plan(suite(confirm=CONFIRM, settings={"near": {}}, tuning={"shared": True}))
    assert {c.task for c in plan.tuning} == {"sort", "add"}
    scores = {("sort", 0): 0.9, ("sort", 1): 0.2, ("add", 0): 0.1, ("add", 1): 0.7}  # means 0.5 and 0.45
    rows = [row(c, scores[c.task, c.trial]) for c in plan.tuning]
    for method in ("fspo", "gspo"):
        assert {plan.choose(rows)[task, "near", method] for task in ("sort", "add", "stack")} == {0}
    part = [r for r, c in zip(rows, plan.tuning, strict=True) if (c.task, c.method) != ("add", "fspo")]
    assert {place[2] for place in plan.choose(part)} == {"gspo"}
    ran = plan.cells(rows)
    assert len(ran) == plan.total
    assert {(c.task, c.trial) for c in ran if c.phase == "test" and c.method == "fspo"} == {
        ("sort", 0), ("add", 0), ("stack", 0)}  # fmt: skip


def test_all_runs_every_trial_with_every_seed() -> None:
    few = suite(tuning={"all": True}, methods={"fspo": FSPO, "gspo": GSPO | {"trials": [{"clip_low": 0.1}]}})
    plan = Plan(few)
    assert not plan.tuning
    assert plan.total == len(plan.cells([])) == 2 * 2 * 3 * 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"methods": {"fspo": FSPO, "gspo": GSPO | {"trials": [{}]}}}, "different numbers of trials .fspo 2, gspo 1."),
        ({"sedes": 4}, "no parameter 'sedes'; did you mean 'seeds'"),
        ({"reference": "gpso"}, "'gpso' is not one of the methods; did you mean 'gspo'"),
        ({"base": {"seed": 3}}, "base sets seed"),
        ({"confirm": {"sort": {"task": "sort"}}}, "sort is under tasks and under confirm"),
        ({"tuning": {"all": True, "shared": True}}, "tuning.all runs every trial and tuning.shared chooses one"),
        ({"settings": {"a": {"objective": {"name": "grpo"}}}}, "a sets objective"),
    ],
)
def test_a_suite_that_cannot_be_fair_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        suite(**changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"settings": {"far": {"rollout": {"stalenes": 3}}}},
            "small, sort, far, fspo: .*'stalenes'; did you mean 'staleness'",
        ),
        ({"tasks": {"sort": {"task": {"name": "srt"}}}}, "small, sort, near, fspo: .*srt"),
        ({"methods": {"fspo": {"objective": {"name": "fspo", "clip": 1}}}}, "has no parameter 'clip'"),
    ],
)
def test_a_bad_run_is_found_before_the_first_one_starts(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Plan(suite(**changes))


def test_a_key_stays_while_its_run_stays() -> None:
    before = {(c.place, c.trial, c.seed, c.phase): c.key for c in Plan(suite()).tuning + Plan(suite()).test}
    grown = suite(
        seeds=4, title="another", tasks={"sort": {"task": {"name": "sort", "n_max": 8}}, "add": {"task": "add"},
        "stack": {"task": "stack"}},
    )  # fmt: skip
    after = {(c.place, c.trial, c.seed, c.phase): c.key for c in Plan(grown).tuning + Plan(grown).test}
    assert before.items() < after.items()
    longer = Plan(suite(base={"steps": 5, "warmup": {"solved": 0.1}}))
    assert not set(before.values()) & {c.key for c in longer.tuning + longer.test}


def test_the_best_mean_on_validation_is_chosen_the_first_of_equals() -> None:
    plan = Plan(suite(tasks={"sort": {}}, settings={"near": {}}, tuning={"seeds": 2}))
    scores = {("fspo", 0): (0.4, 0.4), ("fspo", 1): (0.1, 0.8), ("gspo", 0): (0.5, 0.25), ("gspo", 1): (0.25, 0.5)}
    rows = [row(c, scores[c.method, c.trial][c.seed - 1000]) for c in plan.tuning]
    assert plan.choose(rows) == {("sort", "near", "fspo"): 1, ("sort", "near", "gspo"): 0}
    assert plan.choose(rows[:-1]) == {("sort", "near", "fspo"): 1}  # gspo still lacks one
    failed = [r | {"status": "failed"} if c.trial == 1 else r for c, r in zip(plan.tuning, rows, strict=True)]
    assert plan.choose(failed)["sort", "near", "fspo"] == 0


def test_what_starts_first() -> None:
    plan = Plan(suite())
    assert plan.ready([], [], []) == list(plan.warm.values())
    sort = next(warm for warm in plan.warm.values() if warm.task == "sort")
    add = next(warm for warm in plan.warm.values() if warm.task == "add")
    now = plan.ready([], [add.key], [sort.key])
    assert [str(job) for job in now[:3]] == [
        "tune sort near fspo, trial 0, seed 1000", "tune sort near fspo, trial 1, seed 1000",
        "tune sort near gspo, trial 0, seed 1000",
    ]  # fmt: skip
    assert {job.task for job in now} == {"sort"}
    near = [row(c) for c in plan.tuning if c.setting == "near"]
    tuned = [job for job in plan.ready(near, [], [sort.key, add.key]) if isinstance(job, Cell)]
    assert [(job.setting, job.phase) for job in tuned[:19]] == [("near", "test")] * 18 + [("stale", "tune")]
    last = [job for job in plan.ready([row(c) for c in plan.tuning], [], [sort.key, add.key]) if isinstance(job, Cell)]
    assert [(job.setting, job.seed) for job in last] == [(s, k) for s in ("near", "stale") for k in range(3)
                                                         for _ in range(6)]  # fmt: skip


def test_rows_take_the_labels_of_the_suite_as_it_is_now() -> None:
    plan, renamed = Plan(suite()), Plan(suite(settings={"close": {}, "stale": {"rollout": {"staleness": 2}}}))
    rows = [row(c) | c.labels for c in plan.tuning] + [{"key": "old", "score": 0.0, "status": "finished"}]
    found = renamed.finished(rows)
    assert len(found) == len(plan.tuning)
    assert {r["setting"] for r in found} == {"close", "stale"}
    assert {r["suite"] for r in found} == {"small"}


@settings(max_examples=30)
@given(
    tuned=st.integers(0, 2), trials=st.integers(1, 3), seeds=st.integers(1, 3), tuning=st.integers(1, 2),
    everything=st.booleans(), warm=st.booleans(), workers=st.integers(1, 5), luck=st.integers(0, 10**6),
)  # fmt: skip
def test_every_cell_runs_once_and_no_test_before_its_tuning(
    tuned: int, trials: int, seeds: int, tuning: int, everything: bool, warm: bool, workers: int, luck: int
) -> None:
    methods: dict[str, Any] = {"plain": {"objective": {"name": "reinforce"}}}
    for i in range(tuned):
        methods[f"m{i}"] = {"objective": {"name": "fspo", "exponent_cap": 10 + i},
                            "trials": [{"c_low": 0.1 * (t + 1)} for t in range(trials)]}  # fmt: skip
    plan = Plan(
        suite(
            methods=methods, reference="plain", seeds=seeds, tuning={"seeds": tuning, "all": everything},
            base={"steps": 4, "warmup": {"solved": 0.1} if warm else None},
        )
    )  # fmt: skip
    rng = random.Random(luck)
    running: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    warmed: list[str] = []
    started: list[str] = []
    while True:
        for job in plan.ready(rows, running, warmed)[: workers - len(running)]:
            running[job.key] = job
            started.append(job.key)
            if isinstance(job, Cell):
                done = {r["key"] for r in rows}
                assert job.warm is None or job.warm in warmed
                own = {c.key for c in plan.tuning if c.place == job.place}
                assert job.phase == "tune" or own <= done
        if not running:
            break
        assert len(running) <= workers
        job = running.pop(rng.choice(sorted(running)))
        if isinstance(job, Cell):
            rows.append(row(job, rng.random()))
        else:
            warmed.append(job.key)
    assert len(started) == len(set(started)) == plan.total + len(plan.warm)
    assert len(plan.finished(rows)) == plan.total
    chosen = plan.choose(rows)
    assert all(chosen.get(c.place, c.trial) == c.trial for c in plan.cells(rows) if c.phase == "test")


def test_a_named_table_replaces_and_another_is_merged() -> None:
    base = {"task": {"name": "sort", "n_max": 9}, "rollout": {"group": 4, "prompts": 8}}
    assert merge(base, {"task": {"name": "add"}})["task"] == {"name": "add"}
    assert merge(base, {"task": {"n_max": 5}})["task"] == {"name": "sort", "n_max": 5}
    assert merge(base, {"rollout": {"group": 2}})["rollout"] == {"group": 2, "prompts": 8}


def test_suites_of_the_package_and_of_files(tmp_path: Path) -> None:
    for name in names():
        Plan(load(name))
    own = tmp_path / "mine.yaml"
    own.write_text(yaml.safe_dump(load("smoke").model_dump(mode="json", exclude={"name"})))
    mine = load(str(own))
    assert mine.name == "mine"
    assert {c.key for c in Plan(mine).test} == {c.key for c in Plan(load("smoke")).test}
    with pytest.raises(ValueError, match=r"no suite 'smok'.*did you mean 'smoke'"):
        load("smok")


def test_methods_of_another_suite() -> None:
    headline = load("headline")
    assert suite(methods="headline").methods == headline.methods
    with pytest.raises(ValueError, match=r"no suite 'headlin'.*did you mean 'headline'"):
        suite(methods="headlin")


def test_an_objective_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "from fspo.objectives import FSPO\n\n\nclass Wider(FSPO):\n    name = 'wider'\n    c_low: float = 0.5\n"
    (tmp_path / "own_objectives.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    plan = Plan(suite(methods={"own": {"objective": {"name": "own_objectives:Wider"}}}, reference="own"))
    assert plan.test[0].config["objective"] == {"name": "own_objectives:Wider"}
    with pytest.raises(ValueError, match="'own_objectives:Narrower' cannot be loaded"):
        Plan(suite(methods={"own": {"objective": {"name": "own_objectives:Narrower"}}}, reference="own"))


RESULTS = Path(__file__).parents[2] / "results"
STORED = ("ablation", "attributes", "cap", "headline", "near", "offpolicy", "rewards", "sensitivity", "width")


@pytest.mark.parametrize("name", STORED)
def test_stored_results_are_those_of_the_suites(name: str) -> None:
    """A change of a default would give the cells of a suite other keys, and their results would no longer be found."""
    suite = load(name)
    plan = Plan(suite)
    rows = plan.finished(read(RESULTS / name / "results.parquet"))
    assert len(rows) == plan.total
    assert [json.loads(row["config"]) for row in rows] == [cell.config for cell in plan.cells(rows)]
    assert (RESULTS / name / "table.md").read_text(encoding="utf-8") == comparison_tables.text(rows, suite)
