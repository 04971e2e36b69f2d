"""Where tensors are. No GPU is needed to see that none is left behind.

torch lets many operations mix the meta device with the CPU, where a GPU would refuse; so `OneDevice` refuses.
"""

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import astraflow
from astraflow.compute import CPU, compute_device, compute_dtype, placed
from astraflow.config import CriticSection
from astraflow.errors import ConfigError
from astraflow.learners.batch import read_batch
from astraflow.learners.critic import Critic
from astraflow.learners.logprobs import batch_logprobs, micro_batch_logprobs
from astraflow.learners.model import LoadedModel, load_model
from astraflow.learners.packing import Costs, MicroBatch, plan_micro_batches
from astraflow.learners.team import Alone
from astraflow.learners.torch_learner import TorchLearner
from tests.learners.learner_cases import VOCABULARY, as_torch, batch, learner, model_folder, section

META = torch.device("meta")
LEARNERS = Path(astraflow.__file__).parent / "learners"
MAKES_TENSORS = {
    "arange",
    "as_tensor",
    "empty",
    "eye",
    "from_numpy",
    "full",
    "ones",
    "rand",
    "randn",
    "tensor",
    "zeros",
}
BESIDE_WEIGHTS = ["attention.py", "critic.py", "dither.py", "logprobs.py", "model.py", "torch_learner.py", "losses"]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")


class OneDevice(TorchDispatchMode):
    """Every operation's tensors, but for numbers, are in one place, in the backward pass too."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        assert len({tensor.device for tensor in tensors if tensor.ndim}) <= 1, f"{func} mixes devices"
        return func(*args, **(kwargs or {}))


def test_operation_that_mixes_devices_is_refused() -> None:
    with OneDevice(), pytest.raises(AssertionError, match="mixes devices"):
        torch.zeros(3, 2, device=META)[torch.zeros(2, dtype=torch.int64)]


@pytest.mark.parametrize("room", BESIDE_WEIGHTS)
def test_every_tensor_beside_weights_is_made_on_a_device_that_is_said(room: str) -> None:
    files = sorted((LEARNERS / room).rglob("*.py")) or [LEARNERS / room]
    nowhere = [
        f"{file.name}:{call.lineno} {ast.unparse(call)}"
        for file in files
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and ast.unparse(call.func.value) == "torch"
        and call.func.attr in MAKES_TENSORS
        and all(keyword.arg != "device" for keyword in call.keywords)
    ]
    assert nowhere == []


def _elsewhere(tmp_path: Path, *, share: bool) -> tuple[LoadedModel, list[MicroBatch], int]:
    """A model whose weights are on a device without memory, and a plan of micro-batches."""
    model = load_model(model_folder(tmp_path))
    model.module.to(META)
    read = read_batch(batch(1), vocabulary=VOCABULARY)
    costs = Costs(attention=model.attention_cost)
    return (
        model,
        plan_micro_batches(read.items, budget_tokens=64, costs=costs, share_prefixes=share),
        len(read.behaviour_M),
    )


@pytest.mark.parametrize("share", [False, True])
def test_passes_stay_on_the_device_of_the_weights(tmp_path: Path, share: bool) -> None:
    model, plan, count = _elsewhere(tmp_path, share=share)
    assert any(micro_batch.segments_BL is not None for micro_batch in plan) == share
    temperature_M = torch.ones(count, device=META)
    for micro_batch in plan:
        with OneDevice():
            logprobs_N, entropy_N = micro_batch_logprobs(
                model, micro_batch, temperature=temperature_M, with_entropy=True
            )
            assert entropy_N is not None
            (logprobs_N.sum() + entropy_N.sum()).backward()  # type: ignore[no-untyped-call]
        assert logprobs_N.device == entropy_N.device == META
    gradients = [parameter.grad for parameter in model.module.parameters()]
    assert {gradient.device for gradient in gradients if gradient is not None} == {META}
    with OneDevice():
        assert (
            batch_logprobs(model, plan, torch.zeros(count, device=META), temperature=1.0, team=Alone()).device == META
        )


def test_values_of_a_critic_stay_on_the_device_of_the_weights(tmp_path: Path) -> None:
    model, plan, count = _elsewhere(tmp_path, share=True)
    critic = Critic(model.head_VD.shape[1], CriticSection(), section(), Alone(), META)
    with OneDevice():
        assert critic.batch_values(model, plan, count, team=Alone()).device == META
    assert {tensor.device for tensor in critic.weights.masters.values()} == {META}


def test_array_is_placed_whole_whatever_its_strides() -> None:
    array = np.arange(12).reshape(3, 4)[:, ::2]
    assert placed(array, CPU).tolist() == array.tolist()
    assert placed(array, META).device == META


def test_device_is_the_one_that_is_asked_for() -> None:
    assert compute_device("cpu") == CPU
    assert compute_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert compute_dtype("fp32", META) is torch.float32


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU")
def test_gpu_that_is_not_there_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'trainer\.device is "cuda".*sees no GPU here; install .*"auto" or "cpu"'):
        learner(model_folder(tmp_path), section(device="cuda"))


def _trained(folder: Path, device: str, *, steps: int = 2) -> TorchLearner:
    one = learner(folder, section(device=device))
    for seed in range(steps):
        assert one.step(batch(seed)).trained
    return one


@needs_gpu
def test_gpu_trains_as_the_cpu_does_and_either_resumes_the_other(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    here, there = _trained(folder, "cpu"), _trained(folder, "cuda")
    for saved, other in ((there, "cpu"), (here, "cuda")):
        state = tmp_path / other
        state.mkdir()
        saved.save(state)
        resumed = learner(folder, section(device=other))
        resumed.restore(state)
        assert resumed.step(batch(7)).trained
        assert saved.step(batch(7)).trained
        expected = saved.export()
        for name, tensor in resumed.export().items():
            torch.testing.assert_close(as_torch(tensor), as_torch(expected[name]), rtol=1e-3, atol=1e-4)


@needs_gpu
def test_masters_start_at_the_same_bits_on_both(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", dtype=torch.bfloat16)
    for device in ("cpu", "cuda"):
        (tmp_path / device).mkdir()
        learner(folder, section(device=device, dtype="bf16")).save(tmp_path / device)
    kept = [(tmp_path / device / "learner.safetensors").read_bytes() for device in ("cpu", "cuda")]
    assert kept[0] == kept[1]
