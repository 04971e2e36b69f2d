"""What a data algorithm is: a plain object, named in the run file, whose knobs are its constructor's arguments.

A stage is pure: no I/O, no clock, no random state (whoever calls it hands in keyed draws), so that the same state gives
the same decisions in every process. It keeps each argument in an attribute of the same name, and may have two methods
more: `state() -> plain data` and `restore(plain data)`; without them it is stateless. Invariant: a stage that was
restored from its `StageState` decides as the one that was saved. A selector may also have `metrics() -> numbers by
name`: what people should see of it with every batch.
"""

import inspect
import math
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from astraflow.errors import ConfigError
from astraflow.named import USERS_ERRORS, arguments_of, build, nearest
from astraflow.raised import describe, line_of

T = TypeVar("T")


class StageState(msgspec.Struct):
    """What snapshots keep of a stage; append fields only."""

    kind: str
    data: Any = None  # what its `state()` gave; None = stateless
    knobs: dict[str, Any] = {}  # set since the run began


class Stage(Generic[T]):
    """A stage in its place: built from the run file, brought back from a snapshot, turned while the run goes on."""

    def __init__(
        self, place: str, kind: str, args: Mapping[str, Any], kinds: Mapping[str, str], saved: StageState | None
    ) -> None:
        """A stage as the run file has it. Raises ConfigError.

        Args:
            place: its key in the run file.
            saved: ignored if it is of another kind: the run file was changed.
        """
        self.place, self.kind = place, kind
        self._args = dict(args)
        self._knobs: dict[str, Any] = {}
        self.algorithm: T = build(place, kind, args, kinds)
        if saved is None or saved.kind != kind:
            return
        for name, value in saved.knobs.items():
            self.set_knob(name, value)
        if saved.data is not None:
            try:
                self.algorithm.restore(saved.data)
            except USERS_ERRORS as exc:
                told = describe(exc, of=self._function("restore"))
                raise ConfigError(
                    f"{place} {kind} can't go on from its state in the snapshot: {told}; restore its code, or start "
                    "afresh with `astraflow up --fresh`"
                ) from exc

    def ask(self, method: str, *args: Any, **named: Any) -> Any:
        """Call a method of the algorithm. Raises ConfigError if it fails: it may be the user's own."""
        try:
            answer = getattr(self.algorithm, method)(*args, **named)
        except USERS_ERRORS as exc:
            told = describe(exc, of=self._function(method))
            raise ConfigError(f"{self.place}: {self.kind} failed in {method}(): {told}; mend it and go on") from exc
        if inspect.iscoroutine(answer):  # which would count as "yes"
            answer.close()
            raise self._wrong(method, "is async, and nobody awaits it; make it a def")
        return answer

    def ask_number(self, method: str, *args: Any, **named: Any) -> float:
        """`ask` for a number. Raises ConfigError for anything else, NaN included."""
        answer = self.ask(method, *args, **named)
        try:
            number = float(answer)
        except (TypeError, ValueError):
            number = math.nan
        if math.isnan(number):
            raise self._wrong(method, f"gave {str(answer)[:80]}, expected a number")
        return number

    def _function(self, method: str) -> Any:
        return getattr(type(self.algorithm), method, None)

    def _wrong(self, method: str, text: str) -> ConfigError:
        """What a method did, with its line if it is the user's own."""
        line = line_of(self._function(method)) if ":" in self.kind else ""
        return ConfigError(f"{self.place}: {method}() of {self.kind} {text}{f' ({line})' if line else ''}")

    def state(self) -> StageState:
        """For the snapshot. Raises ConfigError for what can't be stored."""
        data = self.ask("state") if hasattr(self.algorithm, "state") else None
        if ":" in self.kind:  # the user's own
            try:
                msgspec.msgpack.encode(data)
            except (TypeError, ValueError, OverflowError, RecursionError) as exc:
                raise self._wrong("state", f"gave what can't be stored: {exc}; expected plain data") from exc
        return StageState(self.kind, data, dict(self._knobs))

    def metrics(self) -> dict[str, float]:
        """What the algorithm tells of itself; {} if nothing."""
        if not callable(getattr(self.algorithm, "metrics", None)):
            return {}
        answer = self.ask("metrics")
        if not isinstance(answer, Mapping):
            raise self._wrong("metrics", f"gave {str(answer)[:80]}, expected numbers by name")
        return {str(name): float(value) for name, value in answer.items() if isinstance(value, int | float)}

    def set_knob(self, name: str, value: Any) -> None:
        """Change one argument from now on. Raises ConfigError for what the constructor wouldn't take."""
        known = arguments_of(type(self.algorithm))
        if name not in known:
            raise ConfigError(f"{self.place} {self.kind} has no knob {name!r}{nearest(name, known)}")
        args = self._args | self._knobs | {name: value}
        own = f"{type(self.algorithm).__module__}:{type(self.algorithm).__qualname__}"
        fresh = build(self.place, self.kind, args, {self.kind: own})  # the constructor is what validates
        setattr(self.algorithm, name, getattr(fresh, name, value))
        self._knobs[name] = value
