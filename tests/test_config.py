"""The configuration: files, overrides, and the sentences for what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

import fspo
from fspo import config, objectives, tasks
from fspo.config import TrainConfig, read
from fspo.runs import Observer, RunWriter
from fspo.settings import Settings
from fspo.tasks.registry import TASKS


class Riddles(tasks.Task):
    """A task of a user."""

    name: ClassVar[str] = "riddles"
    summary: ClassVar[str] = "riddles"

    count: int = 1


def test_there_is_one_set_of_defaults(tmp_path: Path) -> None:
    """What `fspo train` runs with no argument is what a library user gets."""
    assert read(None, []) == TrainConfig()
    assert TrainConfig().objective == {"name": objectives.DEFAULT}
    RunWriter(tmp_path).describe(TrainConfig().model_dump(mode="json"), engine="local")
    assert read(tmp_path / "config.yaml", []) == TrainConfig()


def test_a_warm_start_is_the_default_of_models_that_start_from_random_weights() -> None:
    assert read(None, ["model.path=tiny:1x32"]).warmup is not None
    assert read(None, ["model.path=Qwen/Qwen3-0.6B"]).warmup is None
    assert read(None, ["model.path=Qwen/Qwen3-0.6B", "warmup.solved=0.5"]).warmup is not None
    assert read(None, ["warmup=null"]).warmup is None


@pytest.mark.parametrize(("task", "solved"), [("walk", 0.5), ("{name: walk, n_max: 90}", 0.5), ("sort", 0.25)])
def test_a_task_knows_how_much_of_it_a_warm_start_should_solve(task: str, solved: float) -> None:
    warm = read(None, [f"task={task}"]).warmup
    assert warm is not None
    assert warm.solved == solved


def test_answers_of_the_default_run_differ_in_length_by_a_factor_of_fifty() -> None:
    """So that its page shows what a clip range does to lengths."""
    default = TrainConfig()
    task = tasks.get(default.task)
    lengths = sorted(len(task.example("train", index).solution or "") for index in range(400))
    assert lengths[-20] > 50 * lengths[20]
    assert lengths[-1] <= default.rollout.max_new_tokens
    assert default.update.schedule == "constant"  # updates as large at the end as at the start: clipping goes on


SECTIONS: list[Any] = [getattr(config, name) for name in dir(config) if name.endswith("Config")]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_setting_is_described(section: type[Settings]) -> None:
    for name, field in section.model_fields.items():
        table = isinstance(field.annotation, type) and issubclass(field.annotation, Settings)
        assert table or field.description, name


def test_a_file_and_overrides(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("steps: 7\nobjective: gspo\nupdate: {lr: 0.002}\n")
    changed = read(tmp_path / "a.yaml", ["update.lr=1e-3", "objective.clip_low=0.01", "task.n_max=9", "warmup=null"])
    assert changed.update.lr == 0.001
    assert changed.objective == {"name": "gspo", "clip_low": 0.01}
    assert changed.task == {"name": "walk", "down": True, "n_max": 9}
    tables = {"update": {"lr": 1e-3}, "objective": {"clip_low": 0.01}, "task": {"n_max": 9}, "warmup": None}
    assert read(tmp_path / "a.yaml", tables) == changed
    assert read(tmp_path / "a.yaml", {"objective": {"name": "fspo"}}).objective == {"name": "fspo"}
    mixed = read(None, ["task=[{name: sort, weight: 3}, add]"])
    assert [t["name"] if isinstance(t, dict) else t for t in mixed.task] == ["sort", "add"]


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["stepz=3"], "there is no setting 'stepz' in 'stepz=3'; did you mean 'steps'?"),
        (["steps"], "the override 'steps' is not of the form key=value"),
        (["update.lrr=1"], "update has no parameter 'lrr'; did you mean 'lr'?"),
        (["objective=gspoo"], "there is no objective 'gspoo'; did you mean 'gspo'?"),
        (["objective.c_low=-1"], "FSPOGate.c_low = -1"),
        (["objective=3"], "3 is not an objective: write a name, or a table with a name"),
        (["advantage=rlo"], "there is no advantage 'rlo'; did you mean 'rloo'?"),
        (["task=sorting"], "there is no task 'sorting'; did you mean 'sort'?"),
        (["update.minibatches=64"], "a minibatch holds whole groups"),
        (["update.lr_warmup=500"], "must be below steps"),
        (["rollout.top_p=0.9"], "rollout has no parameter 'top_p'"),
        (["objective=opo"], "'opo' is an advantage and not an objective: set advantage=opo"),
        (["advantage=gspo"], "'gspo' is an objective and not an advantage: set objective=gspo"),
    ],
)
def test_mistakes_are_one_clear_sentence(overrides: list[str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence.replace("?", r"\?")) as error:
        read(None, overrides)
    assert "\n" not in str(error.value)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no configuration file"):
        read(tmp_path / "none.yaml", [])
    (tmp_path / "bad.yaml").write_text("a: [1,\nb: 2")
    with pytest.raises(ValueError, match="cannot be read") as error:
        read(tmp_path / "bad.yaml", [])
    assert "\n" not in str(error.value)
    (tmp_path / "long.yaml").write_text("steps: 3\n" + "#" * 200_000)
    with pytest.raises(ValueError, match="more than 200,000 characters"):
        read(tmp_path / "long.yaml", [])
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ValueError, match="must hold a table of settings, not list"):
        read(tmp_path / "list.yaml", [])


def test_an_objective_of_the_same_name_as_an_advantage_is_trained_with_a_note(tmp_path: Path) -> None:
    class Notes(Observer):
        texts: ClassVar[list[str]] = []

        def note(self, text: str) -> None:
            self.texts.append(text)

    small: dict[str, Any] = {"model": {"path": "tiny:1x32"}, "warmup": None, "steps": 1, "eval": {"prompts": 1}}
    small |= {"task": {"name": "sort", "n_max": 4}, "rollout": {"prompts": 4, "group": 2, "max_new_tokens": 4}}
    fspo.train(small | {"objective": "grpo"}, tmp_path / "silent", observer=Notes())
    assert "the objective grpo is trained with the default advantage rloo; advantage=grpo is another" in Notes.texts
    Notes.texts.clear()
    fspo.train(small | {"objective": "grpo", "advantage": "rloo"}, tmp_path / "chosen", observer=Notes())
    assert Notes.texts == []


def test_a_resumed_run_starts_from_its_own_configuration(tmp_path: Path) -> None:
    saved = config.read(None, ["objective=gspo", "rollout.prompts=8", "seed=3"])
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(saved.model_dump(mode="json")))
    resumed = config.read(path, ["steps=400", "log.samples=9", "eval.prompts=7"])
    config.require_same_run(saved, resumed)
    assert (resumed.objective, resumed.rollout.prompts, resumed.seed, resumed.steps) == ({"name": "gspo"}, 8, 3, 400)


@pytest.mark.parametrize(
    "override",
    ["seed=4", "objective=fspo", "objective.clip_low=0.1", "task=count", "rollout.group=4", "model.path=tiny:1x32",
     "update.lr=1e-3", "advantage=grpo", "warmup=null"],
)  # fmt: skip
def test_what_would_make_it_another_run_is_refused(override: str) -> None:
    saved, other = config.read(None, ["objective=gspo"]), config.read(None, ["objective=gspo", override])
    with pytest.raises(ValueError, match=r"would make this another run .* or add --force"):
        config.require_same_run(saved, other)


def test_a_task_object_is_saved_by_its_name_and_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the saved configuration stands for the same task."""
    own = config.TrainConfig(task=tasks.get({"name": "sort", "n_max": 5}))
    assert own.task == {"name": "sort", "n_max": 5}
    assert own == config.TrainConfig(**own.model_dump(mode="json"))
    assert config.TrainConfig(task=Riddles(count=3)).task == {"name": f"{Riddles.__module__}:Riddles", "count": 3}

    class Hidden(Riddles):
        """Of a function."""

    with pytest.raises(ValueError, match=r"the task Hidden is not in a module.* such as riddles\.py"):
        config.TrainConfig(task=Hidden())
    monkeypatch.setattr(TASKS, "_classes", dict(TASKS._classes))
    tasks.register(Hidden)  # a name does not help the processes that score
    for spec in ("riddles", {"name": "riddles"}, ["sort", "riddles"], Hidden()):
        with pytest.raises(ValueError, match=r"the task Hidden is not in a module.* such as riddles\.py"):
            config.TrainConfig(task=spec)
    mixture = config.TrainConfig(task=tasks.get(["sort", {"name": "jsonl:a.jsonl", "weight": 3}])).task
    assert mixture == [{"name": "sort", "weight": 1.0}, {"name": "jsonl", "path": "a.jsonl", "weight": 3.0}]
