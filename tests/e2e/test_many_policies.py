"""Several policies in one run, as real processes: no barrier, and each is trained on its own tokens only."""

import os
import signal
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest

import astraflow as af
from astraflow.api.run import Run
from astraflow.bus import wiring
from astraflow.messages import Episode, Ledger, Sample, SampleBatch
from tests.cli.toyrun import started, write_toy
from tests.e2e.liverun import bus_of, connection_to
from tests.e2e.processes import pid_of
from tests.support import eventually

AGENT = """
import numpy as np
import astraflow as af

PROMPT = np.arange(9, dtype=np.int32) + 1

@af.agent(env="duet")
async def duet(task, policies):
    first = await policies["fast"].generate(PROMPT)
    second = await policies["slow"].generate(np.concatenate([PROMPT, first.tokens, PROMPT[:2]]))
    critic = await policies["critic"].generate(np.concatenate([PROMPT[:3], second.tokens]))
    verdict = await policies["judge"].generate(np.concatenate([PROMPT[:4], second.tokens, critic.tokens]))
    return {"fast": len(first.tokens), "critic": task.seed % 7, "slow": len(second.tokens) + len(verdict.tokens)}
"""
RUN = """\
[run]
name = "demo"

[envs.duet]
kind = "toy"
agent = "duet:duet"
roles = { fast = "fast", critic = "fast", slow = "slow", judge = "judge" }

[sources.duet]
env = "duet"
group_size = 2

[dataflow]
snapshot_every_s = 0.5

[record]
keep_episodes = true

[bus]
lease_s = 2
member_ttl_s = 2

[policies.judge]
model = "toy"
engine = { kind = "toy" }
"""
POLICY = """
[policies.{name}]
model = "toy"
engine = {{ kind = "toy" }}

[policies.{name}.trainer]
learner = "toy"
steps = 100000
batch_groups = 2
filters = []
toy_step_s = {step_s}
"""
LEAD = 12  # steps


async def steps_of(run: Run, policy: str) -> int:
    """Of the newest version."""
    async with aclosing(run.versions(policy)) as heads:
        async for head in heads:
            return head.step
    raise AssertionError(policy)


async def steps_reach(run: Run, policy: str, step: int) -> None:
    async with aclosing(run.versions(policy)) as heads:
        async for head in heads:
            if head.step >= step:
                return


@pytest.mark.slow
async def test_a_slow_or_frozen_trainer_does_not_hold_another_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "duet.py").write_text(AGENT)
    text = RUN + POLICY.format(name="fast", step_s=0.15) + POLICY.format(name="slow", step_s=3)
    file = write_toy(tmp_path, text)
    async with started(tmp_path, "up", str(file)) as command:
        await command.expect("fast step 1")
        connection = connection_to(tmp_path / "runs" / "demo")
        async with af.connect(connection.url, run="demo", token_file=connection.token_file) as run:
            await steps_reach(run, "slow", 1)
            slow, fast = await steps_of(run, "slow"), await steps_of(run, "fast")
            await steps_reach(run, "fast", fast + LEAD)
            assert await steps_of(run, "slow") - slow < LEAD / 2, "in step with the slow one"

            trainer = pid_of("trainer-local-2", parent=command.process.pid)
            os.kill(trainer, signal.SIGSTOP)
            slow, fast = await steps_of(run, "slow"), await steps_of(run, "fast")
            await steps_reach(run, "fast", fast + LEAD)
            assert await steps_of(run, "slow") - slow <= 1, "what it had published when it froze may have come later"
            os.kill(trainer, signal.SIGCONT)
            await steps_reach(run, "slow", slow + 2)
            await assert_own_tokens_only(run)

        async with bus_of(connection) as bus:

            async def surplus() -> bool:
                entry = await bus.kv.get(wiring.LEDGER.key("slow"))
                return entry is not None and isinstance(entry.message, Ledger) and entry.message.counts["surplus"] > 0

            await eventually(surplus)
        command.process.terminate()
        await command.end()


async def assert_own_tokens_only(run: Run) -> None:
    """Batches of both policies against the episodes that they are made of."""
    episodes: dict[str, Episode] = {}
    batches: dict[str, SampleBatch] = {}
    for policy in ("fast", "slow"):
        async with aclosing(run.samples(policy)) as coming:
            async for batch in coming:
                batches[policy] = batch
                break
    wanted = {sample.task_id for batch in batches.values() for sample in batch.samples}
    async with aclosing(run.episodes(start="first")) as recorded:
        async for episode in recorded:
            episodes[episode.task_id] = episode
            if wanted <= episodes.keys():
                break
    for policy, batch in batches.items():
        expected_roles = {"fast": {"", "critic"}, "slow": {""}}[policy]
        assert {check(sample, policy, episodes[sample.task_id]) for sample in batch.samples} == expected_roles


def check(sample: Sample, policy: str, episode: Episode) -> str:
    """The sample is one trajectory of the policy, trained on what it sampled itself; its role."""
    trajectory = episode.trajectories[int(sample.id.rpartition("#")[2])]
    assert trajectory.policy == policy
    (turn,) = trajectory.turns
    tokens_T, mask_T = sample.tokens.numpy(), sample.loss_mask.numpy().astype(bool)
    assert np.array_equal(tokens_T[mask_T], turn.completion_tokens.numpy())
    assert np.array_equal(tokens_T[~mask_T], turn.context_tokens.numpy())
    versions = np.full(tokens_T.size, -1)
    for span in sample.versions:
        versions[span.start : span.end] = span.version
    assert np.array_equal(versions >= 0, mask_T), "every sampled token has its version, and no other has one"
    said = {each.policy: each.turns[0].completion_tokens.numpy() for each in reversed(episode.trajectories)}
    if policy == "slow":  # the fast one's reply is context here
        context = turn.context_tokens.numpy()
        assert np.array_equal(context[9:-2], said["fast"])
    return trajectory.role
