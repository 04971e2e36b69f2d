"""What a data algorithm is: a plain object, named in the run file, whose knobs are its constructor's arguments.

A stage is pure: no I/O, no clock, no random state (whoever calls it hands in keyed draws), so that the same state gives
the same decisions in every process. It keeps each argument in an attribute of the same name, and may have two methods
more: `state() -> plain data` and `restore(plain data)`; without them it is stateless. Invariant: a stage that was
restored from its `StageState` decides as the one that was saved. A selector may also have `metrics() -> numbers by
name`: what people should see of it with every batch.
"""

import inspect
import math
import traceback
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from astraflow.errors import ConfigError
from astraflow.named import arguments_of, build, nearest

T = TypeVar("T")


def _told(exc: BaseException) -> str:
    """The exception and the line of code that raised it."""
    place = "".join(f" ({entry.filename}:{entry.lineno})" for entry in traceback.extract_tb(exc.__traceback__)[-1:])
    return f"{exc!r}{place}"


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
            except (Exception, SystemExit) as exc:  # users' code
                raise ConfigError(
                    f"{place} {kind} can't go on from its state in the snapshot: {_told(exc)}; "
                    "restore its code, or start afresh with `astraflow up --fresh`"
                ) from exc

    def ask(self, method: str, *args: Any, **named: Any) -> Any:
        """Call a method of the algorithm. Raises ConfigError if it fails: it may be the user's own."""
        try:
            answer = getattr(self.algorithm, method)(*args, **named)
        except (Exception, SystemExit) as exc:
            text = f"{self.place}: {self.kind} failed in {method}(): {_told(exc)}; mend it and go on"
            raise ConfigError(text) from exc
        if inspect.iscoroutine(answer):  # which would count as "yes"
            answer.close()
            raise ConfigError(f"{self.place}: {method}() of {self.kind} is async, and nobody awaits it; make it a def")
        return answer

    def ask_number(self, method: str, *args: Any, **named: Any) -> float:
        """`ask` for a number. Raises ConfigError for anything else, NaN included."""
        answer = self.ask(method, *args, **named)
        try:
            number = float(answer)
        except (TypeError, ValueError):
            number = math.nan
        if math.isnan(number):
            raise ConfigError(f"{self.place}: {method}() of {self.kind} gave {str(answer)[:80]}, expected a number")
        return number

    def state(self) -> StageState:
        """For the snapshot. Raises ConfigError for what can't be stored."""
        data = self.ask("state") if hasattr(self.algorithm, "state") else None
        if ":" in self.kind:  # the user's own
            try:
                msgspec.msgpack.encode(data)
            except (TypeError, ValueError, OverflowError, RecursionError) as exc:
                text = f"{self.place}: state() of {self.kind} gave what can't be stored: {exc}; expected plain data"
                raise ConfigError(text) from exc
        return StageState(self.kind, data, dict(self._knobs))

    def metrics(self) -> dict[str, float]:
        """What the algorithm tells of itself; {} if nothing."""
        if not callable(getattr(self.algorithm, "metrics", None)):
            return {}
        answer = self.ask("metrics")
        if not isinstance(answer, Mapping):
            text = f"{self.place}: metrics() of {self.kind} gave {str(answer)[:80]}, expected numbers by name"
            raise ConfigError(text)
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
