"""The losses for other trainers' hooks: parts of a batch, scaled as the trainer scales them, are the loss of the whole.

TRL's trainer and Tinker's client are the peers' own code. prime-rl, SkyRL, NeMo-RL and slime
cannot be installed here: their callers are stand-ins with the signatures and divisions of the sources that
docs/adapters.md names.
"""

from __future__ import annotations

import asyncio
import pickle
import tomllib
from collections import namedtuple
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

import fspo
from fspo.engines import adapters
from fspo.objectives import Objective
from helpers import pages
from helpers.async_grpo import async_inputs, async_loss, async_trainer
from helpers.batches import Inputs, loss_by, random_batch, with_gradient
from helpers.processes import stand_in

OBJECTIVES: dict[str, dict[str, Any]] = {
    "fspo": {}, "fspo_gate": {"clip_rate": None, "drift": "zero"}, "fspo_root": {}, "gspo": {}, "rloo": {},
    "luspo": {}, "grpo": {}, "ppo": {}, "cispo": {}, "dr_grpo": {"max_length": 64}, "sapo": {},
}  # fmt: skip


def whole(objective: Objective, batch: Inputs, **more: Any) -> tuple[Tensor, Tensor]:
    """Loss and gradient of the batch in one call."""
    return with_gradient(loss_by(objective, batch, **more), batch)


def assert_same(ours: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    """Up to the rounding of sums in another order: every hook stays within 10 of the largest number's last digits."""
    largest = max(float(values.abs().max()) for values in expected)
    torch.testing.assert_close(ours, expected, rtol=0, atol=32 * torch.finfo(expected[0].dtype).eps * largest)


def token_advantages(batch: Inputs) -> Tensor:
    """One per token, with other numbers where nothing is trained."""
    return torch.where(batch.mask, batch.advantages.unsqueeze(-1), 7.0)


LossInputs = namedtuple(  # as prime-rl's class of this name
    "LossInputs", "trainer_logprobs inference_logprobs ref_logprobs advantages loss_mask loss_weights"
)
KL: dict[str, Any] = {"coef": 0.1, "kind": "k3"}
TOKEN_MEANS = ("fspo", "fspo_gate", "ppo", "cispo")  # need no mean_length
HALVES = slice(0, 1), slice(1, None)  # two micro-batches, the first of one response


def scale(name: str, batch: Inputs) -> dict[str, Any]:
    """The further setting of a trainer that divides by the tokens of the batch."""
    return {} if name in TOKEN_MEANS else {"mean_length": float(batch.mask.sum()) / len(batch.mask)}


def prime_rl(
    batch: Inputs, logprobs: Tensor, name: str, weights: list[Tensor | None] | None = None, **parameters: Any
) -> Tensor:
    """As prime-rl calls a custom loss: per sequence, and divides the sum by the tokens of the batch."""
    settings = {"objective": name} | scale(name, batch) | parameters
    total = logprobs.sum() * 0
    rows = zip(logprobs, batch.old_logprobs, batch.ref_logprobs, token_advantages(batch), batch.mask, strict=True)
    for row, weight in zip(rows, weights or [None] * len(logprobs), strict=True):
        outputs = adapters.prime_rl_loss(LossInputs(*row, weight), **settings)
        assert all(value.dim() == 0 for value in outputs.metrics.values())
        total = total + outputs.loss
    return total / int(batch.mask.sum())


def skyrl_config(**changed: Any) -> SimpleNamespace:
    """The fields of SkyRL's AlgorithmConfig that the loss reads, with SkyRL's defaults."""
    correction = SimpleNamespace(**dict.fromkeys(adapters.SKYRLS_OWN))
    return SimpleNamespace(**({"loss_reduction": "token_mean", "off_policy_correction": correction} | changed))


def skyrl(batch: Inputs, logprobs: Tensor, name: str, **parameters: Any) -> Tensor:
    """As SkyRL calls a registered loss in its workers: per micro-batch, with advantages divided by all tokens."""
    loss = pickle.loads(pickle.dumps(adapters.SkyRLLoss(name, **scale(name, batch), **parameters)))
    A = token_advantages(batch) / batch.mask.sum()
    total = logprobs.sum() * 0
    for part in HALVES:
        value, metrics = loss(
            logprobs[part], batch.old_logprobs[part], A[part], config=skyrl_config(),
            loss_mask=batch.mask[part].float(), rollout_logprobs=batch.sampler_logprobs[part],
        )  # fmt: skip
        assert "clip_ratio" in metrics
        total = total + value
    return total


def rows_of(batch: Inputs) -> list[dict[str, Tensor]]:
    """As Tinker's cookbook lays a datum out: the tokens of a sequence, with a mask of those that were sampled."""
    columns = {"logprobs": batch.old_logprobs, "advantages": token_advantages(batch), "mask": batch.mask.double()}
    return [{name: column[i] for name, column in columns.items()} for i in range(len(batch.mask))]


def tinker(batch: Inputs, logprobs: Tensor, name: str, **parameters: Any) -> Tensor:
    """As Tinker calls a custom loss: all data at once, in a class that gives its tensors by `to_torch`."""
    data = [
        SimpleNamespace(loss_fn_inputs={key: SimpleNamespace(to_torch=values.clone) for key, values in row.items()})
        for row in rows_of(batch)
    ]
    return adapters.TinkerLoss(name, **parameters)(data, list(logprobs))[0]


class ClippedPGLossFn:
    """The interface of NeMo-RL's own loss: what its trainer reads from it, and some of its metrics."""

    def __init__(self, kl_penalty: float = 0.0, **changed: bool) -> None:
        self.input_type, self.loss_type = "logprob", "token_level"
        self.reference_policy_kl_penalty, self.use_fused_linear_logprobs = kl_penalty, False
        self.use_importance_sampling_correction = self.force_on_policy_ratio = False
        vars(self).update(changed)

    def __call__(self, next_token_logprobs: Tensor, data: Any, global_valid_seqs: Any, global_valid_toks: Any) -> Any:
        assert not next_token_logprobs.requires_grad
        valid = float(data["sample_mask"].sum())
        return torch.tensor(3.0), {"loss": 3.0, "num_valid_samples": valid, "probs_ratio_clamped": 1.0}


def nemo(batch: Inputs, logprobs: Tensor, name: str, **parameters: Any) -> Tensor:
    """As NeMo-RL calls a loss: full sequences, whose first token has no prediction, and the counts of the batch."""
    theirs = ClippedPGLossFn(0.1, use_importance_sampling_correction=True)  # as its asynchronous GRPO asks for
    loss = pickle.loads(pickle.dumps(adapters.NemoLoss(theirs, name, **parameters)))

    def full(values: Tensor) -> Tensor:
        return torch.cat([torch.full_like(values[:, :1], 9), values], 1)

    sample_mask = torch.ones(len(batch.mask))
    data = {
        "token_mask": full(batch.mask.float()), "sample_mask": sample_mask, "advantages": full(token_advantages(batch)),
        "prev_logprobs": full(batch.old_logprobs), "generation_logprobs": full(batch.sampler_logprobs),
        "reference_policy_logprobs": full(batch.ref_logprobs),
    }  # fmt: skip
    total, valid = logprobs.sum() * 0, 0.0
    for part in HALVES:
        value, metrics = loss(
            next_token_logprobs=logprobs[part], data={key: values[part] for key, values in data.items()},
            global_valid_seqs=sample_mask.sum(), global_valid_toks=batch.mask.sum(),
        )  # fmt: skip
        total, valid = total + value, valid + metrics["num_valid_samples"]
        assert metrics["loss"] == pytest.approx(float(value.detach()))
        assert "probs_ratio_clamped" not in metrics
    assert valid == len(batch.mask)
    return total


SLIME = SimpleNamespace(calculate_per_token_loss=True, use_rollout_logprobs=False)  # the arguments of a run


@pytest.fixture
def slimes_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """slime's module of losses and Megatron's, as far as the loss calls them."""

    def get_log_probs_and_entropy(logits: Tensor, *, args: Any, unconcat_tokens: Any, total_lengths: Any,
                                  response_lengths: list[int]) -> tuple[Tensor, dict[str, Any]]:  # fmt: skip
        return torch.empty(0), {"log_probs": list(logits.split(response_lengths))}

    stand_in(
        monkeypatch, "slime.backends.megatron_utils.loss", get_log_probs_and_entropy=get_log_probs_and_entropy,
        get_rollout_top_p_logprob_kwargs=lambda args, batch: {},
    )  # fmt: skip
    stand_in(monkeypatch, "megatron.core", mpu=SimpleNamespace(get_context_parallel_world_size=lambda: 1))


def slime(batch: Inputs, logprobs: Tensor, name: str, **parameters: Any) -> Tensor:
    """As slime calls a custom loss: per micro-batch, and Megatron divides the sum by the tokens of the batch."""
    args = SimpleNamespace(**vars(SLIME), use_kl_loss=True, fspo={"name": name, **scale(name, batch), **parameters})
    total = logprobs.sum() * 0
    for part in HALVES:
        rows = batch[part]
        data = {
            "unconcat_tokens": None, "total_lengths": None, "response_lengths": [batch.mask.shape[1]] * len(rows.mask),
            "advantages": list(token_advantages(rows)), "loss_masks": list(rows.mask.int()),
            "log_probs": list(rows.old_logprobs), "rollout_log_probs": list(rows.sampler_logprobs),
            "ref_log_probs": list(rows.ref_logprobs),
        }  # fmt: skip
        loss, metrics = adapters.slime_loss(args, data, logprobs[part].reshape(-1), None)
        assert torch.tensor([0, *metrics.values()]).isfinite().all()  # as slime collects them
        total = total + loss
    return total / batch.mask.sum()


# How a trainer calls its hook, and the options that the hook has the tensors for.
HOOKS: dict[str, tuple[Callable[..., Tensor], dict[str, Any]]] = {
    "prime-rl": (prime_rl, {"kl": KL}),
    "SkyRL": (skyrl, {"mismatch": {"c": 0.3}}),
    "Tinker": (tinker, {}),
    "NeMo-RL": (nemo, {"mismatch": {"c": 0.3}, "kl": KL}),
    "slime": (slime, {"mismatch": {"level": "geometric", "low": 0.9, "high": 1.1}, "kl": KL}),
}


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.usefixtures("slimes_modules")
def test_the_parts_of_a_batch_add_up_to_its_loss(hook: str, name: str) -> None:
    call, options = HOOKS[hook]
    parameters = OBJECTIVES[name] | options
    objective = fspo.objectives.get(name, **parameters)
    for seed in range(5):
        batch = random_batch(seed)
        given = {"ref_logprobs": batch.ref_logprobs} if "kl" in options else {}
        given |= {"sampler_logprobs": batch.sampler_logprobs} if "mismatch" in options else {}
        ours = with_gradient(lambda x, batch=batch: call(batch, x, name, **parameters), batch)  # type: ignore[misc]
        assert_same(ours, whole(objective, batch, **given))


def test_prime_rl_weights_and_empty_sequences() -> None:
    batch = random_batch(2)
    batch.mask[0] = False
    weights = torch.rand_like(batch.logprobs)
    ours = with_gradient(lambda x: prime_rl(batch, x, "ppo", [*weights]), batch)
    assert_same(ours, whole(fspo.objectives.get("ppo"), batch, sampler_weights=weights))
    ours = with_gradient(lambda x: prime_rl(batch, x, "fspo", [*torch.ones_like(x)]), batch)
    assert_same(ours, whole(fspo.objectives.get("fspo"), batch))


def test_tinkers_own_client_sends_the_gradient() -> None:
    """`forward_backward_custom_async` of the package itself, with the two calls to the server replaced."""
    from tinker import types
    from tinker.lib.public_interfaces.training_client import TrainingClient

    batch, loss = random_batch(4, torch.float32), adapters.TinkerLoss("fspo")
    data = []
    for row in rows_of(batch):
        inputs = {name: types.TensorData.from_torch(values.float()) for name, values in row.items()}
        inputs["target_tokens"] = types.TensorData.from_torch(torch.ones(len(row["mask"]), dtype=torch.long))
        data.append(types.Datum(model_input=types.ModelInput.from_ints([1] * len(row["mask"])), loss_fn_inputs=inputs))
    sent: list[Any] = []

    def answer(metrics: dict[str, float]) -> Any:
        outputs = [{"logprobs": types.TensorData.from_torch(row)} for row in batch.logprobs]

        async def result_async(timeout: float | None = None) -> Any:
            return SimpleNamespace(loss_fn_outputs=outputs, metrics=metrics)

        return SimpleNamespace(result_async=result_async)

    class Client(TrainingClient):
        def __init__(self) -> None:
            self.holder: Any = None

        def __del__(self) -> None: ...

        async def forward_async(self, *args: Any) -> Any:
            return answer({})

        async def forward_backward_async(self, data: Any, *args: Any) -> Any:
            sent.extend(data)
            return answer({"loss:sum": 0.0})

    async def train() -> Any:
        return await (await Client().forward_backward_custom_async(data, loss)).result_async()

    result = asyncio.run(train())
    weights = torch.stack([datum.loss_fn_inputs["weights"].to_torch() for datum in sent])
    loss_sum = torch.tensor(result.metrics["loss:sum"])
    assert_same((loss_sum, -weights), whole(fspo.objectives.get("fspo"), batch))
    assert "fspo/clip_rate" in result.metrics


def packed(name: str) -> Any:
    from trl.experimental.async_grpo.async_grpo_trainer import AsyncGRPOTrainer

    class Trainer(adapters.PackedLoss, AsyncGRPOTrainer):
        objective = fspo.objectives.get(name)

    return async_trainer(Trainer)


def test_trls_async_trainer_with_ppo_is_trls_own_loss() -> None:
    from trl.experimental.async_grpo.async_grpo_trainer import AsyncGRPOTrainer

    inputs, trainer = async_inputs(), packed("ppo")
    ours = async_loss(trainer.compute_loss, inputs)
    assert not any(name.startswith("clip_ratio") for name in trainer._metrics["train"])
    assert trainer._metrics["train"]["fspo/clip_rate"][0] > 0
    assert trainer._step_samples == 4
    theirs = async_loss(lambda *args: AsyncGRPOTrainer.compute_loss(trainer, *args), inputs)
    assert_same(ours, theirs)


@pytest.mark.parametrize("name", ["fspo", "gspo", "grpo"])
def test_trls_async_trainer_weighs_whole_completions(name: str) -> None:
    inputs, trainer = async_inputs(), packed(name)
    selected = inputs["token_index"] >= 0

    def expected(model: Any, inputs: dict[str, Tensor]) -> Tensor:
        outputs = model(inputs["input_ids"], inputs["shift_labels"])
        logprobs = outputs.log_probs.flatten()[inputs["token_index"][selected]]
        out = trainer.objective(
            logprobs, inputs["old_log_probs"][selected], torch.tensor([1.0, -0.5, 0.7, -1.2]),
            segment_ids=inputs["segment_id"][selected],
        )  # fmt: skip
        loss: Tensor = out.loss / 2
        return loss

    assert_same(async_loss(trainer.compute_loss, inputs), async_loss(expected, inputs))


def skyrl_with(**changed: Any) -> None:
    batch, config = random_batch(0), skyrl_config(**changed)
    adapters.SkyRLLoss("fspo")(batch.logprobs, batch.old_logprobs, token_advantages(batch), config, batch.mask)


def nemo_without_counts() -> None:
    new = random_batch(5).logprobs
    data = {name: torch.ones_like(new) for name in ("token_mask", "advantages", "prev_logprobs")}
    loss = adapters.NemoLoss(ClippedPGLossFn(), "fspo")
    loss(new[:, 1:], data | {"sample_mask": torch.ones(len(new))}, torch.tensor(1), torch.tensor(1))


def slime_with(**changed: Any) -> None:
    adapters.slime_loss(SimpleNamespace(**(vars(SLIME) | changed)), {}, torch.zeros(3), None)


TIS = SimpleNamespace(**dict.fromkeys(adapters.SKYRLS_OWN) | {"outlier_token_is_threshold_high": 100.0})
MADE_BY_UNSLOTH = type("FSPOTrainer", (type("UnslothGRPOTrainer", (), {}),), {})
IGNORED: dict[str, Callable[[], Any]] = {
    "a datum has no mask": lambda: adapters.TinkerLoss("fspo")([SimpleNamespace(loss_fn_inputs={})], []),
    "a datum has no logprobs": lambda: adapters.TinkerLoss("fspo")([SimpleNamespace(loss_fn_inputs={"mask": 1})], []),
    "data is empty": lambda: adapters.TinkerLoss("fspo")([], []),
    "set token_mean": lambda: skyrl_with(loss_reduction="sequence_mean"),
    "outlier_token_is_threshold_high.*give mismatch instead": lambda: skyrl_with(off_policy_correction=TIS),
    "Unsloth has replaced the loss": lambda: adapters.refuse_unsloth(MADE_BY_UNSLOTH),
    "give kl as well": lambda: adapters.NemoLoss(ClippedPGLossFn(0.1), "fspo"),
    "force_on_policy_ratio is for": lambda: adapters.NemoLoss(ClippedPGLossFn(force_on_policy_ratio=True), "fspo"),
    "correction is for": lambda: adapters.NemoLoss(ClippedPGLossFn(use_importance_sampling_correction=True), "fspo"),
    "nll_weight is for": lambda: adapters.NemoLoss(ClippedPGLossFn(positive_example_nll_weight=True), "fspo"),
    "counts the tokens of a batch after its loss": nemo_without_counts,
    "--calculate-per-token-loss": lambda: slime_with(calculate_per_token_loss=False),
    "use_tis is a setting": lambda: slime_with(use_tis=True),
    "use_kl_loss is a setting": lambda: slime_with(use_kl_loss=True),
}


@pytest.mark.parametrize("sentence", IGNORED)
@pytest.mark.usefixtures("slimes_modules")
def test_settings_of_a_trainer_that_would_be_ignored_are_refused(sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        IGNORED[sentence]()
    adapters.refuse_unsloth(type("FSPOTrainer", (), {}))


STATELESS: list[tuple[str, dict[str, Any], str]] = [
    ("fspo", {"clip_rate": 0.1}, "fspo learns its band.*set clip_rate to null and drift to zero or a number, and give"),
    ("fspo", {"drift": "kl"}, "fspo takes its drift from the whole batch.*give drift='zero' or a number"),
    ("fspo", {"drift": "bounded"}, "takes its drift"),
    ("fspo", {"kl": {"coef": 0.1}}, "kl needs ref_logprobs, which this hook does not have"),
    ("gspo", {}, "gspo is a mean over responses.*give mean_length"),
    ("fspo_root", {}, "give mean_length"),
    ("fspo", {"mean_length": -5}, "mean_length = -5 must be a positive number"),
    ("fspo", {"reference_length": 100}, "give mean_length"),
]


@pytest.mark.parametrize(("name", "parameters", "sentence"), STATELESS)
def test_what_a_hook_without_state_cannot_compute_is_one_sentence(
    name: str, parameters: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence) as error:
        adapters.SkyRLLoss(name, **parameters)
    assert "\n" not in str(error.value)


def test_advantages_that_differ_within_a_response_are_for_token_objectives_only() -> None:
    batch = random_batch(7)
    A = torch.randn_like(batch.logprobs)
    rows = [list(x) for x in (batch.logprobs, batch.old_logprobs, A, batch.mask)]
    ours = adapters.loss_of(fspo.objectives.get("grpo"), rows[0], rows[1], rows[2], rows[3], None)
    expected = fspo.objectives.get("grpo")(batch.logprobs, batch.old_logprobs, A, batch.mask)
    torch.testing.assert_close(ours.loss, expected.loss)
    with pytest.raises(ValueError, match="weighs whole responses"):
        adapters.loss_of(fspo.objectives.get("fspo"), rows[0], rows[1], rows[2], rows[3], None)


def blocks(section: str) -> list[str]:
    """The code blocks of a section of docs/adapters.md."""
    page = pages.blocks(pages.DOCS / "adapters.md")
    return [block.text for block in page if block.before.rpartition("\n## ")[2].startswith(f"{section}\n")]


def test_the_lines_of_the_page_make_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    scope: dict[str, Any] = {}
    exec(blocks("TRL's AsyncGRPOTrainer")[0], scope)
    assert scope["Trainer"].compute_loss is adapters.PackedLoss.compute_loss
    assert scope["Trainer"].objective.name == "fspo"

    registered: dict[str, Any] = {}
    registry = SimpleNamespace(register=registered.__setitem__)
    stand_in(monkeypatch, "skyrl.backends.skyrl_train.utils.ppo_utils", PolicyLossRegistry=registry)
    exec(blocks("SkyRL")[0], {})
    assert registered["fspo"].objective.name == "fspo"

    client = SimpleNamespace(forward_backward_custom=lambda data, loss: SimpleNamespace(result=lambda: loss))
    scope = {"training_client": client, "data": []}
    exec(blocks("Tinker")[0], scope)
    assert isinstance(scope["result"], adapters.TinkerLoss)

    scope = {"loss_fn": ClippedPGLossFn()}
    exec(blocks("NeMo-RL")[0], scope)
    assert isinstance(scope["loss_fn"], adapters.NemoLoss)

    settings = tomllib.loads(blocks("prime-rl")[0])["trainer"]["loss"]
    assert getattr(adapters, settings["import_path"].removeprefix("fspo.engines.adapters.")) is adapters.prime_rl_loss
    batch = random_batch(0)
    name = settings["kwargs"].pop("objective")
    assert prime_rl(batch, batch.logprobs, name, **settings["kwargs"]).isfinite()

    options, text = blocks("slime")
    assert "fspo.engines.adapters.slime_loss" in options
    assert fspo.objectives.get(**yaml.safe_load(text)["fspo"]).name == "fspo"
