"""Suites as processes: all cells run, after any interruption too, and the figures do not depend on the executor."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from fspo import objectives
from fspo.cli.main import app
from fspo.comparisons.plan import Job, Plan, WarmStart
from fspo.comparisons.run import JobResult, LocalExecutor, Pilot, SuiteProgress, _responses, perform, ranges, run
from fspo.comparisons.store import Store, read
from fspo.comparisons.suite import Suite, load, names
from fspo.runs import locked
from helpers.processes import fspo, start

CELLS = 8  # of the suite `smoke`


def figures(folder: Path) -> list[dict[str, Any]]:
    """All columns that must not depend on the executor and the clock."""
    rows = sorted(read(folder), key=lambda row: row["key"])
    return [row | dict.fromkeys(("seconds", "cpu_seconds")) for row in rows]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of the suite `smoke`, run by two workers, with progress from the start."""
    folder = tmp_path_factory.mktemp("smoke")
    done = fspo("compare", "smoke", "--out", str(folder), "--workers", "2")
    assert len(read(folder)) == CELLS
    assert done.stdout.index(f"smoke: 0 of {CELLS} cells are done") < done.stdout.index("being made")
    assert f"{CELLS} of {CELLS}: test sort" in done.stdout
    assert "Loading weights" not in done.stderr
    return folder


def reach(command: subprocess.Popen[str], line: str) -> None:
    assert command.stdout is not None
    seen = []
    for text in command.stdout:
        seen.append(text)
        if text.startswith(line):
            return
    raise AssertionError("".join(seen))


def all_gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=200)[1]


@pytest.mark.slow
def test_interrupted_in_every_way_and_on_from_there(smoke: Path, tmp_path: Path) -> None:
    call = ("compare", "smoke", "--out", str(tmp_path), "--workers", "1")

    command = start(*call)  # a worker is killed
    reach(command, "1 of 8")
    below = psutil.Process(command.pid).children(recursive=True)
    worker = next(p for p in below if "spawn_main" in " ".join(p.cmdline()))
    worker.send_signal(signal.SIGKILL)
    said, _ = command.communicate()
    assert command.returncode == 2
    assert re.search(r"error: tune sort .*: its worker process died \(signal 9\); \d of 8 cells are kept", said)
    assert "Traceback" not in said
    assert all_gone(below)
    kept = read(tmp_path / "results.parquet")
    assert 1 <= len(kept) < CELLS

    command = start(*call, start_new_session=True)  # Ctrl-C, as a terminal sends it: to the whole process group
    reach(command, f"{len(kept) + 1} of 8")
    below = psutil.Process(command.pid).children(recursive=True)
    os.killpg(command.pid, signal.SIGINT)
    said, _ = command.communicate()
    assert command.returncode == 130
    assert re.search(r"stopped; \d of 8 cells are kept, and the same command goes on", said)
    assert "Traceback" not in said
    assert all_gone(below)
    more = read(tmp_path / "results.parquet")
    assert more[: len(kept)] == kept
    assert len(kept) < len(more) < CELLS

    command = start(*call)  # the command itself is killed
    reach(command, f"{len(more) + 1} of 8")
    below = psutil.Process(command.pid).children(recursive=True)
    command.kill()
    command.communicate()
    assert all_gone(below)
    most = read(tmp_path / "results.parquet")
    assert len(most) < CELLS

    fspo(*call)
    rows = {row["key"]: row for row in read(tmp_path / "results.parquet")}
    assert [rows[row["key"]] for row in most] == most, "a finished cell is not run again"
    assert not (tmp_path / "work").exists()
    assert figures(tmp_path) == figures(smoke), (
        "the figures depend neither on the number of workers nor on interruptions"
    )


class Log(SuiteProgress):
    """Keeps what happened."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def started(self, job: Job) -> None:
        self.events.append(f"start {job.key}")

    def finished(self, job: Job, row: Any, seconds: float) -> None:
        self.events.append(f"end {job.key}")


class InProcess(LocalExecutor):
    """Does the jobs in this process, one at a time."""

    def __init__(self, work: Path) -> None:
        self.size, self.work = 1, work
        self.requests: list[tuple[Job, WarmStart | None]] = []

    def submit(self, job: Job, warm: WarmStart | None) -> None:
        self.requests.append((job, warm))

    def wait(self) -> list[tuple[Job, JobResult]]:
        job, warm = self.requests.pop()
        return [(job, perform(job, warm, self.work))]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of the suite `smoke`, run in this process."""
    folder, log, plan = tmp_path_factory.mktemp("finished"), Log(), Plan(load("smoke"))
    run(plan, Store(folder / "results.parquet"), InProcess(folder / "work"), log)
    rows = read(folder / "results.parquet")
    assert [row["key"] for row in rows] == [cell.key for cell in plan.cells(rows)]
    after_warm_start = log.events[2:]
    assert after_warm_start == [f"{event} {row['key']}" for row in rows for event in ("start", "end")]
    (folder / "work").rmdir()
    return folder


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
    log = Log()
    run(Plan(load("smoke")), Store(tmp_path / "results.parquet"), InProcess(tmp_path), log, until=time.monotonic() - 1)
    assert log.events == []


def test_an_error_names_the_cell_and_keeps_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    plan = Plan(load("smoke"))
    cell = plan.tuning[0]
    cell.config["log"] = {"trackio": "a project"}
    with pytest.raises(ValueError, match=r"^tune sort fspo, trial 0, seed 1000: ValueError: .*'trackio'"):
        run(plan, Store(tmp_path / "results.parquet"), InProcess(tmp_path), Log())
    assert (tmp_path / cell.key / "config.yaml").is_file()


def test_two_commands_do_not_share_a_folder(tmp_path: Path) -> None:
    with locked(tmp_path):
        done = CliRunner().invoke(app, ["compare", "smoke", "--out", str(tmp_path)])
    assert isinstance(done.exception, ValueError)
    assert f"another process is writing to {tmp_path}" in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_workers_have_one_thread_and_end(tmp_path: Path) -> None:
    before = os.environ.get("OMP_NUM_THREADS")
    executor = LocalExecutor(1, tmp_path)
    (process,) = executor._workers.values()
    worker = psutil.Process(process.pid)
    while "spawn_main" not in " ".join(worker.cmdline()):  # not yet the worker's own program
        time.sleep(0.01)
    environment = worker.environ()
    assert environment["OMP_NUM_THREADS"] == environment["POLARS_MAX_THREADS"] == "1"
    assert os.environ.get("OMP_NUM_THREADS") == before
    executor.close()
    assert not worker.is_running()


def test_questions_to_finished_results(finished: Path, tmp_path: Path) -> None:
    def asked(*options: str) -> str:
        done = CliRunner().invoke(app, ["compare", "smoke", "--out", str(finished), *options])
        assert done.exit_code == 0, done.exception
        return done.output

    assert "### fspo and gspo" in asked("--pairs", "fspo, gspo")
    said = asked("--against", str(finished))
    assert f"cells in both: {CELLS}" in said
    assert f"the same in every outcome column, to the last digit: {CELLS}" in said
    assert "inside the other's intervals: 2 of 2" in said
    assert "1 of 1 cells are the same" in asked("--rerun", "1", "--save", str(tmp_path / "again.parquet"))
    (again,) = read(tmp_path / "again.parquet")
    (tmp_path / "cells.yaml").write_text(f"smoke: [{again['key']}]\n")
    said = asked("--rerun", str(tmp_path / "cells.yaml"), "--against", str(tmp_path / "again.parquet"))
    assert "1 of 1 cells are the same" in said
    (tmp_path / "cells.yaml").write_text("smoke: [no such key]\n")
    with pytest.raises(AssertionError, match="the results have no such cell"):
        asked("--rerun", str(tmp_path / "cells.yaml"))


def test_ranges_clip_what_is_wanted_of_the_same_responses() -> None:
    """Methods that clip answers, tokens and softly."""
    given = load("smoke").model_dump(mode="json")
    tuned = ({"name": "fspo", "drift": "zero"}, {"name": "gspo"}, {"name": "grpo"}, {"name": "sapo"})
    given["methods"] = {each["name"]: {"objective": each, "tuned": True} for each in tuned}
    given["methods"]["reinforce"] = {"objective": {"name": "reinforce"}}
    rates = [0.05, 0.3]
    result = ranges(Plan(Suite(**given | {"tuning": {"clip_rates": rates}})), "default")
    assert list(result) == [each["name"] for each in tuned]
    responses = _responses(Pilot.seen)
    for each in tuned:
        for rate, values in zip(rates, result[each["name"]], strict=True):
            accepted = objectives.accepted(objectives.get(**each | values), responses)
            assert 1 - accepted[responses.has_gradient].mean() == pytest.approx(rate, abs=0.02), each
    assert CliRunner().invoke(app, ["compare", "smoke", "--ranges"]).output.startswith("ranges:")
