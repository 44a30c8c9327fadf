"""`fspo plan`: memory by part and time per step of a configuration on an engine and a device."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

from fspo.config import TrainConfig
from fspo.engines.planning import memory
from fspo.engines.planning.devices import Device
from fspo.engines.planning.memory import GIB, Part
from fspo.engines.planning.shapes import Shape, shape_of
from fspo.engines.planning.steptime import BUSY, READ, Work, seconds
from fspo.engines.translate import PROMPT
from fspo.rollout.lanes import ROWS
from fspo.settings import flat

SPARE = 0.95  # of a device's memory that can be used: the rest is lost to fragments
WORKSPACE = 2 * GIB  # of vLLM, beside weights and cache
ENGINES = ("local", "trl", "verl")


@dataclass(frozen=True)
class Situation:
    """What a configuration does not say about where it runs."""

    engine: str
    device: Device
    name: str  # of the device
    devices: int = 1
    sharded: bool = False  # TRL under FSDP or ZeRO-3; verl always shards
    prompt: int = 256  # tokens of a prompt
    mean: int | None = None  # tokens of an answer; default: half of the longest


@dataclass(frozen=True)
class Requirements:
    """What a run needs of each device."""

    shape: Shape
    situation: Situation
    parts: list[Part]
    at_once: int  # answers of mean length that the sampler's cache holds
    times: dict[str, float]

    @property
    def peak(self) -> float:
        """Bytes, in the phase that needs more."""
        return max(sum(part.update for part in self.parts), sum(part.rollout for part in self.parts))

    @property
    def fits(self) -> bool:
        return self.peak <= SPARE * self.situation.device.memory_gib * GIB

    def verdict(self) -> str:
        """Whether it fits, in one sentence, with the largest part to look at if not."""
        have = self.situation.device.memory_gib
        said = f"{self.peak / GIB:.1f} of {have:g} GiB"
        if self.fits:
            return f"fits: {said}"
        largest = max(self.parts, key=lambda part: max(part.update, part.rollout))
        return f"does not fit: {said} (at most {SPARE:.0%} can be used); the largest part is {largest.name}"

    def text(self) -> str:
        """The table, in plain text."""
        place = self.situation
        count = f"{place.devices} x {place.name}" if place.devices > 1 else place.name
        rows = [(part.name, part.update / GIB, part.rollout / GIB) for part in self.parts]
        rows.append(("together", sum(row[1] for row in rows), sum(row[2] for row in rows)))
        lines = [f"{f'engine {place.engine}, {count}, GiB per device':<44}{'update':>8}{'rollout':>9}"]
        lines += [f"  {name:<42}{update:>8.1f}{rollout:>9.1f}" for name, update, rollout in rows]
        total = sum(self.times.values())
        each = ", ".join(f"{name} {value:.0f}" for name, value in self.times.items())
        lines.append(f"  {self.verdict()}; {self.at_once} answers in the cache at once")
        lines.append(f"  about {total:.0f} s per step ({each})")
        return "\n".join(lines)


def plan(config: TrainConfig, situation: Situation) -> Requirements:
    """The plan of a configuration, without loading its model."""
    shape, lora = shape_of(config.model.path), config.model.lora
    width = 2 if config.model.dtype == "bfloat16" else 4
    trained = shape.parameters if lora is None else shape.adapters(lora.rank)
    rollout, update = config.rollout, config.update
    answers = rollout.prompts * rollout.group
    mean = situation.mean or max(1, rollout.max_new_tokens // 2)
    tokens = update.token_budget
    if situation.engine == "trl":  # its micro-batches are padded to the longest answer
        tokens = max(1, update.token_budget // rollout.max_new_tokens) * (situation.prompt + rollout.max_new_tokens)
    # The local engine computes a prompt once per group, the others once per answer.
    prompts = rollout.prompts if situation.engine == "local" else answers
    whole = prompts * situation.prompt + answers * rollout.max_new_tokens
    most = max(1, whole // update.minibatches // situation.devices)
    sizes = memory.Sizes(
        shape, trained, width, min(tokens, most), situation.prompt, rollout.max_new_tokens, rollout.group
    )
    build = {"local": _local, "trl": _trl, "verl": _verl}[situation.engine]
    parts, cached, recompute = build(config, situation, sizes)
    at_once = cached if isinstance(cached, int) else int(cached // (shape.cached(width) * (situation.prompt + mean)))
    backward = (2 if lora is None else 1) + recompute
    # The local engine takes old log-probs in the forward of the first update; the others in a forward of their own.
    forwards = 1 - 1 / update.minibatches if situation.engine == "local" else 1.0
    work = Work(
        shape, answers // situation.devices, situation.prompt, prompts // situation.devices, mean,
        rollout.max_new_tokens, at_once, width, forwards, update.epochs, backward,
    )  # fmt: skip
    return Requirements(shape, situation, parts, max(1, min(at_once, work.answers)), seconds(work, situation.device))


# Parts; answers sampled at once (int) or bytes of the sampler's cache (float); whether activations are recomputed.
Built = tuple[list[Part], int | float, bool]


def _local(config: TrainConfig, place: Situation, sizes: memory.Sizes) -> Built:
    if place.devices > 1:
        raise ValueError(f"fspo plan counts one process of the local engine, not {place.devices}: leave --devices out")
    rollout, gpu = config.rollout, config.model.device.startswith("cuda")
    vllm, answers = rollout.engine == "vllm", rollout.prompts * rollout.group
    parts = memory.of_one_process(sizes, answers, rollout.cache_gib, vllm=vllm, gpu=gpu)
    return parts, rollout.cache_gib * GIB if vllm else min(ROWS, answers), False


def _trl(config: TrainConfig, place: Situation, sizes: memory.Sizes) -> Built:
    given = config.engines.trl
    uses_vllm = given.get("use_vllm", config.rollout.engine == "vllm")
    share = float(given.get("vllm_gpu_memory_utilization", 0.3)) if uses_vllm else 0.0
    recompute = bool(given.get("gradient_checkpointing", False))
    parts = memory.of_many_devices(
        sizes, place.devices if place.sharded else 1, share * place.device.memory_gib * GIB,
        sleeps=bool(given.get("vllm_enable_sleep_mode", False)), recompute=recompute, whole_logits=False,
    )  # fmt: skip
    if not uses_vllm:  # all answers of a device are generated at once, by transformers
        answers = config.rollout.prompts * config.rollout.group // place.devices
        cache = sizes.shape.cached(sizes.width) * answers * (sizes.prompt + sizes.answer)
        parts = [part for part in parts if not part.name.startswith("vLLM")]
        return [*parts, Part("cache of keys and values", 0, cache)], answers, recompute
    return parts, _vllm_cache(sizes, place, share, int(given.get("vllm_tensor_parallel_size", 1))), recompute


def _verl(config: TrainConfig, place: Situation, sizes: memory.Sizes) -> Built:
    given = {key.lstrip("+~"): value for key, value in flat(config.engines.verl).items()}

    def setting(name: str, default: Any) -> Any:
        return given.get(f"actor_rollout_ref.{name}", default)

    share = float(setting("rollout.gpu_memory_utilization", 0.5))
    recompute = bool(setting("model.enable_gradient_checkpointing", True))
    parts = memory.of_many_devices(
        sizes, place.devices, share * place.device.memory_gib * GIB,
        sleeps=bool(setting("rollout.free_cache_engine", True)), recompute=recompute,
        whole_logits=not setting("model.use_fused_kernels", False),
        offload=(
            bool(setting("actor.fsdp_config.param_offload", False)),
            bool(setting("actor.fsdp_config.optimizer_offload", False)),
        ),
    )  # fmt: skip
    return parts, _vllm_cache(sizes, place, share, int(setting("rollout.tensor_model_parallel_size", 1))), recompute


def _vllm_cache(sizes: memory.Sizes, place: Situation, share: float, tensor_parallel: int) -> float:
    """Bytes of a device's cache, as if a group of devices with one copy of the weights were one."""
    weights = sizes.shape.parameters * sizes.width / tensor_parallel
    return max(0.0, share * place.device.memory_gib * GIB - weights - WORKSPACE)


ASSUMED = textwrap.dedent(f"""\
    Assumed: prompts of --prompt tokens, answers of half the longest length (--mean), {BUSY:.0%} of the device's speed,
    {READ:.0%} of its bandwidth. Rewards and the transfer of weights are not counted. verl and TRL leave out prompts
    of more than {PROMPT} tokens.""")
