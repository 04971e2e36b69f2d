"""One numbered batch from the groups chosen for it.

It chooses nothing and changes nothing. Invariant: equal groups and episodes give an equal batch, sample for sample.
"""

from collections.abc import Sequence

from astraflow.dataflow.buffer import BufferedGroup
from astraflow.dataflow.held_episodes import HeldEpisodes
from astraflow.dataflow.samples import sample_of, trajectories_of
from astraflow.dataflow.staleness import VersionMap, staleness
from astraflow.messages import Sample, SampleBatch


def _samples_of(group: BufferedGroup, policy: str, held: HeldEpisodes) -> list[Sample]:
    """What is trained of the group, in order of member; an episode's trajectories in one role share its advantage."""
    alone = not group.roles
    return [
        sample_of(held[sequence], at, advantage=advantage_of["" if alone else trajectory.role])
        for member, sequence, advantage_of in zip(group.members, group.sequences, group.advantages, strict=True)
        if member not in group.withheld
        for at, trajectory in trajectories_of(held[sequence], policy)
    ]


def build_batch(
    policy: str,
    number: int,
    groups: Sequence[BufferedGroup],
    *,
    held: HeldEpisodes,
    versions: VersionMap,
    train_step: int,
    last: bool,
) -> SampleBatch:
    """Batch `number`, to be trained at `train_step`. `groups` may be empty only in a last batch."""
    samples = [sample for group in groups for sample in _samples_of(group, policy, held)]
    sampled_by = [[span.version for span in sample.versions] for sample in samples]
    ages = [staleness(versions, of_sample, train_step) for of_sample in sampled_by]
    return SampleBatch(
        policy=policy,
        number=number,
        group_ids=tuple(group.id for group in groups),
        samples=tuple(samples),
        train_step=train_step,
        mean_staleness=sum(ages) / max(1, len(ages)),
        max_staleness=max(ages, default=0),
        oldest_version=min(map(min, sampled_by), default=0),
        last=last,
    )


def members_of(batch: SampleBatch) -> dict[str, list[int]]:
    """Which members of each of its groups a batch holds, sorted."""
    members: dict[str, set[int]] = {group_id: set() for group_id in batch.group_ids}
    for sample in batch.samples:
        members[sample.group_id].add(int(sample.task_id.rsplit("/", 1)[1]))
    return {group_id: sorted(numbers) for group_id, numbers in members.items()}
