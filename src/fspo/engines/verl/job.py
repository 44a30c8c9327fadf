"""What verl is given besides its settings: prompts, environment, and (by a dry run) a script to run elsewhere."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import polars as pl

from fspo.config import TrainConfig
from fspo.engines.translate import is_chat, rows, start, write_job
from fspo.engines.verl.hydra_settings import command, overrides
from fspo.engines.verl.probe import environment

RUN = "@RUN@"  # the run folder, in a command that is still to be written for a shell; no character of it is quoted


def write_prompts(config: TrainConfig, folder: Path) -> None:
    """The prompts as verl reads them: train.parquet and eval.parquet."""
    for name, spec, split, count in (
        ("train", config.task, "train", config.steps * config.rollout.prompts),
        ("eval", config.eval_task, config.eval.split, config.eval.prompts),
    ):
        table = [
            {
                "data_source": row["task"], "prompt": [{"role": "user", "content": row["prompt"]}],
                "reward_model": {"style": "rule", "ground_truth": json.dumps([split, row["index"]])},
                "extra_info": {"index": row["index"]},
            }
            for row in rows(spec, split, count)
        ]  # fmt: skip
        pl.DataFrame(table).write_parquet(folder / f"{name}.parquet")


def dry_run(config: TrainConfig, folder: Path) -> str:
    """Write all that a run needs, for any machine that has verl and sees the folder; returns the command."""
    settings = overrides(config, RUN, _chat(config)) | {"trainer.experiment_name": folder.name}
    words = command(settings)
    variables = [f"{key}={shlex.quote(value)}" for key, value in environment(RUN).items()]
    lines = [*variables, shlex.join(["python", *words[1:3]]), *map(shlex.quote, words[3:])]
    shown = " \\\n  ".join(lines).replace(RUN, '"$RUN"')
    after = [
        "python -c 'import sys; from fspo.engines.verl.log import collect; collect(sys.argv[1], sys.argv[2])' "
        '"$RUN/verl.jsonl" "$RUN"',
        'fspo report "$RUN"',
    ]
    folder.mkdir(parents=True, exist_ok=True)
    start(config, folder)
    write_prompts(config, folder)
    script = write_job(config, folder, ['cp "$RUN/job.yaml" "$RUN/config.yaml"', shown, *after])
    return f"# written to {script}, with the prompts; copy {folder} to the machine that trains\n{shown}"


def _chat(config: TrainConfig) -> bool:
    """Whether prompts are turns of a chat; the tokenizer is only asked where the configuration does not say it."""
    if config.model.chat is not None:
        return config.model.chat
    if config.model.path.startswith("tiny:"):
        return False
    from transformers import AutoTokenizer

    path = Path(config.model.path)
    source = {"gguf_file": path.name} if path.suffix == ".gguf" else {}
    name = str(path.parent) if source else config.model.path
    try:
        template = AutoTokenizer.from_pretrained(name, **source).chat_template
    except OSError as error:
        raise ValueError(
            f"whether {name} has a chat template is not known, because its tokenizer cannot be loaded "
            f"({str(error).partition('. ')[0]}): set model.chat to true or false"
        ) from None
    return is_chat(config, template)
