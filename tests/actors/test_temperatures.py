"""What a token was sampled at travels with it: from a call through an episode to the learner's logprobs."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from astraflow.actors.rollout.budget import Budget
from astraflow.actors.rollout.call import Call, Completion
from astraflow.actors.rollout.handle import Play, RecordedPolicy
from astraflow.actors.rollout.recording import Recording
from astraflow.config import EngineSection
from astraflow.dataflow.samples import judge_episode, sample_of
from astraflow.engines.base import EngineRequest
from astraflow.engines.cpu import CpuEngine
from astraflow.learners.torch_learner import TorchLearner
from astraflow.messages import Episode, Reason, Sample, Sampling
from astraflow.models.tokenizer import ToyTokenizer
from tests.learners.learner_cases import model_folder, section
from tests.support import make_task

TEMPERATURES = (0.5, 1.0, 0.3)  # of the turns; the run's is 1


class Served:
    """An engine as episodes ask it, without the bus."""

    def __init__(self, engine: CpuEngine) -> None:
        self.engine = engine

    async def generate(self, call: Call) -> Completion:
        request = EngineRequest(id=call.id, prompt_tokens=call.prompt_tokens, sampling=call.sampling, seed=call.seed)
        chunks = [chunk async for chunk in self.engine.generate(request)]
        return Completion(
            tokens=np.concatenate([chunk.tokens for chunk in chunks]),
            logprobs=np.concatenate([chunk.logprobs for chunk in chunks]),
            versions=tuple(span for chunk in chunks for span in chunk.versions),
            finish_reason=chunks[-1].finish_reason,
            attempts=1,
        )


async def sample_at(engine: CpuEngine, member: int, temperatures: tuple[float, ...]) -> Sample:
    """One trajectory with a turn of 16 tokens at each temperature."""
    task, recording = make_task(id=f"i/s/0/0/{member}", seed=member, feeds=("solver",)), Recording()
    play = Play(task=task, client=Served(engine), recording=recording, budget=Budget())
    policy = RecordedPolicy(play, policy="solver", sampling=Sampling(max_new_tokens=16), tokenizer=ToyTokenizer())
    tokens = np.arange(5, 25, dtype=np.int32)
    for temperature in temperatures:
        sampling = Sampling(max_new_tokens=16, temperature=temperature, ignore_eos=True)
        reply = await policy.generate(tokens, sampling=sampling)
        tokens = np.concatenate([tokens, reply.tokens, np.array([1, 2], np.int32)])
    episode = Episode(
        task_id=task.id,
        attempt=0,
        group_id="g",
        group_size=2,
        member=member,
        source="s",
        env="e",
        reason=Reason.OK,
        trajectories=recording.trajectories({"solver": 1.0}),
    )
    assert judge_episode(episode, "solver").fate is None
    return sample_of(episode, 0, advantage=1.0 - 2.0 * member)


async def test_the_learners_logprobs_are_the_engines_at_every_temperature(tmp_path: Path) -> None:
    learner = TorchLearner(model_folder(tmp_path), section(dither=False), seed=0, threads=1)
    engine = CpuEngine(
        learner.model_files(), learner.export(), section=EngineSection(slots=4, dtype="fp32", kv_cache_mib=16)
    )
    await engine.start()
    try:
        mixed = [await sample_at(engine, 0, TEMPERATURES), await sample_at(engine, 1, TEMPERATURES[::-1])]
        cold = [await sample_at(engine, member, (0.5,)) for member in (0, 1)]
    finally:
        await engine.stop()
    metrics = learner.step(cold).metrics
    assert metrics["train.mismatch_max"] < 1e-4
    assert not [name for name in metrics if name.startswith("train.mismatch_at_")]
    untold = [msgspec.structs.replace(one, temperatures=()) for one in cold]  # records from before it was told
    for of_the_run, agrees in ((0.5, True), (1.0, False)):
        learner = TorchLearner(tmp_path, section(dither=False), seed=0, threads=1, temperature=of_the_run)
        assert (learner.step(untold).metrics["train.mismatch_max"] < 1e-4) is agrees
    learner = TorchLearner(tmp_path, section(dither=False), seed=0, threads=1)
    metrics = learner.step(mixed).metrics
    found = {name: value for name, value in metrics.items() if name.startswith("train.mismatch_at_")}
    assert sorted(found) == ["train.mismatch_at_0.3", "train.mismatch_at_0.5", "train.mismatch_at_1"]
    assert max(found.values()) < 2e-5
    assert metrics["train.clip_fraction"] == 0
    assert metrics["train.mean_ratio"] == pytest.approx(1.0, abs=1e-4)
