"""Every command that README, docs and --help print runs, as it is printed, in a folder that has what they speak of.

The pages' shell blocks and the lines of help texts are collected, whatever they hold. A command of this package runs in
this process; settings that make it small are added, and nothing else is changed. What cannot run here is listed with
its reason, and an entry of the list that no page prints any more fails.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import typer

import fspo
from fspo.cli.main import app
from helpers.pages import SHELL, blocks, commands
from helpers.processes import Command
from helpers.synthetic import make_run

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_OWN_TESTS = ("own-task.md", "own-reward.md", "own-objective.md", "first-run.md", "audit.md", "clip-fraction.md",
                  "vllm-correction.md")  # followed in order by tests/journeys  # fmt: skip

# Small, and without a warm start; the objective, the task and everything else are as printed.
SMALL = ["model.path=tiny:1x32", "warmup=null", "rollout.prompts=4", "rollout.group=2", "rollout.max_new_tokens=6",
         "update.minibatches=2", "eval.prompts=4", "steps=2"]  # fmt: skip

# What does not run here, as a pattern of the whole command, and why.
ELSEWHERE = {
    r"make .*": "a target of the Makefile; the tests are started by one",
    r"(uv )?pip install .*": "changes the environment",
    r"(\w+=\S+ )*python -m verl.*": "a GPU cluster",
    r"python -m fspo.engines.verl.run .*": "needs verl's log; tests/engines/test_verl_engine.py",
    r"fspo train recipe:.*": "downloads the recipe's model; tests/engines/test_recipes.py runs small copies",
    r"fspo train my.yaml --engine verl": "needs vLLM; tests/vllm_engine/test_verl_ppo.py",
    r"fspo watch .*": "serves until it is stopped; tests/report/test_watch.py",
    r"fspo compare .* --(rerun|pairs|ranges).*": "asks about finished results; tests/compare/test_run.py",
}
SLOW = ("fspo train", "fspo eval", "fspo export", "fspo compare ")


def of_pages() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        if page.name not in WITH_OWN_TESTS:
            for block in blocks(page):
                if block.language in SHELL:
                    yield from ((command, page.name) for command in commands(block.text))


def of_help() -> Iterator[tuple[str, str]]:
    """The dim lines of the help texts."""
    group: Any = typer.main.get_command(app)
    for key, command in sorted(group.commands.items()):
        for line in re.findall(r"\[dim\](.*?)\[/\]", command.help or ""):
            yield line, f"fspo {key} --help"


def printed() -> dict[str, str]:
    """Each command with the place that prints it first."""
    places: dict[str, str] = {}
    for command, source in (*of_pages(), *of_help()):
        places.setdefault(command, source)
    return places


PRINTED = printed()


def elsewhere(command: str) -> str | None:
    return next((pattern for pattern in ELSEWHERE if re.fullmatch(pattern, command)), None)


def test_there_are_printed_commands() -> None:
    """Of README, and of the help of every subcommand."""
    assert any(source == "README.md" for source in PRINTED.values())
    helps = {source.split()[1] for _, source in of_help()}
    assert helps == set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def test_the_list_of_what_cannot_run_is_not_stale() -> None:
    used = {elsewhere(command) for command in PRINTED}
    assert not [pattern for pattern in ELSEWHERE if pattern not in used]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, id=f"{source}: {text}", marks=[pytest.mark.slow] if text.startswith(SLOW) else [])
        for text, source in PRINTED.items()
        if elsewhere(text) is None
    ],
)
def test_printed_commands_run(text: str, command: Command, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world)
    words = shlex.split(text)
    if words[:3] == ["python", "-m", "fspo"]:
        words = ["fspo", *words[3:]]
    assert words[0] == "fspo", f"{PRINTED[text]} prints {text!r}: run it here, or give a reason in ELSEWHERE"
    arguments = [*words[1:], *added_to(words[1:])]
    if arguments[0] == "train" and "--out" in arguments and "--resume" not in arguments:
        shutil.rmtree(world / arguments[arguments.index("--out") + 1], ignore_errors=True)  # a new run
    monkeypatch.setattr(typer, "launch", lambda address: 0)
    monkeypatch.setattr("builtins.input", _no_input)
    command(*arguments)


def _no_input(prompt: str = "") -> str:
    raise EOFError


def added_to(words: list[str]) -> list[str]:
    """What keeps a command short: later settings go before earlier ones."""
    if words[0] == "train" and "--resume" in words:
        return ["steps=3"]
    if words[0] == "train":
        return SMALL
    return ["--prompts", "4"] if words[0] == "eval" else []


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that printed commands speak of: runs, tables, a configuration and a suite."""
    folder = tmp_path_factory.mktemp("world")
    for name in ("runs/mine", "runs/a", "runs/b", "runs/fspo", "runs/gspo", "run"):
        make_run(folder / name, rule="gspo" if name.endswith("gspo") else "fspo")
    (folder / "my.yaml").write_text("task: {name: sort, n_max: 5}\nupdate: {schedule: constant}\n")
    shutil.copy(Path(fspo.__file__).parent / "comparisons" / "suites" / "smoke.yaml", folder / "suite.yaml")
    rows = pl.read_parquet(next((folder / "run" / "records").glob("*.parquet")))
    (folder / "dumps").mkdir()
    rows.write_parquet(folder / "dumps" / "one.parquet")
    rows.select(n="length", n_tokens="length", s="log_ratio", advantage="advantage").write_csv(folder / "rows.csv")
    tokens = [[0.01 * (-1) ** i for i in range(int(n))] for n in rows["length"]]
    table = rows.select("task", "advantage").with_columns(
        new=pl.Series(tokens), old=pl.Series([[0.0] * len(t) for t in tokens])
    )
    table.write_parquet(folder / "tokens.parquet")
    return folder


@pytest.fixture(scope="module")
def trained(made: Path, tmp_path_factory: pytest.TempPathFactory, small: list[str]) -> Path:
    """The same with models in two of the runs."""
    from fspo.config import read
    from fspo.training.loop import train
    from helpers.policies import adapter_run

    folder = tmp_path_factory.mktemp("trained") / "world"
    shutil.copytree(made, folder)
    shutil.rmtree(folder / "runs" / "mine")
    train(read(None, [*small, "steps=2"]), folder / "runs" / "mine")
    adapter_run(folder / "runs" / "mine", folder / "runs" / "lora")
    return folder


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of its own for each command, so that none depends on another."""
    monkeypatch.setenv("FSPO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    slow = request.node.get_closest_marker("slow") is not None
    shutil.copytree(request.getfixturevalue("trained" if slow else "made"), tmp_path / "world")
    return tmp_path / "world"
