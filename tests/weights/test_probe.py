"""The probe: after each of 50 versions a replica under load answers greedily as the trainer's own model does."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from astraflow.actors.policy import actor as policy
from astraflow.bus import EmbeddedServer
from astraflow.config import EngineSection
from astraflow.learners.torch_learner import TorchLearner
from astraflow.messages import MemberState, Metrics, Sampling, array_of
from astraflow.messages.metric_names import WEIGHTS, WEIGHTS_CHANGED
from astraflow.weights.transfer.publisher import WeightPublisher
from tests.actors.contexts import CONFIG, context
from tests.actors.test_policy import Asker
from tests.learners.learner_cases import as_torch, batch, learner, model_folder, section
from tests.support import eventually

VERSIONS = 50
PROMPT = [1, 5, 9, 2, 6]
GREEDY = Sampling(max_new_tokens=12, temperature=0.0, ignore_eos=True)
LONG = Sampling(max_new_tokens=60, temperature=1.0, ignore_eos=True)


def greedy(trained: TorchLearner, reference: Any) -> tuple[list[int], list[float]]:
    """Tokens and their logprobs by transformers, in fp32, from the learner's weights."""
    state = {name: as_torch(tensor).float() for name, tensor in trained.export().items()}
    reference.load_state_dict(state, strict=False)
    tokens, logprobs = list(PROMPT), []
    with torch.inference_mode():
        for _ in range(GREEDY.max_new_tokens):
            best = torch.log_softmax(reference(torch.tensor([tokens])).logits[0, -1], -1).max(-1)
            tokens.append(int(best.indices))
            logprobs.append(float(best.values))
    return tokens[len(PROMPT) :], logprobs


@pytest.mark.slow
async def test_a_replica_under_load_is_the_trainer_s_model_after_each_of_50_versions(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    engine = EngineSection(slots=4, dtype="fp32", kv_cache_mib=16, max_replica_lag=VERSIONS)
    solver = msgspec.structs.replace(CONFIG.policies["solver"], engine=engine)
    config = msgspec.structs.replace(CONFIG, policies={"solver": solver})
    folder = model_folder(tmp_path / "model", dtype=torch.bfloat16)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    trained = learner(folder, section(dtype="bf16", learning_rate=3e-4, steps=VERSIONS))
    async with (
        context(nats_server, tmp_path, role="trainer", config=config) as trainer,
        context(nats_server, tmp_path, role="policy", config=config) as ctx,
        Asker.open(ctx.bus) as asker,
        asyncio.TaskGroup() as group,
    ):
        publisher = WeightPublisher(trainer, full_every=20)

        async def publish(number: int) -> None:
            await publisher.publish(trained.export(), trained.model_files(), version=number, step=number, batch=number)

        await publish(0)
        serving = group.create_task(policy.run(ctx))
        await eventually(lambda: ctx.state is MemberState.READY)
        answers: list[list[float]] = []
        for number in range(1, VERSIONS + 1):
            report = await asyncio.to_thread(trained.step, batch(number))
            assert report.trained
            await asker.ask(f"load-{number}", sampling=LONG)
            await publish(number)
            await asker.ask(
                f"probe-{number}", sampling=GREEDY, min_version=number, prompt_tokens=array_of(PROMPT, "i4")
            )
            await eventually(lambda: asker.finished(f"probe-{number}"))  # noqa: B023 - awaited here
            tokens, logprobs = await asyncio.to_thread(greedy, trained, reference)
            assert asker.tokens(f"probe-{number}") == tokens, f"version {number}"
            found = [c.logprobs.numpy() for c in asker.chunks if c.request_id == f"probe-{number}" and c.logprobs]
            assert np.abs(np.concatenate(found) - logprobs).max() < 1e-4, f"version {number}"
            assert not answers or np.abs(np.subtract(answers[-1], logprobs)).max() > 1e-3, "versions must differ"
            answers.append(logprobs)
        seen = []
        for number in range(1, VERSIONS + 1):
            await eventually(lambda: asker.finished(f"load-{number}"))  # noqa: B023
            spans = [s for c in asker.chunks if c.request_id == f"load-{number}" for s in c.versions]
            versions = [span.version for span in spans]
            assert [span.start for span in spans] == [0, *(span.end for span in spans[:-1])]
            assert spans[-1].end == LONG.max_new_tokens
            assert versions == sorted(versions)
            assert versions[0] >= number - 1
            seen.append(versions)
        assert sum(len(set(found)) > 1 for found in seen) >= 5, "requests must run across swaps"
        told = [entry.message async for entry in ctx.bus.logs.read(ctx.bus.topology.metrics, follow=False)]
        published = [it.values for it in told if isinstance(it, Metrics) and it.kind == WEIGHTS and not it.labels]
        assert len(published) == VERSIONS + 1
        assert sum(values[WEIGHTS_CHANGED] < 1 for values in published) >= 25, "most versions travel as deltas"
        ctx.stop("drain")
        await serving
