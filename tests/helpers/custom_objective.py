"""Objectives as a user writes them, outside of the package."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from fspo.objectives import FSPO, RLOO, Band, Batch, Objective, Surrogate, Totals, pessimistic


class Mine(Objective):
    """The example of docs/own-objective.md: a loss, and nothing about its range."""

    name: ClassVar[str] = "mine"
    summary: ClassVar[str] = "one line for `fspo methods`"
    aggregation = "sequence_mean_of_sums"

    width: float = Field(0.1, ge=0, description="half-width of the range of S")

    def surrogate(self, batch: Batch) -> Surrogate:
        A = batch.row_advantages
        clip = pessimistic(batch.log_ratio, A, -self.width, self.width, self.exponent_cap)
        return Surrogate(clip.ratio * A, clip.accepted.to(A.dtype), clip.capped)


class Scaled(Mine):
    """The same with a range that can be set, and without a band: what it accepts is asked of its loss."""

    name: ClassVar[str] = "scaled"
    clip_fields: ClassVar[tuple[str, ...]] = ("width",)

    def scaled(self, k: float) -> Scaled:
        return self.model_copy(update={"width": k * self.width})


class Banded(Scaled):
    """The same with its band."""

    name: ClassVar[str] = "banded"

    def band(self, lengths: Any, totals: Totals) -> Band:
        return Band(0.0, self.width, self.width)


class Torchbound(Banded):
    """The same with a band that cannot be asked with arrays."""

    name: ClassVar[str] = "torchbound"

    def band(self, lengths: Any, totals: Totals) -> Band:
        return Band(0.0, self.width * lengths.new_ones(1), self.width)


class Talkative(Mine):
    """The same with a number of its own, and one under a name that the run's metrics have."""

    name: ClassVar[str] = "talkative"

    def surrogate(self, batch: Batch) -> Surrogate:
        surrogate = super().surrogate(batch)
        surrogate.metrics.update(own_number=float(batch.lengths.mean()), reward=99.0)
        return surrogate


class Cubic(RLOO):
    """A band that grows as the cube root of the length, around a centre of its own."""

    name: ClassVar[str] = "cubic"
    summary: ClassVar[str] = "a rule of <b>another</b> package"
    clip_fields: ClassVar[tuple[str, ...]] = ("clip_high",)

    def band(self, lengths: Any, totals: Totals) -> Band:
        width = self.clip_high * lengths ** (1 / 3)
        return Band(-1e-4 * lengths, 2 * width, width)

    def scaled(self, k: float) -> RLOO:
        return self.model_copy(update={"clip_high": k * self.clip_high})


class Halved(FSPO):
    """FSPO with half the loss."""

    name: ClassVar[str] = "halved"

    reference_length: float = 2.0


HALVED = f"{__name__}:Halved"
