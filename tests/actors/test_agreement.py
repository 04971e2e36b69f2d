"""The start-up probe: a replica serves only if its engine agrees with the learner, and says which side is wrong."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from astraflow.actors.policy.load import load
from astraflow.bus import EmbeddedServer
from astraflow.config import EngineSection, PolicySection, RunConfig, TrainerSection
from astraflow.engines import decoder
from astraflow.errors import ConfigError
from astraflow.learners.torch_learner import TorchLearner
from astraflow.models.loading import load_frozen
from astraflow.models.probe import gap, probe_row, scored
from astraflow.weights.transfer.follower import WeightFollower
from astraflow.weights.transfer.publisher import WeightPublisher
from tests.actors.contexts import CONFIG, context
from tests.actors.test_policy_weights import events
from tests.learners.learner_cases import learner, model_folder, section


def config(dtype: str) -> RunConfig:
    solver = PolicySection(
        model="given",
        engine=EngineSection(slots=2, dtype=dtype, kv_cache_mib=16),  # type: ignore[arg-type]
        trainer=TrainerSection(steps=1),
    )
    return msgspec.structs.replace(CONFIG, policies={"solver": solver})


async def loaded(server: EmbeddedServer, folder: Path, published: dict[str, Any], dtype: str = "fp32") -> list[str]:
    """Publish version 0 and load it as a replica does; what ends it, and what is told of it."""
    async with (
        context(server, folder, role="trainer") as trainer,
        context(server, folder, role="policy", config=config(dtype)) as ctx,
    ):
        publisher = WeightPublisher(trainer)
        await publisher.open()
        await publisher.publish(**published, version=0, step=0, batch=0)
        try:
            engine, _ = await load(ctx, WeightFollower(ctx.bus, "solver"))
        except ConfigError as exc:
            return [str(exc), *(event.text for event in await events(ctx.bus, "probe-failed"))]
        await engine.stop()
        return []


def published_by(one: TorchLearner) -> dict[str, Any]:
    return {"tensors": one.export(), "files": one.model_files(), "probe": one.probe()}


@pytest.mark.parametrize(
    ("family", "trained_in", "served_in"),
    [("llama", "fp32", "fp32"), ("qwen2", "bf16", "bf16"), ("qwen3", "fp32", "bf16"), ("gpt2", "fp32", "fp32")],
)
async def test_a_replica_that_agrees_serves(
    nats_server: EmbeddedServer, tmp_path: Path, family: str, trained_in: str, served_in: str
) -> None:
    one = learner(model_folder(tmp_path / "model", family), section(dtype=trained_in))
    assert await loaded(nats_server, tmp_path, published_by(one), served_in) == []


async def test_a_broken_engine_ends_the_run_and_is_named(
    nats_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = decoder.inverse_frequencies
    monkeypatch.setattr(decoder, "inverse_frequencies", lambda spec: right(spec) * 1.5)
    one = learner(model_folder(tmp_path / "model"))
    text, told = await loaded(nats_server, tmp_path, published_by(one))
    assert told == text
    assert "the bound is 0.0001 at most, in fp32" in text
    assert "the engine differs from transformers" in text


async def test_a_broken_learner_ends_the_run_and_is_named(nats_server: EmbeddedServer, tmp_path: Path) -> None:
    one = learner(model_folder(tmp_path / "model"), section(dtype="bf16"))
    rotary: Any = one._model.module.get_submodule("model.rotary_emb")
    rotary.inv_freq.mul_(3)
    text, told = await loaded(nats_server, tmp_path, published_by(one), "bf16")
    assert told == text
    assert "the bound is 0.3 on average, in bf16" in text
    assert "the learner differs from transformers" in text


async def test_a_model_that_is_never_trained_is_compared_with_transformers(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    files, tensors, probe = load_frozen(model_folder(tmp_path / "model", "qwen3"))
    assert await loaded(nats_server, tmp_path, {"tensors": tensors, "files": files, "probe": probe}) == []


async def test_versions_without_a_probe_are_served(nats_server: EmbeddedServer, tmp_path: Path) -> None:
    one = learner(model_folder(tmp_path / "model"))
    assert await loaded(nats_server, tmp_path, published_by(one) | {"probe": None}) == []


def test_every_version_has_a_probe_of_its_own_weights(tmp_path: Path) -> None:
    from tests.learners.learner_cases import batch

    one = learner(model_folder(tmp_path / "model"))
    before = one.probe()
    one.step(batch())
    after = one.probe()
    assert before is not None
    assert after is not None
    assert before.tokens == after.tokens
    assert gap(before.logprobs, after.logprobs, before.dtype, after.dtype).most > 1e-3


def test_rows_fit_short_contexts() -> None:
    assert [probe_row(50, length).size for length in (1, 2, 5, 1000)] == [0, 2, 5, 32]
    assert [scored(np.zeros(length)) for length in (2, 5, 32)] == [1, 3, 24]


def test_what_is_not_a_number_never_agrees() -> None:
    assert not gap([float("nan")], [0.0], "float32").agrees
    assert not gap([float("nan")], [0.0], "bfloat16").agrees
    assert gap([0.2], [0.0], "float32", "bfloat16").agrees
