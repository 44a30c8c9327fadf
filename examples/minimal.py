"""FSPO in one file: a tiny model, sampling, the loss, and an audit of what the loss clipped.

    python examples/minimal.py                       # under a minute on one core
    python examples/minimal.py --objective gspo      # any name of `fspo methods`: which lengths does it clip?

A prompt is a digit, and the answer should count on from it: 3 -> 4 5 6 7 0 1 2 ... for 2 to 64 tokens, so a clip range
that treats lengths differently shows. A step is what every trainer of this kind does:

    1. sample a group of answers to each prompt, and keep their log-probs       (pi_old)
    2. score the answers with a program, and compare each with its group        (A)
    3. make several updates on them with a clipped loss                         (S = sum of log pi - log pi_old)

Left out, and what `fspo train` has: tasks of text, held-out evaluation, checkpoints, stale answers, several processes.
"""

import argparse
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor, nn

import fspo


@dataclass
class Args:
    """The settings of a run."""

    objective: str = "fspo"  # the loss
    advantage: str = "rloo"  # reward minus the mean of the other answers to the prompt
    steps: int = 30  # rollouts
    prompts: int = 16  # prompts per rollout
    group: int = 16  # answers per prompt
    updates: int = 4  # optimiser steps per rollout; from the second on the ratio is not 1, and clipping can act
    lr: float = 1e-3
    seed: int = 0


DIGITS, SHORTEST, LONGEST = 8, 2, 64


class Policy(nn.Module):
    """A recurrent network over digits: the next one, given those before it."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(DIGITS, width)
        self.cell = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, DIGITS)

    def logprobs(self, prompts: Tensor, answers: Tensor) -> Tensor:
        """(B,) prompts, (B, T) answers -> (B, T): log-prob of each token of the answer, given those before it."""
        before = torch.cat([prompts[:, None], answers[:, :-1]], 1)
        logits = self.head(self.cell(self.embedding(before))[0])
        return logits.log_softmax(-1).gather(-1, answers[..., None])[..., 0]

    @torch.no_grad()
    def sample(self, prompts: Tensor, length: int) -> Tensor:
        """(B,) prompts -> (B, length) answers, each token drawn from the whole distribution."""
        token, state, answers = prompts[:, None], None, []
        for _ in range(length):
            hidden, state = self.cell(self.embedding(token), state)
            token = torch.distributions.Categorical(logits=self.head(hidden)).sample()
            answers.append(token)
        return torch.cat(answers, 1)


def right(prompts: Tensor, answers: Tensor) -> Tensor:
    """(B, T): whether a token is one more than the token before it."""
    before = torch.cat([prompts[:, None], answers[:, :-1]], 1)
    return answers == (before + 1) % DIGITS


def train(args: Args) -> tuple[list[float], dict[str, list[float]]]:
    """Train a policy; returns the share of right tokens per step, and one row per answer and update."""
    torch.manual_seed(args.seed)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=args.lr)
    objective = fspo.objectives.get(args.objective)
    advantage = fspo.advantages.get(args.advantage)
    groups = torch.arange(args.prompts).repeat_interleave(args.group)
    shares: list[float] = []
    rows: dict[str, list[float]] = {"length": [], "log_ratio": [], "advantage": [], "accepted": []}

    for step in range(1, args.steps + 1):
        # 1. A rollout: `group` answers to each prompt, and the log-probs of the policy that sampled them.
        prompts = torch.randint(DIGITS, (args.prompts,))[groups]
        lengths = torch.exp(torch.empty(args.prompts).uniform_(log(SHORTEST), log(LONGEST))).round()[groups]
        answers = policy.sample(prompts, LONGEST)
        mask = torch.arange(LONGEST) < lengths[:, None]  # (B, T): the tokens that are trained
        with torch.no_grad():
            old_logprobs = policy.logprobs(prompts, answers)

        # 2. Rewards by a program, and advantages within each group.
        rewards = (right(prompts, answers) & mask).sum(1) / lengths
        advantages = advantage(rewards, groups)

        # 3. Updates. FSPO keeps S within c sqrt(L): the same share of short and of long answers.
        for update in range(args.updates):
            out = objective(policy.logprobs(prompts, answers), old_logprobs, advantages, mask, staleness=update)
            optimizer.zero_grad()
            out.loss.backward()
            optimizer.step()
            objective.observe(out.log_ratio, out.lengths, advantages, update)  # for objectives that learn their band
            if update:
                columns = (out.lengths, out.log_ratio, advantages, out.accepted)
                for name, column in zip(rows, columns, strict=True):
                    rows[name] += column.tolist()

        shares.append(rewards.mean().item())
        if step % 5 == 0:
            print(f"step {step:3}: {shares[-1]:4.0%} of the tokens right, {out.metrics['clip_rate']:4.0%} clipped")
    return shares, rows


def parse() -> Args:
    """The settings from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in vars(Args()).items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    return Args(**vars(parser.parse_args()))


if __name__ == "__main__":
    torch.set_num_threads(1)  # the tensors are small
    _, rows = train(parse())
    # Did the loss clip answers of all lengths alike? Audits of runs and of other trainers' logs read the same columns.
    print(fspo.audit(rows))
