"""The configuration: files, overrides, and the sentences for what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fspo import objectives
from fspo.local import config
from fspo.local.config import TrainConfig, read, write


def test_the_default_is_complete_and_survives_a_file(tmp_path: Path) -> None:
    default = read(None, [])
    assert default.warmup is not None
    assert default.objective == {"name": "fspo", "c_low": 0.05, "c_high": 0.05, "c_dual": 0.1}
    assert objectives.get(**default.objective).drift == "zero"  # type: ignore[attr-defined]
    write(default, tmp_path / "c.yaml")
    assert read(tmp_path / "c.yaml", []) == default
    for model in (
        TrainConfig,
        *(getattr(config, n) for n in dir(config) if n.endswith("Config") and n != "TrainConfig"),
    ):
        for name, field in model.model_fields.items():
            assert field.description or issubclass(field.annotation, config.Settings), (model, name)  # type: ignore[arg-type]


def test_yaml_toml_and_overrides(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("steps: 7\nobjective: gspo\nupdate: {lr: 0.002}\n")
    (tmp_path / "a.toml").write_text('steps = 7\nobjective = "gspo"\n[update]\nlr = 0.002\n')
    assert read(tmp_path / "a.yaml", []) == read(tmp_path / "a.toml", [])
    changed = read(tmp_path / "a.yaml", ["update.lr=1e-3", "objective.clip_low=0.01", "task.n_max=9", "warmup=null"])
    assert changed.update.lr == 0.001
    assert changed.objective == {"name": "gspo", "clip_low": 0.01}
    assert changed.task == {"name": "sort", "n_max": 9}
    mixed = read(None, ["task=[{name: sort, weight: 3}, add]"])
    assert [t["name"] if isinstance(t, dict) else t for t in mixed.task] == ["sort", "add"]


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["stepz=3"], "there is no setting 'stepz' in 'stepz=3'; did you mean 'steps'?"),
        (["steps"], "the override 'steps' is not of the form key=value"),
        (["steps=0"], "TrainConfig.steps = 0"),
        (["update.lrr=1"], "UpdateConfig has no parameter 'lrr'; did you mean 'lr'?"),
        (["objective=gspoo"], "there is no objective 'gspoo'; did you mean 'gspo'?"),
        (["objective.c_low=-1"], "FSPO.c_low = -1"),
        (["advantage=rlo"], "there is no advantage 'rlo'"),
        (["task=sorting"], "unknown task 'sorting'; did you mean 'sort'?"),
        (["update.minibatches=64"], "a minibatch holds whole groups"),
        (["update.lr_warmup=500"], "must be below steps"),
        (["rollout.top_p=0.9"], "RolloutConfig has no parameter 'top_p'"),
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
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ValueError, match="must hold a table of settings, not list"):
        read(tmp_path / "list.yaml", [])
