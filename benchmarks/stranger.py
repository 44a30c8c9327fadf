"""What a stranger meets: a fresh environment, the wheel of this tree, and every command that the first pages print.

    python benchmarks/stranger.py            # with pip, and with uv if there is one
    python benchmarks/stranger.py --quick    # training commands with few steps

The pages are README, install, first run, the page and the idea, in this order. Only Python is taken from the machine.
`make` targets and servers are listed and not run, and the wheel is installed in the place of `pip install`. Prints the
exit code and the seconds of each command, and ends with 1 if one failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TREE = Path(__file__).parents[1]
PAGES = ("README.md", "docs/install.md", "docs/first-run.md", "docs/report.md", "docs/idea.md")
NOT_RUN = re.compile(r"(make|pip install|uv pip install|fspo watch) .*")
FEW = {True: "steps=5", False: "steps=3 warmup.max_steps=50 eval.prompts=16"}  # for a run that goes on, and a new one


def commands() -> dict[str, str]:
    """The lines of the pages' shell blocks, without comments, each with the page that prints it first."""
    pages: dict[str, str] = {}
    for page in PAGES:
        text = (TREE / page).read_text(encoding="utf-8")
        for block in re.findall(r"^```sh\n(.*?)^```", text, flags=re.M | re.S):
            for line in block.splitlines():
                if command := re.sub(r"\s+#.*", "", line).strip():
                    pages.setdefault(command, page)
    return pages


def stranger(installer: list[str], wheel: Path, folder: Path, quick: bool) -> int:
    """Installs the wheel into a new environment and runs the commands in an empty folder; how many failed."""
    home, environment = folder / "home", folder / "env"
    home.mkdir(parents=True)
    kept = {key: value for key, value in os.environ.items() if key.startswith(("PIP_", "UV_", "SSL_", "LANG"))}
    variables = kept | {
        "HOME": str(home), "PATH": f"{environment}/bin:/usr/local/bin:/usr/bin:/bin", "FSPO_CACHE": f"{home}/cache",
        "VIRTUAL_ENV": str(environment), "BROWSER": "true",
    }  # fmt: skip
    steps: list[tuple[str, str, list[str] | str]] = [
        ("", "python -m venv env", [sys.executable, "-m", "venv", str(environment)]),
        ("", f"{installer[-1]} install WHEEL[train]",
         [*installer, "install", "-q", "-c", str(TREE / "constraints.txt"), f"{wheel}[train]"]),
    ]  # fmt: skip
    for command, page in commands().items():
        short = quick and command.startswith("fspo train")
        steps.append((page, command, f"{command} {FEW['--resume' in command]}" if short else command))
    failed, begun = 0, time.perf_counter()
    for page, shown, command in steps:
        if page and NOT_RUN.fullmatch(shown):
            print(f"{page:20} {'not run':>18}  {shown}")
            continue
        start = time.perf_counter()
        with (folder / "log.txt").open("a") as log:
            print(f"\n$ {shown}", file=log, flush=True)
            # Only a line of a page goes through a shell, as a reader types it.
            code = subprocess.run(
                command, shell=isinstance(command, str), cwd=home, env=variables, stdout=log, stderr=log
            ).returncode
        failed += code != 0
        print(f"{page:20} exit {code} {time.perf_counter() - start:8.1f} s  {shown}", flush=True)
    print(f"{failed} failed, {time.perf_counter() - begun:.0f} s; output: {folder / 'log.txt'}\n", flush=True)
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few steps in the training commands")
    quick, uv = parser.parse_args().quick, shutil.which("uv")
    folder = Path(tempfile.mkdtemp(prefix="stranger-"))
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(folder), str(TREE)]
    subprocess.run(build, check=True)
    (wheel,) = folder.glob("*.whl")
    failed = stranger([str(folder / "pip/env/bin/python"), "-m", "pip"], wheel, folder / "pip", quick)
    if uv is not None:
        failed += stranger([uv, "pip"], wheel, folder / "uv", quick)
    if failed:
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
