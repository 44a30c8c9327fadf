"""Tasks whose prompts are the rows of a data set: split by content, and shuffled anew in every epoch."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from fspo.files import BadLine, json_lines
from fspo.tasks.task import Task, check_index, check_split, generator, in_split

QUESTION_COLUMNS = ("question", "problem", "prompt")
ANSWER_COLUMNS = ("answer", "solution")


class RowTask(Task):
    """A subclass returns its rows; `row` maps an index to one of them."""

    def rows(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
        """The rows to train on, and the separate held-out rows if there are any."""
        raise NotImplementedError

    def content(self, row: dict[str, Any]) -> str:
        """The text that identifies the problem: rows with the same text are in the same split."""
        raise NotImplementedError

    def size(self, split: str) -> int:
        return len(self._split(split))

    def row(self, split: str, index: int) -> dict[str, Any]:
        check_index(index)
        rows = self._split(split)
        epoch, position = divmod(index, len(rows))
        return rows[_order(len(rows), f"{self.seed}/{split}/{epoch}")[position]]

    def _split(self, split: str) -> list[dict[str, Any]]:
        check_split(split)
        return _assign(self, split)


@lru_cache(maxsize=32)
def _assign(task: RowTask, split: str) -> list[dict[str, Any]]:
    """The rows of a split: by the hash of their content, or the separate held-out rows for eval."""
    rows, held_out = task.rows()
    if held_out is None:
        chosen = [row for row in rows if in_split(task.content(row), split)]
    elif split == "eval":
        chosen = held_out
    else:
        excluded = {task.content(row) for row in held_out}
        # Eval has rows of its own, so the tenth that would be held out for it is trained on.
        free = [row for row in rows if task.content(row) not in excluded]
        chosen = [row for row in free if in_split(task.content(row), "validation") == (split == "validation")]
    if not chosen:
        raise ValueError(f"task {task.label!r} has no rows left for the split {split!r}: give it more rows")
    return chosen


@lru_cache(maxsize=32)
def _order(n: int, key: str) -> list[int]:
    order = list(range(n))
    generator("order", key).shuffle(order)
    return order


@lru_cache(maxsize=32)
def read_jsonl(path: str) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; a bad line is an error."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"there is no file {path!r}: give the path of a JSON-lines file")
    rows = []
    for row in json_lines(file):
        if isinstance(row, BadLine):
            raise ValueError(f"line {row.number} of {path!r} {row.problem}: fix that line")
        rows.append(row)
    if not rows:
        raise ValueError(f"{path!r} has no rows: write one JSON object per line")
    return rows


def column(row: dict[str, Any], wanted: str | None, candidates: tuple[str, ...], what: str) -> Any:
    """The value of the column `wanted`, or of the first of `candidates` that the row has."""
    for name in (wanted,) if wanted else candidates:
        if name in row:
            return row[name]
    names = ", ".join(row)
    asked = wanted or " / ".join(candidates)
    raise ValueError(f"a row has no {what} column {asked!r} (it has {names}): set {what}_column to one of them")
