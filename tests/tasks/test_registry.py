import pickle
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fspo.tasks as tasks


def test_every_name_has_one_line():
    assert set(tasks.names()) == set(tasks.summaries())
    assert all(line and "\n" not in line and len(line) < 100 for line in tasks.summaries().values())
    assert {"sort", "add", "reasoning_gym", "jsonl", "hf", "python", "code"} <= set(tasks.names())


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("srt", "unknown task 'srt'; did you mean 'sort'?"),
        ({"name": "sort", "n_mx": 5}, "task sort has no parameter 'n_mx'; did you mean 'n_max'?"),
        (
            {"name": "sort", "n_max": 0},
            "task sort.n_max = 0: Input should be greater than or equal to 1",
        ),
        ({"name": "sort", "n_min": 9, "n_max": 3}, "n_min 9 is above n_max 3: swap them"),
        ({"n_max": 5}, "has no name: add 'name'"),
        ("sort:5", "task 'sort' takes nothing after a colon"),
        ("jsonl", "task jsonl needs the parameter 'path': path of a JSON-lines file"),
        ("python:module", "it must read module:function"),
        ([], "is not a task: write a name"),
        (7, "7 is not a task: write a name"),
        ([{"name": "sort", "weight": -1}], "weight -1.0 is not positive"),
    ],
)
def test_a_wrong_specification_gives_one_sentence(spec, sentence):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        tasks.get(spec)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_task_is_its_parameters():
    task = tasks.get({"name": "sort", "n_max": 10})
    assert task == tasks.get({"n_max": 10, "name": "sort"})
    assert tasks.get(task) is task
    assert pickle.loads(pickle.dumps(task)) == task
    with pytest.raises(ValueError, match="frozen"):
        task.n_max = 5


def test_a_mixture_keeps_its_proportions_and_leaves_no_gap():
    mixture = tasks.get([{"name": "sort", "weight": 3}, "add", {"name": "sort", "n_max": 8, "weight": 0.01}])
    examples = [mixture.example("train", i) for i in range(2000)]
    counts = Counter(example.task for example in examples)
    assert counts == {"sort": 1496, "add": 498, "sort#2": 6}
    for name, part in (("sort", "sort"), ("add", "add")):
        alone = [tasks.get(part).example("train", i).prompt for i in range(counts[name])]
        assert [e.prompt for e in examples if e.task == name] == alone
    assert [example.index for example in examples] == list(range(2000))
    assert all(mixture.score(example, example.solution) == 1.0 for example in examples)
    assert mixture.component(next(e for e in examples if e.task == "sort#2")).n_max == 8
    assert counts["sort"] / 2000 == pytest.approx(3 / 4.01, abs=0.001)


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=8))
@settings(max_examples=50, deadline=None)
def test_any_positive_weights_make_a_mixture(weights):
    mixture = tasks.get([{"name": "add", "weight": weight, "seed": i} for i, weight in enumerate(weights)])
    seen = {mixture.example("train", i).task for i in range(1000)}
    assert len(seen) == len(weights)
