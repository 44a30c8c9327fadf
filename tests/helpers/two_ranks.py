"""One of two processes that learn together; the first compares with learning alone.

Run as `python -m helpers.two_ranks FOLDER RANK`. The two meet at a file of the folder, and the first writes
`result.json` to it: by case, what differs.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fspo import objectives, tasks
from fspo.config import read
from fspo.model.answers import Answers
from fspo.model.loading import Policy, load
from fspo.runs.recorder import Recorder, Update
from fspo.tasks.scoring import Scorer
from fspo.training.collect import collect
from fspo.training.evaluate import evaluate
from fspo.training.processes import ProcessTeam, Team
from fspo.training.update import Learner

CASES: dict[str, list[str]] = {
    "fspo": [],
    "every row": ["update.all_rows=true"],
    "on-policy": ["update.epochs=1", "update.minibatches=1"],
    "small micro-batches": ["update.token_budget=30"],
    "drift of the batch": ["objective={name: fspo, drift: kl}"],
    "drift of the batch, small micro-batches": ["objective={name: fspo, drift: kl}", "update.token_budget=30"],
    "learnt band": ["objective={name: fspo, clip_rate: 0.2}"],
    "adaptive": ["objective=fspo_gate"],
    "tokens": ["objective=grpo"],
    "mean over tokens": ["objective=dapo"],
    "entropy": ["objective={name: fspo, entropy_coef: 0.1}"],
    "reference": ["objective={name: gspo, kl: {coef: 0.1}}"],
    # On these prompts S is 0 in one layout of the first update and 1e-16 in the other.
    "stale": ["rollout.staleness=1", "task={name: sort, n_min: 2, n_max: 4, noise_by_length: 0.8}"],
    "one row": ["rollout.prompts=1", "rollout.group=2", "update.minibatches=1"],
    "nothing has a gradient": ["task={name: sort, n_min: 20, n_max: 20}"],
}
SMALL = ["task={name: sort, n_min: 2, n_max: 4, noise: 0.4}", "rollout.prompts=6", "rollout.group=4",
         "rollout.max_new_tokens=6", "update.minibatches=2", "update.lr=0.01", "update.schedule=constant",
         "log.cosine=1", "objective=fspo"]  # fmt: skip


Learned = tuple[Answers, list[Update], torch.Tensor, dict[str, Any], dict[str, Any]]


def in_double(seed: int) -> Policy:
    policy = load("tiny:1x32", seed=seed)
    policy.model.double()
    return policy


def learned(options: list[str], team: Team) -> Learned:
    config = read(None, ["model.path=tiny:1x32", *SMALL, *options])
    policy = in_double(3)
    task = tasks.get(config.task)
    objective = objectives.get(**config.objective)
    learner = Learner(policy, objective, config, team)
    with Scorer(task) as scorer:
        sampled, _ = collect(policy, task, scorer, config, 1, 0, team)
        if config.rollout.staleness:
            learner.take_old(sampled, range(len(sampled)))
        if objective.kl is not None:
            sampled.reference = learner.logprobs(in_double(4), sampled)
        updates = learner.learn(sampled, 1)
        evaluation = evaluate(
            policy, task, scorer, split="eval", prompts=7, samples=2, max_new_tokens=6, temperature=1.0, seed=0,
            team=team,
        )  # fmt: skip
    weights = torch.cat([p.detach().reshape(-1) for p in policy.model.parameters()])
    return sampled, updates, weights, objective.state_dict(), evaluation.line(0).model_dump()


def compared(options: list[str], team: Team) -> dict[str, Any]:
    ours, updates, weights, state, evaluation = learned(options, team)
    theirs, expected, alone, wanted, evaluated_alone = learned(options, Team())
    everyone = team.gather(weights)
    return {
        "same answers": ours.completions == theirs.completions and ours.rewards == theirs.rewards,
        "same in both": all(torch.equal(w, weights) for w in everyone),
        "weights": float((weights - alone).abs().max()),
        "log_ratio": max(
            float(abs(u.log_ratio - v.log_ratio).max()) if len(u.computed) else 0.0
            for u, v in zip(updates, expected, strict=True)
        ),
        "metrics": max(
            abs(u.metrics[key] - v.metrics[key]) / (abs(v.metrics[key]) + 1e-6)
            for u, v in zip(updates, expected, strict=True)
            for key in v.metrics
        ),
        "old": math.inf if ours.old is None or theirs.old is None else float((ours.old - theirs.old).abs().max()),
        "computed": sum(len(u.computed) for u in updates),
        "rows": sum(len(u.members) for u in updates),
        "cosines": [None if u.cosine is None else u.cosine.measured for u in updates],
        "same evaluation": evaluation == evaluated_alone,
        "state": max((abs(v[name] - state[k][name]) for k, v in wanted.items() for name in v), default=0.0),
    }


def main() -> None:
    torch.set_num_threads(1)
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    early = Recorder(folder / "before", rule="gspo")
    dist.init_process_group("gloo", init_method=f"file://{folder.resolve()}/meeting", rank=rank, world_size=2)
    for recorder in (early, Recorder(folder / "after", rule="gspo")):
        recorder.record(torch.full((3, 4), 0.1 + rank), torch.zeros(3, 4), torch.ones(3), torch.ones(3, 4))
        assert (recorder.writer is None) == (rank == 1)
    team = ProcessTeam()
    results = {name: compared(options, team) for name, options in CASES.items()}
    if team.is_main:
        (folder / "result.json").write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
