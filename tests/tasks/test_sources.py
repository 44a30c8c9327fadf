"""Tasks from files, Hugging Face datasets, reasoning-gym and verifiers: splits, comparison of answers, errors."""

import json
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fspo.tasks as tasks
from fspo.tasks import SPLITS, Score, Scorer, verifiers_env
from fspo.tasks.reasoning import extract
from fspo.tasks.verifiers_env import Verifiers
from fspo.tasks.verify import equal, reference
from helpers.processes import stand_in


def write(path: Path, rows: Iterable[Mapping[str, object]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def squares(tmp_path: Path) -> str:
    return write(tmp_path / "squares.jsonl", [{"question": f"{i}^2?", "answer": str(i * i)} for i in range(200)])


def test_rows_are_split_by_content_and_reshuffled_every_epoch(squares: str) -> None:
    task = tasks.get(f"jsonl:{squares}")
    prompts = {split: [task.example(split, i).prompt for i in range(task.size(split) or 0)] for split in SPLITS}
    assert sum(map(len, prompts.values())) == 200
    assert len(set().union(*prompts.values())) == 200
    n = len(prompts["train"])
    second = [task.example("train", n + i).prompt for i in range(n)]
    assert sorted(second) == sorted(prompts["train"])
    assert second != prompts["train"]
    assert tasks.get(f"jsonl:{squares}").example("train", 5 * n + 3) == task.example("train", 5 * n + 3)


def test_a_separate_eval_file_is_taken_whole_and_kept_out_of_training(squares: str, tmp_path: Path) -> None:
    held_out = write(tmp_path / "held.jsonl", [{"question": f"{i}^2?", "answer": str(i * i)} for i in range(50)])
    task = tasks.get({"name": f"jsonl:{squares}", "eval_path": held_out})
    assert task.size("eval") == 50
    n, validated = task.size("train") or 0, task.size("validation") or 0
    assert n + validated == 150
    excluded = {task.example("eval", i).prompt for i in range(50)}
    assert not excluded & {task.example("train", i).prompt for i in range(n)}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"question": "a"}\nnot json\n', "line 2 of .* is not JSON"),
        ("[1]\n", "line 1 of .* is not a JSON object"),
        ("\n", "has no rows"),
        ('{"q": "a", "answer": "1"}\n', r"no question column .*\(it has q, answer\): set question_column"),
    ],
)
def test_unreadable_files_are_named(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=sentence):
        tasks.get(f"jsonl:{path}").example("train", 0)
    with pytest.raises(ValueError, match="there is no file"):
        tasks.get(f"jsonl:{path}.missing").example("train", 0)


def test_columns_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", [{"q": f"{i}+1?", "a": i + 1} for i in range(30)])
    task = tasks.get({"name": f"jsonl:{path}", "question_column": "q", "answer_column": "a", "suffix": ""})
    example = task.example("train", 0)
    assert int(example.answer) == int(example.prompt.split("+")[0]) + 1


def judged() -> list[dict[str, Any]]:
    """Some rows of the hostile answers."""
    lines = (Path(__file__).resolve().parents[1] / "hostile" / "answers.jsonl").read_text("utf-8").splitlines()
    return [row for row in map(json.loads, lines) if not row.get("missed")][::40]


@pytest.mark.usefixtures("no_process_left")
def test_math_verify_is_right_in_worker_processes_and_from_another_thread(tmp_path: Path) -> None:
    rows = judged()
    path = write(tmp_path / "m.jsonl", [{"question": str(i), "answer": row["reference"]} for i, row in enumerate(rows)])
    task = tasks.get({"name": "helpers.rewards:Patient", "path": path, "eval_path": path, "suffix": ""})
    examples = [task.example("eval", i) for i in range(len(rows))]
    asked = [rows[int(example.prompt)] for example in examples]
    completions, wanted = [row["answer"] for row in asked], [float(row["right"]) for row in asked]
    with Scorer(task, timeout=600) as scorer:
        assert [score.value for score in scorer.score(examples, completions)] == wanted
        scores: list[Score] = []
        thread = threading.Thread(target=lambda: scores.extend(scorer.score(examples, completions)))
        thread.start()
        thread.join()
        assert [score.value for score in scores] == wanted


def test_math_verify_is_right_in_a_thread_of_this_process() -> None:
    """With its own time limits, which are signals, every right answer would fail (verl#5635)."""
    verdicts: list[bool] = []
    rows = judged()
    thread = threading.Thread(target=lambda: verdicts.extend(equal(row["reference"], row["answer"]) for row in rows))
    thread.start()
    thread.join()
    assert verdicts == [row["right"] for row in rows]


def test_references() -> None:
    assert reference("16 - 3 = <<16-3=13>>13\n#### 1,234") == "1234"
    assert reference("So we get $\\boxed{\\frac{1}{2}}$.") == "\\frac{1}{2}"
    assert reference(" 42 ") == "42"
    assert reference("The roots are \\boxed{2} and \\boxed{3}.") == "2, 3"
    assert reference("Add them.\nThe answer is 42.") == "42"
    assert reference("\\begin{pmatrix} 1 \\\\\n 2 \\end{pmatrix}").startswith("\\begin")


@pytest.mark.parametrize(("name", "size"), [("gsm8k_test", 1319), ("math500", 500), ("aime24", 30)])
def test_public_sets_score_their_own_solutions(name: str, size: int, shared: Path) -> None:
    path = str(shared / f"{name}.jsonl")
    task = tasks.get({"name": "helpers.rewards:Patient", "path": path, "eval_path": path})
    assert task.size("eval") == size
    examples = [task.example("eval", i) for i in range(size)]
    with Scorer(task, timeout=600) as scorer:
        own = scorer.score(examples, [example.solution or "" for example in examples])
        bare = scorer.score(examples, [f"The answer is ${example.answer}$" for example in examples])
        other = scorer.score(examples, ["\\boxed{-12345.5}"] * size)
    assert sum(score.value or 0.0 for score in own) == size
    assert sum(score.value or 0.0 for score in bare) == size
    assert sum(score.value or 0.0 for score in other) == 0


def test_hugging_face_sets_load_from_a_folder(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    for split, low, high in (("train", 0, 40), ("test", 40, 50)):
        write(tmp_path / f"{split}.jsonl", [{"problem": f"{i}+0", "answer": str(i)} for i in range(low, high)])
    task = tasks.get({"name": f"hf:{tmp_path}", "eval_split": "test"})
    assert task.size("eval") == 10
    assert (task.size("train") or 0) + (task.size("validation") or 0) == 40
    example = task.example("eval", 0)
    assert task.score(example, example.solution or "") == 1.0
    assert task.score(example, "\\boxed{7}") == 0.0


@pytest.mark.usefixtures("no_process_left")
def test_reasoning_gym_is_deterministic_split_and_scored_by_its_own_rule() -> None:
    pytest.importorskip("reasoning_gym")
    spec = {"name": "reasoning_gym:chain_sum", "min_terms": 2, "max_terms": 3}
    task = tasks.get(spec)
    seen: dict[str, str] = {}
    for split in SPLITS:
        for i in range(40):
            assert seen.setdefault(task.example(split, i).prompt, split) == split
    examples = [task.example("eval", i) for i in range(40)]
    assert all(2 <= float(example.attributes["num_terms"]) <= 3 for example in examples)
    assert examples[0] == tasks.get(spec).example("eval", 0)
    with Scorer(task) as scorer:
        right = scorer.score(examples, [f"let me think\n{example.solution}" for example in examples])
        plain = scorer.score(examples, [f"so it is {example.answer['text']}" for example in examples])
        wrong = scorer.score(examples, ["<answer>none</answer>"] * 40)
    assert {score.value for score in right} == {score.value for score in plain} == {1.0}
    assert all(score.value == 0.0 for score in wrong)


@pytest.mark.parametrize("name", ["list_functions", "gsm_symbolic", "acre", "propositional_logic"])
def test_reasoning_gym_sets_with_tables_or_open_answers_work(name: str) -> None:
    pytest.importorskip("reasoning_gym")
    task = tasks.get(f"reasoning_gym:{name}")
    example = task.example("train", 123)
    if example.solution is not None:
        assert task.score(example, example.solution) == 1.0
    assert task.score(example, "nonsense") < 1.0


def test_reasoning_gym_mistakes_are_named() -> None:
    pytest.importorskip("reasoning_gym")
    with pytest.raises(ValueError, match="no dataset 'chain_sums'; did you mean 'chain_sum'"):
        tasks.get("reasoning_gym:chain_sums")
    with pytest.raises(ValueError, match="chain_sum refuses"):
        tasks.get({"name": "reasoning_gym:chain_sum", "min_terms": 9, "max_terms": 2})


def test_extraction() -> None:
    assert extract("<answer>3</answer> no <answer> 4 </answer>", None) == "4"
    assert extract("1 + 2\nso it is 3.\n\n", "7") == "3"
    assert extract("first\nlast line", "some words") == "last line"
    assert extract("", "7") == ""


# --- `vf:NAME`, data and reward of a verifiers environment ------------------------------------------------------------
# verifiers brings dozens of packages and is not installed for the tests: a stand-in has the functions that the task
# calls, with the signatures of verifiers 0.1.10 to 0.3.1. Where the package is installed, its own classes are used.


ROWS = [
    {"prompt": [{"role": "system", "content": "Add."}, {"role": "user", "content": f"{n} + {n} = ?"}],
     "answer": str(2 * n), "info": '{"difficulty": 1}', "example_id": n}
    for n in range(200)
]  # fmt: skip


def right(completion: list[dict[str, str]], answer: str, info: dict[str, Any]) -> float:
    return float(info["difficulty"]) * (completion[-1]["content"] == answer)


class Rubric:
    async def score_rollout(self, state: dict[str, Any]) -> None:
        state["reward"] = 0.5 * right(state["completion"], state["answer"], state["info"])


def environment(**changed: Any) -> SimpleNamespace:
    values = {"max_turns": 1, "rubric": Rubric(), "build_dataset": lambda: ROWS, "build_eval_dataset": lambda: None}
    return SimpleNamespace(**(values | changed))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The environments of a stand-in for the package, by name; those with arguments are functions."""
    environments: dict[str, Any] = {"sums": environment()}

    def load_environment(name: str, **given: Any) -> Any:
        return environments[name](**given) if given else environments[name]

    stand_in(monkeypatch, "verifiers", load_environment=load_environment)
    verifiers_env._loaded.cache_clear()
    return environments


def test_prompts_splits_and_rewards(installed: dict[str, Any]) -> None:
    task = Verifiers(environment="sums")
    assert task.label == "vf:sums"
    example = task.example("train", 3)
    assert example.prompt.startswith("Add.\n\n")
    assert task.score(example, example.answer["answer"]) == 0.5
    assert task.score(example, "no") == 0
    assert task.example("train", 3) == example
    prompts = [{task.example(split, i).prompt for i in range(task.size(split))} for split in ("train", "eval")]
    assert not prompts[0] & prompts[1]
    assert task.size("train") + task.size("eval") + task.size("validation") == 200


def test_the_environments_own_held_out_rows_are_eval(installed: dict[str, Any]) -> None:
    installed["split"] = lambda n: environment(build_eval_dataset=lambda: ROWS[:n])
    task = Verifiers(environment="split", arguments='{"n": 20}')
    assert task.size("eval") == 20
    assert task.size("train") + task.size("validation") == 180


def test_what_cannot_be_used_is_one_sentence(installed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    installed["chat"], installed["empty"] = environment(max_turns=-1), environment(build_dataset=lambda: None)
    with pytest.raises(ValueError, match="'chat' has more than one turn"):
        Verifiers(environment="chat").example("train", 0)
    with pytest.raises(ValueError, match="'empty' has no data"):
        Verifiers(environment="empty").example("train", 0)
    with pytest.raises(ValueError, match=r"arguments = .* give a JSON object"):
        tasks.get({"name": "vf:sums", "arguments": "[20]"})
    monkeypatch.setitem(sys.modules, "verifiers", None)
    with pytest.raises(ValueError, match="vf:missing needs verifiers"):
        Verifiers(environment="missing").prepare()
