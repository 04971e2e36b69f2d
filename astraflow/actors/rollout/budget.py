"""What one episode may spend on generation, shared by all its policies, roles and sub-agents. Pure."""

from dataclasses import dataclass

from astraflow.errors import BudgetError


@dataclass(kw_only=True)
class Budget:
    """0 = unlimited.

    Attributes:
        max_calls: calls to policies.
        max_tokens: sampled tokens; a call gets no more than what is left, calls that run side by side share it.
    """

    max_calls: int = 0
    max_tokens: int = 0
    calls: int = 0
    tokens: int = 0  # sampled, or reserved by a call that runs

    def reserve(self, tokens: int) -> int:
        """Begin a call that wants up to `tokens`; returns how many it may sample. Raises BudgetError."""
        if self.max_calls and self.calls >= self.max_calls:
            raise BudgetError(f"the episode has made its {self.max_calls} calls; raise max_calls of its environment")
        left = self.max_tokens - self.tokens if self.max_tokens else tokens
        if left <= 0:
            raise BudgetError(
                f"the episode has sampled its {self.max_tokens} tokens; raise max_tokens of its environment"
            )
        granted = min(tokens, left)
        self.calls += 1
        self.tokens += granted
        return granted

    def settle(self, granted: int, sampled: int) -> None:
        """The call has ended: what it didn't sample is free again."""
        self.tokens -= granted - sampled
