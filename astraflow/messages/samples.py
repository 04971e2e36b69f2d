"""What a trainer consumes: numbered batches of samples."""

import msgspec

from astraflow.messages.arrays import Array
from astraflow.messages.generation import TemperatureSpan, VersionSpan
from astraflow.messages.message import Message


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One trajectory with its advantage, ready to train. T = all tokens, prompt and completions."""

    id: str  # task_id#trajectory index
    task_id: str
    group_id: str
    tokens: Array  # i4[T]
    loss_mask: Array  # u1[T]: 1 where the policy sampled the token
    logprobs: Array  # f4[T]: behaviour logprobs, 0 where loss_mask is 0
    versions: tuple[VersionSpan, ...]  # in coordinates of T
    advantage: float  # with a critic: the reward less penalties, of which the learner makes advantages
    reward: float
    env: str = ""
    temperatures: tuple[TemperatureSpan, ...] = ()  # in coordinates of T; elsewhere: that of the policy's table


class SampleBatch(Message, frozen=True, kw_only=True):
    """One optimizer step's worth of samples; `number` counts 1, 2, 3… per policy. Subject sample.<policy>."""

    policy: str
    number: int
    group_ids: tuple[str, ...]
    samples: tuple[Sample, ...]
    train_step: int  # the step at which it was planned to be trained (0 = the first)
    mean_staleness: float = 0.0  # steps, at train_step
    max_staleness: int = 0
    oldest_version: int = 0
    last: bool = False  # no batch follows; such a batch may be smaller than asked, or empty
