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

from fspo.cli.main import app
from fspo.comparisons.plan import Job, Plan
from fspo.comparisons.store import Store, read
from fspo.comparisons.suite import load, names
from fspo.comparisons.workers import JobRequest, JobResult, LocalExecutor, RayExecutor, perform, run
from fspo.runs import locked
from helpers.processes import fspo, start

CLOCK = ("seconds", "cpu_seconds")
CELLS = 8  # of the suite `smoke`


def figures(folder: Path) -> list[dict[str, Any]]:
    """All columns that must not depend on the executor and the clock."""
    rows = read(folder / "results.parquet")
    return [{k: v for k, v in row.items() if k not in CLOCK} for row in sorted(rows, key=lambda row: row["key"])]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("smoke")
    return folder, fspo("compare", "smoke", "--out", str(folder), "--workers", "2")


@pytest.mark.slow
def test_a_suite_leaves_results_a_table_and_a_page(smoke: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = smoke
    rows = read(folder / "results.parquet")
    plan = Plan(load("smoke"))
    assert len(rows) == plan.total == CELLS
    assert [row["key"] for row in rows] == [cell.key for cell in plan.cells(rows)]
    assert {path.name for path in folder.iterdir()} == {"results.parquet", "table.md", "report.html"}
    assert (folder / "table.md").read_text().strip() in done.stdout
    assert f"{CELLS} of {CELLS}: test sort" in done.stdout
    assert re.search(r"cells took \d+ s of CPU, wall \d+ s, workers busy \d+%", done.stdout)
    assert "Loading weights" not in done.stderr


def reach(command: subprocess.Popen[str], line: str) -> None:
    assert command.stdout is not None
    seen = []
    for text in command.stdout:
        seen.append(text)
        if text.startswith(line):
            return
    raise AssertionError("".join(seen))


def end(command: subprocess.Popen[str]) -> str:
    text, _ = command.communicate(timeout=60)
    return text


def all_gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=20)[1]


@pytest.mark.slow
def test_interrupted_in_every_way_and_on_from_there(
    smoke: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    call = ("compare", "smoke", "--out", str(tmp_path), "--workers", "1")

    command = start(*call)  # a worker is killed
    reach(command, "1 of 8")
    below = psutil.Process(command.pid).children(recursive=True)
    worker = next(p for p in below if "spawn_main" in " ".join(p.cmdline()))
    worker.send_signal(signal.SIGKILL)
    said = end(command)
    assert command.returncode == 2
    assert re.search(r"error: tune sort .*: its worker process died \(signal 9\); [12] of 8 cells are kept", said)
    assert "Traceback" not in said
    assert all_gone(below)
    kept = read(tmp_path / "results.parquet")
    assert 1 <= len(kept) <= 2

    command = start(*call, start_new_session=True)  # Ctrl-C, as a terminal sends it: to the whole process group
    reach(command, f"{len(kept) + 1} of 8")
    below = psutil.Process(command.pid).children(recursive=True)
    os.killpg(command.pid, signal.SIGINT)
    said = end(command)
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
    end(command)
    assert all_gone(below)
    most = read(tmp_path / "results.parquet")
    assert len(most) < CELLS

    fspo(*call)
    rows = {row["key"]: row for row in read(tmp_path / "results.parquet")}
    assert [rows[row["key"]] for row in most] == most, "a finished cell is not run again"
    assert not (tmp_path / "work").exists()
    assert figures(tmp_path) == figures(smoke[0]), (
        "the figures depend neither on the number of workers nor on interruptions"
    )


class Log(list[str]):
    """Keeps what it is told."""

    def started(self, job: Job) -> None:
        self.append(f"start {job.key}")

    def finished(self, job: Job, row: Any, seconds: float) -> None:
        self.append(f"end {job.key}")


class InProcess:
    """Does the jobs in this process, one at a time."""

    size = 1

    def __init__(self, work: Path) -> None:
        self.work: Path | None = work
        self.requests: list[JobRequest] = []

    def submit(self, request: JobRequest) -> None:
        self.requests.append(request)

    def wait(self) -> list[tuple[Job, JobResult]]:
        request = self.requests.pop()
        return [(request.job, perform(request))]

    def close(self) -> None: ...


def test_all_cells_run_and_a_finished_suite_is_only_written_again(tmp_path: Path) -> None:
    log, plan = Log(), Plan(load("smoke"))
    run(plan, Store(tmp_path / "results.parquet"), InProcess(tmp_path / "work"), log)
    before = read(tmp_path / "results.parquet")
    assert [row["key"] for row in before] == [cell.key for cell in plan.cells(before)]
    assert log[2:] == [f"{event} {row['key']}" for row in before for event in ("start", "end")], "after a warm start"
    (tmp_path / "work").rmdir()
    done = CliRunner().invoke(app, ["compare", "smoke", "--out", str(tmp_path)])
    assert done.exit_code == 0
    assert "of CPU" not in done.output
    assert {path.name for path in tmp_path.iterdir()} == {"results.parquet", "table.md", "report.html"}
    assert (tmp_path / "table.md").read_text().strip() in done.output
    assert read(tmp_path / "results.parquet") == before


def test_no_cell_starts_after_the_time_is_up(tmp_path: Path) -> None:
    log = Log()
    run(Plan(load("smoke")), Store(tmp_path / "results.parquet"), InProcess(tmp_path), log, until=time.monotonic() - 1)
    assert log == []


def test_an_error_names_the_cell_and_keeps_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    plan = Plan(load("smoke"))
    cell = plan.tuning[0]
    cell.config["log"]["trackio"] = "a project"
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


def test_without_ray_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match="pip install ray"):
        RayExecutor("local", 1)


@pytest.mark.slow
def test_the_same_figures_on_ray(smoke: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    pytest.importorskip("ray")
    fspo("compare", "smoke", "--out", str(tmp_path), "--ray", "local", "--workers", "2")
    assert figures(tmp_path) == figures(smoke[0])


def test_the_list_has_the_question_of_each_suite() -> None:
    done = CliRunner().invoke(app, ["compare"])
    assert done.exit_code == 0
    for name in names():
        assert name in done.output
        assert load(name).title.split()[0] in done.output
