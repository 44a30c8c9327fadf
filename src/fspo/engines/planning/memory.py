"""Memory of a training step by part, in bytes per device. docs/recipes.md has its error against measured runs."""

from __future__ import annotations

from dataclasses import dataclass

from fspo.engines.planning.shapes import Shape
from fspo.model.logprobs import KEEP, TILE
from fspo.rollout.lanes import ROWS

GIB = 2**30
PROCESS = 0.75 * GIB  # a CUDA context with its libraries, per process
BOOKS = 1.03  # indices, masks and norms that are kept with the activations


@dataclass(frozen=True)
class Part:
    """One use of memory, while weights are updated and while answers are sampled."""

    name: str
    update: float
    rollout: float


@dataclass(frozen=True)
class Sizes:
    """The amounts that memory depends on."""

    shape: Shape
    trained: int  # trainable parameters
    width: int  # bytes of a value in the model's products: 2 or 4
    tokens: int  # of a micro-batch
    prompt: int  # tokens of a prompt
    answer: int  # longest answer
    group: int


def of_one_process(sizes: Sizes, answers: int, cache_gib: float, *, vllm: bool, gpu: bool) -> list[Part]:
    """This package's trainer. `cache_gib` bounds keys and values: vLLM takes all of it, its own decoder what it
    needs."""
    shape, width, trained = sizes.shape, sizes.width, sizes.trained
    everything = shape.parameters + (trained if trained < shape.parameters else 0)
    weights = everything * width
    low = width < 4
    parts = [
        Part("weights", weights, weights),
        Part("master weights", 4 * trained * low, 4 * trained * low),
        Part("gradients", trained * (4 + width * low), 0),
        Part("optimiser", 8 * trained, 8 * trained),
        Part("activations", _activations(sizes), 0),
        Part("logits", _logits(sizes), 0),
    ]
    if not vllm:
        rows = min(ROWS, answers)
        prompts = -(-rows // sizes.group)
        cache = min(cache_gib * GIB, shape.cached(width) * (rows * sizes.answer + prompts * sizes.prompt))
        fused = shape.layers * shape.width * (shape.query + 2 * shape.key + 2 * shape.intermediate)
        if trained < shape.parameters:  # adapters are added to copies of all weights of a layer
            fused = shape.layers * shape.layer
        parts += [
            Part("cache of keys and values", 0, cache),
            Part("decoder: fused weights, logits", 0, fused * width + 12 * rows * shape.vocabulary),
        ]
    else:
        held = cache_gib * GIB + shape.parameters * width
        parts.append(Part("vLLM: weights, cache", held, held))
    if gpu:
        processes = PROCESS * (2 if vllm else 1)
        parts.append(Part("CUDA contexts", processes, processes))
    return parts


def of_many_devices(
    sizes: Sizes,
    shards: int,
    sampler: float,
    *,
    sleeps: bool,
    recompute: bool,
    whole_logits: bool,
    offload: tuple[bool, bool] = (False, False),
) -> list[Part]:
    """TRL's or verl's trainer on one of its devices, with float32 weights over `shards` devices.

    `sampler` is what vLLM takes on the device, in bytes; `sleeps` whether it returns that during an update; `recompute`
    whether activations are computed again in the backward; `offload` whether weights, and the optimiser, are on the
    host while answers are sampled.
    """
    shape, low = sizes.shape, sizes.width < 4
    weights = 4 * (shape.parameters + (sizes.trained if sizes.trained < shape.parameters else 0)) / shards
    gathered = sizes.width * (2 * shape.layer + shape.embedding) if shards > 1 else 2 * shape.parameters * low
    activations = _recomputed(sizes) if recompute else shape.layers * _layer(sizes)
    logits = 3 * sizes.width * sizes.tokens * shape.vocabulary if whole_logits else 4 * TILE * 4
    optimiser = 8 * sizes.trained / shards
    return [
        Part("weights, float32", weights, 0 if offload[0] else weights),
        Part("copies for the products", gathered, 0),
        Part("gradients", 4 * sizes.trained / shards, 0),
        Part("optimiser", optimiser, 0 if offload[1] else optimiser),
        Part("activations", activations, 0),
        Part("logits", logits, 0),
        Part("vLLM: weights, cache", 0 if sleeps else sampler, sampler),
        Part("CUDA contexts", 2 * PROCESS, 2 * PROCESS),
    ]


def _activations(sizes: Sizes) -> float:
    """What this package's forward keeps for the backward, and the gradients of one layer on their way."""
    shape = sizes.shape
    answers = sizes.group * sizes.answer
    keys = (sizes.prompt + sizes.group * sizes.prompt + answers) / (sizes.prompt + answers)  # per packed token
    kept = 4 * shape.intermediate + 4 * shape.width + 3 * shape.query + 2 * shape.key * keys
    kept += (shape.query + shape.key) * shape.qk_norm
    moving = 2 * shape.intermediate + 2 * shape.width + 2 * shape.query
    return sizes.tokens * sizes.width * (BOOKS * shape.layers * kept + moving)


def _layer(sizes: Sizes) -> float:
    """What one layer of a transformers module keeps: as above, with norms in float32 and rotated copies."""
    shape = sizes.shape
    kept = 4 * shape.intermediate + 4 * shape.width + 6 * shape.query + 4 * shape.key
    return sizes.tokens * (sizes.width * kept + 8 * shape.width)


def _recomputed(sizes: Sizes) -> float:
    """With gradient checkpointing: the input of every layer, and all of one layer."""
    return sizes.shape.layers * sizes.tokens * sizes.width * sizes.shape.width + 2 * _layer(sizes)


def _logits(sizes: Sizes) -> float:
    """Of this package's head: all logits where they are few, else one tile at a time; and what is made of a tile."""
    all_of_them = sizes.tokens * sizes.shape.vocabulary
    tile = max(TILE, 256 * sizes.tokens)
    if all_of_them <= KEEP:
        return all_of_them * (sizes.width + 4) + 4 * min(all_of_them, tile)
    return tile * (sizes.width + 8)
