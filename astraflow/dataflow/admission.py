"""Which training groups to issue now: by credit, or in deterministic mode a whole cohort between two steps.

It looks and proposes, it changes nothing. Invariant: a group is proposed only while a policy that it feeds has credit;
policies without credit never hold up the others, unless that is asked for (`tightest`).
"""

from collections.abc import Mapping
from typing import NamedTuple

from astraflow.dataflow.policy_flow import PolicyFlow
from astraflow.dataflow.sources import Choice, Mixer

# Credit comes in fractions of a group when the yield is below 1.
_LEAST_CREDIT = 1e-9


class _Proposal(NamedTuple):
    """A group to issue."""

    choice: Choice
    min_versions: dict[str, int]  # per fed policy, the oldest version whose samples can still be trained


def by_credit(
    mixer: Mixer, flows: Mapping[str, PolicyFlow], trained_by: Mapping[str, tuple[str, ...]], *, tightest: bool = False
) -> list[_Proposal]:
    """Groups until no policy has credit or no source has groups.

    Args:
        trained_by: per source, the policies that learn from it.
        tightest: a group waits until all policies that it feeds have credit, those apart that need nothing more.
    """
    live = {name for name, flow in flows.items() if not flow.over}
    trial = mixer.copy()
    more = dict.fromkeys(flows, 0)
    proposals = []
    while hungry := {name for name, flow in flows.items() if flow.credit(more[name]) > _LEAST_CREDIT}:
        held_up = live - hungry if tightest else set()
        choice = trial.choose(
            source for source, fed in trained_by.items() if hungry.intersection(fed) and not held_up.intersection(fed)
        )
        if choice is None:
            break
        source, position = choice.key.source, choice.position
        fed = trained_by[source]
        oldest = {name: flows[name].oldest_useful(more[name]) for name in fed if name in hungry}
        proposals.append(_Proposal(choice, {name: version for name, version in oldest.items() if version > 0}))
        trial.advance(source, position)
        for name in fed:
            more[name] += 1
    return proposals


def cohort(mixer: Mixer, flows: Mapping[str, PolicyFlow], trained_by: Mapping[str, tuple[str, ...]]) -> list[_Proposal]:
    """Everything that the next batches lack, all at once, less what is in flight; [] unless every trainer is idle.

    What this gives depends on batches and versions only, never on the order in which episodes came.
    """
    live = {name: flow for name, flow in flows.items() if not flow.over}
    if any(flow.missing() == 0 for flow in live.values()):
        return []  # a batch is complete, or its trainer still works on one
    lacking = {name: flow.missing() - flow.in_flight for name, flow in live.items()}
    trial = mixer.copy()
    proposals = []
    while hungry := {name for name, count in lacking.items() if count > 0}:
        choice = trial.choose(source for source, fed in trained_by.items() if hungry.intersection(fed))
        if choice is None:
            break
        source, position = choice.key.source, choice.position
        fed = [name for name in trained_by[source] if name in live]
        proposals.append(_Proposal(choice, {name: live[name].trainer.version for name in fed}))
        trial.advance(source, position)
        for name in fed:
            lacking[name] -= 1
    return proposals
