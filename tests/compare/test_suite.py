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

from fspo.comparisons import page
from fspo.comparisons import plan as plans
from fspo.comparisons.plan import Cell, Plan, key_of, train_config
from fspo.comparisons.results import read
from fspo.comparisons.suite import Suite, load, merge, names

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
    config = train_config(cell.config)
    assert config.objective == {"name": "fspo", "c_low": 0.1, "c_high": 0.2}
    assert (config.eval.split, config.rollout.staleness, config.steps, config.seed) == ("validation", 2, 4, 1000)
    assert (config.model.threads, config.log.samples, config.checkpoint.every) == (1, 0, 4)
    assert cell.phase == "tune"
    test = next(c for c in plan.test if c.method == "reinforce")
    assert (test.config["eval"]["split"], test.config["advantage"], test.trial) == ("eval", "grpo", -1)
    compared: dict[Any, set[str]] = {}
    for cell in plan.tuning + plan.test:
        rest = {key: value for key, value in cell.config.items() if key not in ("objective", "advantage")}
        compared.setdefault((cell.task, cell.setting, cell.seed), set()).add(json.dumps(rest))
    assert all(len(configs) == 1 for configs in compared.values()), "they differ in the method alone"


def test_seeds_take_turns_with_the_warm_starts_of_their_task() -> None:
    plan = Plan(suite(warm_starts=3, seeds=7, tuning={"seeds": 2}))
    assert len(plan.warm) == 2 * 3
    assert not any("rollout" in warm.config for warm in plan.warm.values())
    numbers = {key: (warm.task, warm.config["seed"]) for key, warm in plan.warm.items()}
    assert all(cell.warm and numbers[cell.warm] == (cell.task, cell.warm_start) for cell in plan.tuning + plan.test)
    assert {(cell.seed, cell.warm_start) for cell in plan.test} == {(s, s % 3) for s in range(7)}
    assert {(cell.seed, cell.warm_start) for cell in plan.tuning} == {(1000, 0), (1001, 1)}
    one = {c.key for c in Plan(suite(seeds=7)).test}
    same = {c.seed for c in plan.test if c.key in one}
    assert same == {0, 3, 6}  # the runs that start from the same model are the same runs
    assert len(Plan(suite(settings={"a": {}, "b": {"model": {"path": "tiny:1x32"}}})).warm) == 4
    alone = Plan(suite(warm_starts=3, base={"steps": 4, "warmup": None}))
    assert {(cell.warm, cell.warm_start) for cell in alone.test} == {(None, 0)}


def test_a_repetition_has_the_fields_of_its_suite_and_later_seeds_and_starts(tmp_path: Path) -> None:
    first, again = tmp_path / "first.yaml", tmp_path / "again.yaml"
    values = suite(warm_starts=3, seeds=3, tuning={"seeds": 2}).model_dump(mode="json", exclude={"name"})
    first.write_text(yaml.safe_dump(values))
    again.write_text(yaml.safe_dump({"like": str(first), "title": "again", "first_seed": 3, "warm_starts": 6}))
    one, other = Plan(load(str(first))), Plan(load(str(again)))
    assert (other.suite.name, other.suite.title, other.suite.methods) == ("again", "again", one.suite.methods)
    assert {(c.seed, c.warm_start) for c in other.test} == {(3, 3), (4, 4), (5, 5)}
    assert [c.key for c in other.tuning] == [c.key for c in one.tuning], "what was tuned is not tuned again"
    assert not {c.warm for c in one.test} & {c.warm for c in other.test}
    again.write_text(yaml.safe_dump({"like": str(first), "methods": {"fspo": FSPO, "gspo": GSPO}}))
    assert list(load(str(again)).methods) == ["fspo", "gspo"], "a field that is set replaces the other suite's"


CONFIRM = {"brackets": {"task": "brackets"}}


def test_confirming_tasks_come_first_and_a_shared_trial_is_chosen_without_them() -> None:
    alone = Plan(suite(confirm=CONFIRM))
    assert [c.task for c in alone.test].index("sort") == sum(c.task == "brackets" for c in alone.test)
    assert {c.task for c in alone.tuning} == {"sort", "add", "brackets"}
    plan = Plan(suite(confirm=CONFIRM, settings={"near": {}}, tuning={"shared": True}))
    assert {c.task for c in plan.tuning} == {"sort", "add"}
    scores = {("sort", 0): 0.9, ("sort", 1): 0.2, ("add", 0): 0.1, ("add", 1): 0.7}  # means 0.5 and 0.45
    rows = [row(c, scores[c.task, c.trial]) for c in plan.tuning]
    for method in ("fspo", "gspo"):
        assert {plan.choose(rows)[task, "near", method] for task in ("sort", "add", "brackets")} == {0}
    part = [r for r, c in zip(rows, plan.tuning, strict=True) if (c.task, c.method) != ("add", "fspo")]
    assert {place[2] for place in plan.choose(part)} == {"gspo"}
    ran = plan.cells(rows)
    assert len(ran) == plan.total
    assert {(c.task, c.trial) for c in ran if c.phase == "test" and c.method == "fspo"} == {
        ("sort", 0), ("add", 0), ("brackets", 0)}  # fmt: skip


def test_trials_are_ranges_crossed_with_learning_rates() -> None:
    ranges = {"near": {"fspo": [{"c_low": 0.2}, {"c_low": 0.4}, {"c_low": 0.8}], "gspo": [{"clip_low": 0.1}] * 3}}
    given = suite(ranges=ranges, tuning={"lr_factors": [0.5, 1.0]}, base={"steps": 4, "update": {"lr": 2e-4}})
    cells = [c for c in Plan(given).tuning if c.task == "sort" and c.method == "fspo"]
    near, stale = ([c for c in cells if c.setting == s] for s in ("near", "stale"))
    assert [(c.config["objective"]["c_low"], c.config["update"]["lr"]) for c in near] == [
        (c, lr) for c in (0.2, 0.4, 0.8) for lr in (1e-4, 2e-4)]  # fmt: skip
    assert len(stale) == 2 * 2  # the method's own trials
    with pytest.raises(ValueError, match="fspo has no ranges in near: run fspo compare with --ranges first"):
        suite(methods={"fspo": {"objective": {"name": "fspo"}, "tuned": True}}).require_ranges()


def test_a_crossed_task_has_another_advantage_and_chooses_nothing() -> None:
    crossed = {"sort, deviation": {"task": {"name": "sort", "n_max": 8}, "advantage": "grpo"}}
    plan = Plan(suite(crossed=crossed, tuning={"shared": True}, warm_starts=3))
    assert {c.task for c in plan.tuning} == {"sort", "add"}
    cells = [c for c in plan.test if c.task == "sort, deviation"]
    assert {c.config["advantage"] for c in cells} == {"grpo"}
    assert {c.config["advantage"] for c in plan.test if c.task == "sort" and c.method == "fspo"} == {"rloo"}
    assert {c.warm for c in cells} == {c.warm for c in plan.test if c.task == "sort"}, "the same warm starts"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"methods": {"fspo": FSPO, "gspo": GSPO | {"trials": [{}]}}}, "different numbers of trials .fspo 2, gspo 1."),
        ({"sedes": 4}, "no parameter 'sedes'; did you mean 'seeds'"),
        ({"reference": "gpso"}, "'gpso' is not one of the methods; did you mean 'gspo'"),
        ({"base": {"seed": 3}}, "base sets seed"),
        ({"confirm": {"sort": {"task": "sort"}}}, "a label is under two of tasks, confirm and crossed"),
        ({"settings": {"a": {"objective": {"name": "grpo"}}}}, "a sets objective"),
        ({"settings": {"far": {"rollout": {"stalenes": 3}}}}, "small, sort, far, fspo: .*; did you mean 'staleness'"),
        ({"tasks": {"sort": {"task": {"name": "srt"}}}}, "small, sort, near, fspo: .*srt"),
        ({"methods": {"fspo": {"objective": {"name": "fspo", "clip": 1}}}}, "has no parameter 'clip'"),
    ],
)
def test_what_cannot_be_fair_or_cannot_run_is_refused_before_the_first_run(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Plan(suite(**changes))


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
    sort, add = plan.warm.values()
    assert plan.ready([], [], []) == [sort, add]
    now = plan.ready([], [add.key], [sort.key])
    assert str(now[0]) == "tune sort near fspo, trial 0, seed 1000"
    assert {job.task for job in now} == {"sort"}


def test_rows_take_the_labels_of_the_suite_as_it_is_now() -> None:
    plan, renamed = Plan(suite()), Plan(suite(settings={"close": {}, "stale": {"rollout": {"staleness": 2}}}))
    rows = [row(c) | c.labels for c in plan.tuning] + [{"key": "old", "score": 0.0, "status": "finished"}]
    relabelled = renamed.finished(rows)
    assert len(relabelled) == len(plan.tuning)
    assert {r["setting"] for r in relabelled} == {"close", "stale"}
    assert {r["suite"] for r in relabelled} == {"small"}


@settings(max_examples=30)
@given(
    tuned=st.integers(0, 2), trials=st.integers(1, 3), seeds=st.integers(1, 3), tuning=st.integers(1, 2),
    warm=st.booleans(), workers=st.integers(1, 5), luck=st.integers(0, 10**6),
)  # fmt: skip
def test_every_cell_runs_once_and_no_test_before_its_tuning(
    tuned: int, trials: int, seeds: int, tuning: int, warm: bool, workers: int, luck: int
) -> None:
    methods: dict[str, Any] = {"plain": {"objective": {"name": "reinforce"}}}
    for i in range(tuned):
        methods[f"m{i}"] = {"objective": {"name": "fspo", "exponent_cap": 10 + i},
                            "trials": [{"c_low": 0.1 * (t + 1)} for t in range(trials)]}  # fmt: skip
    plan = Plan(
        suite(
            methods=methods, reference="plain", seeds=seeds, tuning={"seeds": tuning},
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
                own = {c.key for c in plan.tuning if c.combination == job.combination}
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
    assert all(chosen.get(c.combination, c.trial) == c.trial for c in plan.cells(rows) if c.phase == "test")


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


# --- keys -------------------------------------------------------------------------------------------------------------


def test_a_key_depends_on_what_was_set_and_not_on_defaults_or_the_rest_of_the_suite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = Plan(suite())
    grown = suite(seeds=4, title="another", tasks=suite().tasks | {"brackets": {"task": "brackets"}})
    assert {(str(c), c.key) for c in plan.tuning + plan.test} < {
        (str(c), c.key) for c in Plan(grown).tuning + Plan(grown).test
    }
    default = train_config({}).update.lr
    explicit = suite(base={"steps": 4, "warmup": {"solved": 0.1}, "update": {"lr": default}})
    assert not {c.key for c in plan.test} & {c.key for c in Plan(explicit).test}, "a default that is set is set"
    cell = plan.test[0]
    assert set(cell.config) == {"steps", "warmup", "task", "objective", "advantage", "seed", "eval"}
    assert cell.key == key_of(cell.config, cell.warm_start)
    monkeypatch.setattr(plans, "SCHEMA_VERSION", plans.SCHEMA_VERSION + 1)
    assert cell.key != key_of(cell.config, cell.warm_start)


RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("name", sorted(path.name for path in RESULTS.iterdir()))
def test_stored_results_are_those_of_the_suites(name: str) -> None:
    """A change of a suite would give its cells other keys, and their results would no longer be found."""
    given = load(name)
    plan = Plan(given)
    rows = plan.finished(read(RESULTS / name))
    keys = {row["key"] for row in rows}
    assert [json.loads(row["config"]) for row in rows] == [c.config for c in plan.cells(rows) if c.key in keys]
    if len(rows) == plan.total:
        assert (RESULTS / name / "table.md").read_text(encoding="utf-8") == page.text(rows, given)
    else:
        page_of = RESULTS.parent / "docs" / "results" / f"{name}.md"
        assert "its runs are not finished" in page_of.read_text(encoding="utf-8")


def test_the_cells_of_the_digits_are_stored() -> None:
    for name, keys in yaml.safe_load((Path(__file__).parent / "same_digits.yaml").read_text()).items():
        assert set(keys) <= {row["key"] for row in read(RESULTS / name)}
