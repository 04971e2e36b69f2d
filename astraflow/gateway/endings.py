"""How a client says that its episode has ended: the bodies of `reward`, `end` and `cancel`, and what they mean.

It ends nothing. Invariant: an ending holds finite numbers only.
"""

import math
from collections.abc import Collection, Mapping

from msgspec import Struct

from astraflow.errors import RefusalError
from astraflow.gateway.session import Ending
from astraflow.messages import Reason

_MOST_PARTS = 32  # each is a metric
_MAX_REASON = 1000  # characters


class RewardRequest(Struct, kw_only=True):
    """`POST reward`: a number for everybody who was asked, or numbers by policy or role."""

    reward: float | None = None
    rewards: dict[str, float] = {}
    parts: dict[str, float] = {}
    correct: float | None = None

    def ending(self, asked: Collection[str], models: Collection[str]) -> Ending:
        """Raises RefusalError.

        Args: asked: policies and roles that the client has called; models: those that there are.
        """
        if (self.reward is None) == (not self.rewards):
            raise _refusal("give reward (a number) or rewards ({policy or role: number}), and not both")
        rewards: Mapping[str, float] = self.rewards
        if self.reward is not None:
            rewards = dict.fromkeys(asked or (models if len(models) == 1 else ()), self.reward)
            if not rewards:
                raise _refusal(f"nobody was asked yet; give rewards by name: {', '.join(sorted(models))}")
        if len(self.parts) > _MOST_PARTS:
            raise _refusal(f"parts has {len(self.parts)} numbers, at most {_MOST_PARTS} are kept")
        numbers = {f"reward of {name}": value for name, value in rewards.items()} | dict(self.parts)
        for name, value in numbers.items():
            if not math.isfinite(value):
                raise _refusal(f"{name} is {value}, expected a finite number")
        if self.correct is not None and not 0 <= self.correct <= 1:
            raise _refusal(f"correct is {self.correct}, expected 0 to 1")
        return Ending(rewards=dict(rewards), parts=dict(self.parts), correct=self.correct)


class EndRequest(Struct, kw_only=True):
    """`POST end`: the environment grades the answer; without one, the newest reply."""

    answer: str | None = None

    def ending(self) -> Ending:
        return Ending(answer=self.answer)


class CancelRequest(Struct, kw_only=True):
    """`POST cancel`: the client couldn't play it; nobody is rewarded."""

    reason: str = ""

    def ending(self) -> Ending:
        return Ending(reason=Reason.ENV, error=f"its client cancelled it: {self.reason[:_MAX_REASON] or 'no reason'}")


def _refusal(why: str) -> RefusalError:
    return RefusalError(400, why, code="invalid_request")
