"""Suites as processes: all cells run, after any interruption too, and the figures do not depend on the workers."""

from __future__ import annotations

import multiprocessing as mp
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from typer.testing import CliRunner

from fspo import objectives
from fspo.cli.main import app
from fspo.comparisons.plan import Plan
from fspo.comparisons.results import Store, read
from fspo.comparisons.run import Pilot, _responses, ranges, run, workers
from fspo.comparisons.suite import SUITES, Suite, load, names
from fspo.runs import locked
from helpers.processes import fspo, start

CELLS = 8  # of the suite `smoke`


class InProcess(Executor):
    """Does a job in this process, before `submit` returns."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of the suite `smoke`."""
    folder, plan = tmp_path_factory.mktemp("finished"), Plan(load("smoke"))
    said: list[str] = []
    with workers(1) as pool:
        run(plan, Store(folder / "results.parquet"), pool, 1, folder / "work", said.append)
    rows = read(folder / "results.parquet")
    assert [row["key"] for row in rows] == [cell.key for cell in plan.cells(rows)]
    assert said[0] == "warm start of sort: being made, or taken from the cache"
    assert [line.split(":")[0] for line in said[2:]] == [f"{k + 1} of {CELLS}" for k in range(CELLS)]
    (folder / "work").rmdir()
    return folder


def figures(folder: Path) -> list[dict[str, Any]]:
    """All columns that must not depend on the workers, the clock and the class of the task, in the same order."""
    rows = sorted(read(folder), key=lambda row: (row["phase"], row["method"], row["trial"], row["seed"]))
    return [row | dict.fromkeys(("suite", "key", "config", "seconds", "cpu_seconds")) for row in rows]


def stopped(call: Sequence[str], held: Path, how: Callable[[subprocess.Popen[str]], None]) -> tuple[int, str]:
    """A command that is stopped while its second cell waits: its exit code and what it said. It leaves no process."""
    (held / "waiting").unlink(missing_ok=True)
    (held / "go").touch()
    command = start(*call, start_new_session=True)
    while not (held / "waiting").exists():
        assert command.poll() is None, command.communicate()[0]
        time.sleep(0.02)
    below = psutil.Process(command.pid).children(recursive=True)
    how(command)
    said, _ = command.communicate()
    assert not psutil.wait_procs(below, timeout=200)[1]
    assert "Traceback" not in said
    return command.returncode, said


def kill_a_worker(command: subprocess.Popen[str]) -> None:
    below = psutil.Process(command.pid).children(recursive=True)
    next(p for p in below if "spawn_main" in " ".join(p.cmdline())).send_signal(signal.SIGKILL)


@pytest.mark.slow
def test_interrupted_in_every_way_and_on_from_there(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite, out = tmp_path / "held.yaml", tmp_path / "out"
    suite.write_text((SUITES / "smoke.yaml").read_text().replace("name: sort", "name: 'helpers.held_task:Held'"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("FSPO_TEST_HELD", str(tmp_path))
    call = ("compare", str(suite), "--out", str(out), "--workers", "1")

    code, said = stopped(call, tmp_path, kill_a_worker)
    assert code == 2
    assert re.search(r"error: tune sort .*: a worker process died, .*; 1 of 8 cells are kept", said)
    kept = read(out)
    assert len(kept) == 1

    # Ctrl-C, as a terminal sends it: to the whole process group
    code, said = stopped(call, tmp_path, lambda command: os.killpg(command.pid, signal.SIGINT))
    assert code == 130
    assert "stopped; 2 of 8 cells are kept, and the same command goes on" in said
    more = read(out)
    assert more[:1] == kept
    assert len(more) == 2

    stopped(call, tmp_path, lambda command: command.kill())
    most = read(out)
    assert len(most) == 3

    monkeypatch.delenv("FSPO_TEST_HELD")
    done = fspo(*call[:-1], "2")
    assert done.stdout.startswith(f"held: 3 of {CELLS} cells are done, 2 at a time")
    assert f"{CELLS} of {CELLS}: test sort" in done.stdout
    assert "Loading weights" not in done.stderr
    rows = {row["key"]: row for row in read(out)}
    assert [rows[row["key"]] for row in most] == most, "a finished cell is not run again"
    assert not (out / "work").exists()
    assert figures(out) == figures(finished), "they depend neither on workers nor on interruptions"


def test_a_finished_suite_is_only_written_again(finished: Path) -> None:
    before = read(finished)
    done = CliRunner().invoke(app, ["compare", "smoke", "--out", str(finished)])
    assert done.exit_code == 0
    assert "cells are done" not in done.output
    assert {path.name for path in finished.iterdir()} == {"results.parquet", "table.md", "report.html"}
    assert (finished / "table.md").read_text().strip() in done.output
    assert read(finished) == before
    assert all(name in CliRunner().invoke(app, ["compare"]).output for name in names())  # the list of suites


def test_no_cell_starts_after_the_time_is_up(tmp_path: Path) -> None:
    said: list[str] = []
    store = Store(tmp_path / "results.parquet")
    run(Plan(load("smoke")), store, InProcess(), 1, tmp_path, said.append, until=time.monotonic() - 1)
    assert said == []


def test_an_error_names_the_cell_and_keeps_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    plan = Plan(load("smoke"))
    cell = plan.tuning[0]
    cell.config["log"] = {"trackio": "a project"}
    with pytest.raises(ValueError, match=r"^tune sort fspo, trial 0, seed 1000: ValueError: .*'trackio'"):
        run(plan, Store(tmp_path / "results.parquet"), InProcess(), 1, tmp_path, print)
    assert (tmp_path / cell.key / "config.yaml").is_file()


def test_two_commands_do_not_share_a_folder(tmp_path: Path) -> None:
    with locked(tmp_path):
        done = CliRunner().invoke(app, ["compare", "smoke", "--out", str(tmp_path)])
    assert isinstance(done.exception, ValueError)
    assert f"another process is writing to {tmp_path}" in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_workers_have_one_thread_and_instruction_set_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with workers(1) as pool:
        assert pool.submit(os.getenv, "OMP_NUM_THREADS").result() == "1"
        assert pool.submit(torch.backends.cpu.get_cpu_capability).result() != "AVX512"
        busy = pool.submit(time.sleep, 3600)
        while not busy.running():
            time.sleep(0.01)
    assert mp.active_children() == []
    assert os.environ["OMP_NUM_THREADS"] == "2", "this process keeps its own"


def test_questions_to_finished_results(finished: Path, tmp_path: Path) -> None:
    def asked(*options: str) -> str:
        done = CliRunner().invoke(app, ["compare", "smoke", "--out", str(finished), *options])
        assert done.exit_code == 0, done.exception
        return done.output

    assert "### fspo and gspo" in asked("--pairs", "fspo, gspo")
    assert "1 of 1 cells are the same" in asked("--rerun", "1")
    (tmp_path / "cells.yaml").write_text(f"smoke: [{read(finished)[0]['key']}]\n")
    assert "1 of 1 cells are the same" in asked("--rerun", str(tmp_path / "cells.yaml"))
    (tmp_path / "cells.yaml").write_text("smoke: [no such key]\n")
    with pytest.raises(AssertionError, match="the results have no such cell"):
        asked("--rerun", str(tmp_path / "cells.yaml"))


def test_ranges_clip_what_is_wanted_of_the_same_responses() -> None:
    """Methods that clip answers, tokens and softly."""
    given = load("smoke").model_dump(mode="json")
    given["base"]["rollout"]["prompts"] = 16
    tuned = ({"name": "fspo", "drift": "zero"}, {"name": "gspo"}, {"name": "grpo"}, {"name": "sapo"})
    given["methods"] = {each["name"]: {"objective": each, "tuned": True} for each in tuned}
    given["methods"]["reinforce"] = {"objective": {"name": "reinforce"}}
    rates = [0.05, 0.3]
    result = ranges(Plan(Suite(**given | {"tuning": {"clip_rates": rates}})), "default")
    assert list(result) == [each["name"] for each in tuned]
    responses = _responses(Pilot.seen)
    for each in tuned:
        for rate, values in zip(rates, result[each["name"]], strict=True):
            objective = objectives.get(**each | values)
            wider, narrower = (objective.scaled(k) for k in (1.01, 0.99))  # equal answers are clipped together
            assert wider is not None
            assert narrower is not None
            kept = [objectives.accepted(o, responses)[responses.has_gradient] for o in (wider, narrower)]
            one = 1 / len(kept[0])
            assert 1 - kept[0].mean() - one <= rate <= 1 - kept[1].mean() + one, each
    assert CliRunner().invoke(app, ["compare", "smoke", "--ranges"]).output.startswith("ranges:")
