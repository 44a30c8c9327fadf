"""The code blocks of a page, the commands of a shell block or a help text, a reader who follows a page, the site."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TREE = Path(__file__).parents[2]
DOCS = TREE / "docs"
FENCE = re.compile(r"^( *)```([\w-]*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
SHELL = ("sh", "bash", "console", "shell")


@dataclass(frozen=True)
class Block:
    """A fenced block of a Markdown page."""

    language: str
    text: str
    before: str  # the page up to the block


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(m[2], re.sub(rf"^{m[1]}", "", m[3], flags=re.MULTILINE), text[: m.start()]) for m in FENCE.finditer(text)
    ]


def commands(text: str) -> list[str]:
    """The commands of a shell block: continued lines are joined, comments, prompts and output are left out."""
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    if any(line.startswith("$ ") for line in lines):  # a session: what has no prompt is output
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    parts = []
    for line in lines:
        code = PLAIN.match(line)
        assert code is not None
        parts += [part.strip() for part in PARTS.findall(code[0]) if part.strip()]
    return parts


QUOTED = r"""'[^']*'|"[^"]*\""""
PLAIN = re.compile(rf"""(?:{QUOTED}|[^'"#]|(?<=\S)#)*""")  # up to a comment
PARTS = re.compile(rf"""(?:{QUOTED}|[^'";&]|&(?!&))+""")  # between ; and &&


def saved_as(block: Block) -> str | None:
    """The name of a file that the text before a block asks to save it as."""
    last = block.before.rstrip().split("\n\n")[-1]
    name = re.search(r"[Ss]ave this as `([\w./-]+)`", last.replace("\n", " "))
    return name[1] if name else None


CONFIGURED = "import sys, yaml, fspo; fspo.TrainConfig(**yaml.safe_load(sys.argv[1]))"


@dataclass(frozen=True)
class Reader:
    """Somebody who does what pages say, in a folder of their own where `fspo` and `python` are on the path."""

    folder: Path

    def __post_init__(self) -> None:
        programs = self.folder / "bin"
        programs.mkdir()
        for name, command in (("fspo", "python -m fspo"), ("python", sys.executable)):
            (programs / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            (programs / name).chmod(0o755)

    def run(self, *command: str) -> str:
        """What a command prints; it must succeed."""
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        more = {"PATH": path, "FSPO_CACHE": str(self.folder / "cache"), "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, cwd=self.folder, env=os.environ | more, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def follow(self, page: str, shorter: Callable[[str], str] = str, before: str = "") -> list[str]:
        """Save, run and check every block of a page, in order; what the commands and programs printed.

        `shorter` makes a command quick, `before` defines what the page's Python takes for granted. A block of `text`
        is output: each of its lines must have been printed.
        """
        printed: list[str] = []
        for block in blocks(DOCS / page):
            name = saved_as(block)
            if name is not None:
                (self.folder / name).write_text(block.text)
            elif block.language == "python":
                printed.append(self.run("python", "-c", before + block.text))
            elif block.language in SHELL:
                printed += [self.run("sh", "-c", shorter(command)) for command in commands(block.text)]
            elif block.language == "yaml":
                self.run("python", "-c", CONFIGURED, block.text)
            elif block.language == "text":
                known = "".join(printed).splitlines()
                assert [line for line in block.text.splitlines() if line and line not in known] == [], page
        return printed


def build_site(folder: Path) -> Path:
    """Build the site into a folder; a warning fails, which --quiet would hide from --strict."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    silent = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, env=silent)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder
