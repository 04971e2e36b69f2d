"""How often each task succeeded lately, for selectors that go by it. Invariant: rates are in [0, 1]."""

from typing import Any


class SuccessRates:
    """Per task, an average in which every new group weighs `momentum` and all before it the rest."""

    def __init__(self) -> None:
        self._rates: dict[int, float] = {}

    def __getitem__(self, index: int) -> float | None:
        """None: it was never tried."""
        return self._rates.get(index)

    def see(self, index: int, success: float, *, momentum: float) -> None:
        """A group of the task closed."""
        known = self._rates.get(index, success)
        self._rates[index] = known + momentum * (success - known)

    def state(self) -> Any:
        return list(self._rates.items())

    def restore(self, state: Any) -> None:
        self._rates = dict(state)
