"""Several processes learn what one learns, stop and resume together, and none of them outlives the others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

from fspo import objectives, runtime, settings
from fspo.config import read
from fspo.objectives import OBJECTIVES
from fspo.runs import Metrics, read_lines
from fspo.training import processes
from fspo.training.processes import Team
from helpers import processes as command
from helpers.custom_objective import Mine
from helpers.processes import fingerprint, fspo, lines, start

TWO = ["processes=2", "rollout.staleness=1", "objective={name: fspo, clip_rate: 0.1, drift: bounded}",
       "checkpoint.every=1", "log.cosine=2"]  # fmt: skip


class Seat(Team):
    """One place of a team of several, for what needs no exchange."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("costs", [[1], [5, 5], [100, 1, 1, 1], [1, 1, 1, 100], list(range(1, 40)), []])
def test_shares_cover_everything_once_and_are_even(size: int, costs: list[int]) -> None:
    shares = [Seat(rank, size).share(costs) for rank in range(size)]
    assert [i for share in shares for i in share] == list(range(len(costs)))
    for share in shares:
        assert sum(costs[i] for i in share) <= sum(costs) / size + max(costs, default=0)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_scattered_items_come_back_in_their_order(size: int) -> None:
    items = list(range(10))
    parts = [Seat(rank, size).scatter(items) for rank in range(size)]

    class Full(Seat):
        def gather(self, value: Any) -> list[Any]:
            return parts

    assert Full(0, size).unscatter(parts[0]) == items


@pytest.mark.parametrize(
    ("parameters", "prompts", "cores", "expected"),
    [(15_000, 32, 2, 2), (800_000, 32, 64, 8), (800_000, 6, 64, 1), (135_000_000, 32, 64, 1), (None, 32, 64, 1)],
)
def test_how_many_processes(parameters: int | None, prompts: int, cores: int, expected: int) -> None:
    assert runtime.processes(parameters, prompts, cores) == expected


def test_the_number_is_chosen_by_what_is_configured(small: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "usable_cores", lambda: 2)
    several = [option for option in small if not option.startswith("processes")]
    assert processes.chosen(read(None, several)) == 2  # the size of a folder is known without loading it
    assert processes.chosen(read(None, ["model.path=tiny:2x64"])) == 2
    assert processes.chosen(read(None, ["model.path=tiny:24x256"])) == 1
    assert processes.chosen(read(None, ["model.path=some/model"])) == 1
    assert processes.chosen(read(None, ["model.path=tiny:2x64", "model.device=cuda"])) == 1
    assert processes.chosen(read(None, ["processes=3"])) == 3
    assert runtime.threads(10_000_000, cores=8, processes=3) == 2
    assert runtime.threads(10_000_000, cores=2, processes=3) == 1


def test_several_processes_on_another_device_than_the_cpu_are_refused() -> None:
    with pytest.raises(ValueError, match="use --engine trl or verl for several GPUs"):
        processes.chosen(read(None, ["processes=2", "model.device=cuda:1"]))


def test_a_class_that_only_this_process_has_trains_in_one(small: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "usable_cores", lambda: 2)
    monkeypatch.setattr(OBJECTIVES, "_classes", dict(OBJECTIVES._classes))

    class Cell(Mine):
        """As in a notebook."""

        name: ClassVar[str] = "cell"

    objectives.register(Cell)
    several = [*(option for option in small if not option.startswith("processes")), "objective=cell"]
    assert processes.chosen(read(None, several)) == 1
    with pytest.raises(
        ValueError, match="processes = 2 is not possible while 'cell' is only known to this process: write module:Class"
    ):
        processes.chosen(read(None, [*several, "processes=2"]))
    assert settings.only_here(["__main__:Cell", "fspo", "module:Class"]) == ["__main__:Cell"]
    assert processes.chosen(read(None, [*several, f"objective={Mine.__module__}:Mine"])) == 2


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(tmp_path: Path) -> None:
    """Every case in double precision, where the order of sums changes the weights by less than 1e-9."""
    command = [sys.executable, "-m", "helpers.two_ranks", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "GLOO_SOCKET_IFNAME": "lo"}
    output = (tmp_path / "output").open("w+")
    ranks = [subprocess.Popen([*command, rank], env=environment, stdout=output, stderr=output) for rank in "01"]
    assert [rank.wait() for rank in ranks] == [0, 0], (tmp_path / "output").read_text()
    for name in ("before", "after"):  # a recorder that was made then, and has the rows of both
        assert [line.rows for line in read_lines(tmp_path / name, Metrics)] == [6]
    results = json.loads((tmp_path / "result.json").read_text())
    assert len(results) >= 14
    for name, result in results.items():
        assert result["same answers"], name
        assert result["same in both"], name
        assert result["weights"] < 1e-9, (name, result)
        assert result["log_ratio"] < 1e-9, (name, result)
        assert result["old"] < 1e-9, (name, result)
        assert result["metrics"] < 1e-6, (name, result)
        assert result["state"] < 1e-9, (name, result)
        assert result["same evaluation"], (name, result)
    assert results["nothing has a gradient"]["computed"] == 0
    assert 0 < results["fspo"]["computed"] < results["fspo"]["rows"]
    assert results["every row"]["computed"] == results["every row"]["rows"]
    assert results["on-policy"]["cosines"] == [pytest.approx(1, abs=1e-6)]


def wait_until_gone(others: list[psutil.Process]) -> None:
    """Fails by the test's time limit where one of them stays; one that nobody has waited for is gone too."""
    for other in others:
        with suppress(psutil.NoSuchProcess):
            while other.is_running() and other.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.02)


def resumes_to_the_same_bytes(options: list[str], folder: Path) -> bool:
    """Whether a stopped run, resumed for two more steps, ends like a run that was not stopped."""
    steps = len((folder / "metrics.jsonl").read_text().splitlines()) + 2
    shorter = [*options, f"steps={steps}"]
    fspo("train", *shorter, "--out", str(folder), "--resume", "--no-report")
    fspo("train", *shorter, "--out", str(folder.with_name("whole")), "--no-report")
    return fingerprint(folder) == fingerprint(folder.with_name("whole"))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine it may take longer than usual until the command knows how another process has ended."""
    code = (
        "from fspo.runtime import prepare; prepare(); from fspo.training import processes; processes.GRACE = 3600; "
        "from fspo.cli.main import main; main()"
    )
    monkeypatch.setattr(command, "COMMAND", [sys.executable, "-c", code])


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("how", ["a killed follower", "a killed leader", "Ctrl-C"])
def test_what_stops_a_run_of_two_leaves_no_process_and_it_resumes_to_the_same_bytes(
    small: list[str], tmp_path: Path, how: str
) -> None:
    options, folder = [*small, *TWO], tmp_path / "run"
    process = start("train", *options, "steps=100000", "--out", str(folder), "--no-report", start_new_session=True)
    lines(folder / "metrics.jsonl", 2, process)
    others = [p for p in psutil.Process(process.pid).children() if "fspo.training.processes" in " ".join(p.cmdline())]
    assert len(others) == 1
    if how == "Ctrl-C":
        os.killpg(process.pid, signal.SIGINT)  # the terminal sends it to every process
    else:
        (others[0] if how == "a killed follower" else process).kill()
    output, _ = process.communicate()
    codes = {"Ctrl-C": 130, "a killed follower": 2, "a killed leader": -signal.SIGKILL}
    assert process.returncode == codes[how], output
    assert how != "a killed follower" or "was ended by SIGKILL" in output, output
    assert how == "a killed leader" or "--resume" in output
    assert "Traceback" not in output
    wait_until_gone(others)
    assert resumes_to_the_same_bytes(options, folder)


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_an_error_of_a_follower_is_shown(small: list[str], tmp_path: Path) -> None:
    (tmp_path / "broken_tasks.py").write_text(
        "import torch.distributed as dist\n"
        "from fspo.tasks.procedural import Sort\n"
        "class Broken(Sort):\n"
        "    name = 'broken'\n"
        "    def example(self, split, index):\n"
        "        if dist.is_initialized() and dist.get_rank() and index > 20:\n"
        "            raise RuntimeError('this task is broken elsewhere')\n"
        "        return super().example(split, index)\n"
    )
    options = [*small, "processes=2", "task={name: 'broken_tasks:Broken', n_min: 2, n_max: 8, letters: 4}"]
    done = fspo("train", *options, "--out", str(tmp_path / "run"), "--no-report", check=False, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "process 1" in done.stderr
    assert "RuntimeError: this task is broken elsewhere" in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stdout + done.stderr
