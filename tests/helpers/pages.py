"""The code blocks of a page, and the commands of a shell block or a help text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

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
