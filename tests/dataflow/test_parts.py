"""The parts of rewards: their means by name, in batches and evaluations."""

import math

import msgspec

from astraflow.dataflow.eval_rounds import Round
from astraflow.dataflow.part_sums import MOST_NAMES, PartSums
from astraflow.dataflow.samples import judge_episode
from astraflow.dataflow.since_last_batch import SinceLastBatch
from astraflow.messages import Episode, Reason, SampleBatch
from astraflow.messages.metric_names import EVAL_PART
from tests.dataflow.test_samples import GOOD, episode, one

BATCH = SampleBatch(policy="solver", number=1, group_ids=(), samples=(), train_step=0)


def graded(reason: Reason = Reason.OK, **parts: float) -> Episode:
    return episode(msgspec.structs.replace(one(GOOD), reward_parts=parts), reason=reason)


def test_a_batch_tells_the_mean_of_each_part_and_how_many_episodes_no_mean_counts() -> None:
    window = SinceLastBatch()
    failed = [graded(reason, answer=9.0) for reason in (Reason.GRADER, Reason.ENV)]
    for each in (graded(answer=1.0, format=0.5), graded(answer=0.0), graded(answer=math.nan), *failed):
        window.see_episode(each, judge_episode(each, "solver"))
    values = window.values(BATCH, replayed=0)
    assert (values["dataflow.part.answer"], values["dataflow.part.format"]) == (0.5, 0.5)
    assert (values["dataflow.failed_all"], values["dataflow.reward_all"]) == (2.0, 1.0)


def test_an_evaluation_tells_them_too_and_keeps_them_in_snapshots() -> None:
    now = Round(versions={}, size=2)
    now.close_task([graded(answer=1.0)], ("solver",), failed=0)
    now = msgspec.msgpack.decode(msgspec.msgpack.encode(now), type=Round)
    now.close_task([graded(answer=0.0)], ("solver",), failed=1)
    values = now.values("solver", repeats=1)
    assert (values["eval.part.answer"], values["eval.failed"]) == (0.5, 1.0)


def test_names_are_bounded() -> None:
    parts = PartSums()
    for number in range(100):
        parts.add({f"part {number}": 1.0, "part 0": 1.0})
    assert len(parts.means(EVAL_PART)) == MOST_NAMES
