"""What every file of a run folder holds. The writer accepts nothing else, and the reader gives it back as these types.

    run.json                 Facts: format version, engine, versions
    config.yaml              the configuration, as the engine that ran it writes it
    metrics.jsonl            Metrics: one line per step (rollout)
    timings.jsonl            Timing: one line per step; the only file that depends on the clock
    evaluations.jsonl        Evaluated: one line per held-out evaluation and split
    samples.jsonl            Sample: some answers of each step
    cosine.jsonl             Cosine: measured direction of an update, where `log.cosine` asks for it
    updates.jsonl            UpdateState: tracker state that TRL's or verl's checkpoint does not hold
    records/step-*.parquet   ROWS: one row per response and update

All but timings.jsonl and run.json are a function of the configuration alone: a run that was killed and resumed writes
the same bytes.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

FORMAT = 2
"""Version of this schema. Format 1 had no run.json with a version and no column `off_policy`."""


def _null_if_not_finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


Number = Annotated[float | None, BeforeValidator(_null_if_not_finite)]
"""A finite number; NaN and infinities, which JSON cannot hold, are null."""

Whole = Annotated[int, Field(ge=-(2**53), le=2**53)]
"""A whole number that a float can hold exactly: pages and tables compute with it."""

Interval = tuple[float, float]


class _Part(BaseModel):
    """A value inside a line."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Line(_Part):
    """One line of a JSON-lines file."""

    file: ClassVar[str]  # the name of the file without its ending
    what: ClassVar[str]  # what a reader misses when the file is missing

    step: Whole


class ClipBin(_Part):
    """Clip rate of a bin of lengths, with its interval."""

    low: float
    high: float
    count: Whole
    clip_rate: float
    interval: Interval


class Metrics(Line):
    """A step: its answers, what its updates did, and the fairness of their clipping.

    Clip rates, LRE and flatness are over off-policy responses that have a gradient; mu, sigma and ess over all
    off-policy responses of an update that were computed (without a gradient only where the objective needs them or
    `update.all_rows` asks for it), kl and entropy over the computed ones. An objective's own numbers may stand beside.
    """

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)
    __pydantic_extra__: dict[str, Number]

    file: ClassVar[str] = "metrics"
    what: ClassVar[str] = "training curves"

    # the answers
    reward: Number = None  # mean over scored answers
    accuracy_train: Number = None  # share with the whole reward
    length: Number = None  # mean, in tokens
    truncated: Number = None  # share that met the limit
    groups: Whole | None = None
    groups_without_variance: Whole | None = None
    groups_single: Whole | None = None  # fewer than two scored answers
    unscored: Whole | None = None  # answers without a score, in this step
    unscored_by_kind: dict[str, Whole] = {}
    unscored_example: dict[str, str] = {}  # the first message of each kind
    entropy: Number = None  # nats per token
    # the updates
    updates: Whole | None = None
    rows: Whole | None = None  # responses of all updates that moved the policy
    on_policy: bool | None = None  # no update was off-policy
    skipped: Whole | None = None  # updates without a finite gradient, since the run began
    lr: Number = None
    loss: Number = None
    grad_norm: Number = None  # before any limit, mean over the updates
    norm_clipped: Number = None  # share of the updates whose norm was above the limit
    capped: Number = None  # share of weights at the exponent cap
    kl: Number = None  # of the last update, nats per token
    ess: Number = None  # least of the step's off-policy updates, as a share
    mu: Number = None  # this and what follows are of the last off-policy update
    sigma: Number = None
    drift: Number = None  # centre and half-widths of the objective's band
    c_low: Number = None
    c_high: Number = None
    exponent: Number = None  # of a band that is learnt: c sqrt(pivot) (L / pivot)^exponent
    pivot: Number = None
    # the fairness of clipping
    clip_rate: Number = None
    lre: Number = None
    lre_interval: Interval | None = None
    flatness: Number = None
    clip_by_length: list[ClipBin] = []
    warnings: dict[str, str] = {}  # by kind


class Timing(Line):
    """Seconds of a step."""

    file: ClassVar[str] = "timings"
    what: ClassVar[str] = "times and tokens per second"

    rollout: Number = None
    update: Number = None
    total: Number = None
    tokens_per_second: Number = None


class Rate(_Part):
    """Accuracy of some answers."""

    count: Whole
    accuracy: float
    interval: Interval


class RateBin(Rate):
    """Accuracy of the answers of a bin."""

    low: float
    high: float


class Evaluated(Line):
    """A held-out evaluation. Rates are over the answers that could be scored."""

    file: ClassVar[str] = "evaluations"
    what: ClassVar[str] = "held-out accuracy"

    split: str
    samples: Whole | None = None
    prompts: Whole | None = None
    accuracy: Number = None
    interval: Interval | None = None
    reward: Number = None
    truncated: Number = None
    unscored: Whole | None = None
    unscored_by_kind: dict[str, Whole] = {}
    unscored_example: dict[str, str] = {}  # the first message of each kind
    pass_at: dict[Whole, float] = {}
    pass_at_interval: dict[Whole, Interval] = {}
    by_length: list[RateBin] = []
    by_difficulty: list[RateBin] = []
    by_task: dict[str, Rate] = {}
    features: dict[str, float] = {}  # means of the features that the task measures of an answer


def unscored_warnings(line: Metrics | Evaluated) -> dict[str, str]:
    """A warning for each kind of failure of the reward, with its count and its first message."""
    warnings = {}
    for kind, count in line.unscored_by_kind.items():
        message = f": {text}" if (text := line.unscored_example.get(kind)) else ""
        answers = "1 answer" if count == 1 else f"{count:,} answers"
        warnings[f"unscored_{kind}"] = (
            f"{answers} could not be scored and count neither right nor wrong; the first {kind}{message}"
        )
    return warnings


class Sample(Line):
    """An answer as the model wrote it."""

    file: ClassVar[str] = "samples"
    what: ClassVar[str] = "sample answers"

    prompt: str
    completion: str
    task: str | None = None
    reward: Number = None  # null where it could not be scored
    length: Whole | None = None
    truncated: bool | None = None


class Cosine(Line):
    """The cosine of the clipped and the true update, and its lower bounds; a bound of -1 guarantees nothing."""

    file: ClassVar[str] = "cosine"
    what: ClassVar[str] = "measured directions"

    update: Whole
    measured: float
    bound: float
    bound_tight: float


class UpdateState(Line):
    """What an engine has learnt about the updates of a rollout, after a step."""

    file: ClassVar[str] = "updates"
    what: ClassVar[str] = "state of the updates"

    known: dict[str, list[float | None]]
    objective: dict[str, Any]


LINES: tuple[type[Line], ...] = (Metrics, Timing, Evaluated, Sample, Cosine, UpdateState)


class Facts(_Part):
    """run.json: what the folder is, and what wrote it."""

    format: Whole = FORMAT
    engine: str = "local"
    versions: dict[str, str] = {}
    python: str = ""
    threads: Whole | None = None
