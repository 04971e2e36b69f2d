"""What users want of a run while it goes on: tasks of their own, a pause, an evaluation, another value of a knob.

It reads no log: whoever does hands submissions and orders in, in order. Invariant: what was taken in before changes
nothing, neither a place in a log that is read again nor a message that was stored again.
"""

from typing import Any

from astraflow.dataflow.stages import Stage
from astraflow.dataflow.state import DataflowState
from astraflow.dataflow.submissions import MOST_MEMBERS, PREFIX
from astraflow.errors import ConfigError
from astraflow.messages import Control, ControlKind, Submission
from astraflow.named import arguments_of, nearest
from astraflow.verdict import OK, Verdict, refused

_ORDERS_REMEMBERED = 1_000  # an order that comes again after so many others is carried out again


class UserOrders:
    """The users' side of a `DataflowCore`."""

    def __init__(self, state: DataflowState) -> None:
        self._state = state
        self.stop_wanted = False  # no snapshot keeps it: a run that is continued goes on

    def on_submission(self, submission: Submission, sequence: int, message_id: str) -> Verdict:
        """A task from SUBMIT, in order of the log: whether it will be done.

        Args:
            message_id: the same for a message that its sender stored again; "" = it gave none.
        """
        if sequence <= self._state.submitted_to:
            return OK
        self._state.submitted_to = sequence
        name = f"submission {sequence}"
        source = self._state.submissions.get(f"{PREFIX}{submission.env}")
        if source is None:
            return refused("env", f"{name} is for environment {submission.env[:80]!r}, which takes none")
        if not 0 <= submission.group_size <= MOST_MEMBERS:
            text = f"{name} has group_size {submission.group_size}, expected at most {MOST_MEMBERS}"
            return refused("group-size", text)
        if not self._state.trained_by[source.name]:
            return refused("untrained", f"{name}: environment {submission.env} trains no policy of this run")
        source.submit(sequence, submission, message_id or str(sequence))
        return OK

    def on_control(self, control: Control, sequence: int) -> Verdict:
        """An order from CONTROL, in order of the log: whether it is carried out."""
        if sequence <= self._state.controlled_to:
            return OK
        self._state.controlled_to = sequence
        orders = self._state.orders
        if control.order not in orders or not control.order:
            try:
                self._carry_out(control)
                orders[control.order] = ""
            except ConfigError as exc:
                orders[control.order] = str(exc)
            if len(orders) > _ORDERS_REMEMBERED:
                del orders[next(iter(orders))]
        refusal = orders[control.order]
        return refused(str(control.kind), refusal) if refusal else OK

    def _carry_out(self, control: Control) -> None:
        match control.kind:
            case ControlKind.PAUSE | ControlKind.RESUME:
                self._state.paused = control.kind is ControlKind.PAUSE
            case ControlKind.STOP:
                self.stop_wanted = True
            case ControlKind.SET:
                self.set_knob(control.name, control.value)
            case ControlKind.EVALUATE:
                if control.name not in self._state.evals:
                    raise ConfigError(f"there is no [eval.{control.name}]{nearest(control.name, self._state.evals)}")
                self._state.evals[control.name].state.requested = True

    def knobs(self) -> dict[str, Any]:
        """Every knob of the data algorithms by its key in the run file, and its value now."""
        return {key: getattr(stage.algorithm, name, None) for key, (stage, name) in self._stages().items()}

    def set_knob(self, key: str, value: Any) -> None:
        """Change one from now on; it stays changed after a restart. Raises ConfigError for a wrong key or value."""
        known = self._stages()
        if key not in known:
            raise ConfigError(f"there is no knob {key!r}{nearest(key, known)}")
        stage, name = known[key]
        stage.set_knob(name, value)
        for source in self._state.mixer.sources.values():
            source.forget()

    def _stages(self) -> dict[str, tuple[Stage[Any], str]]:
        """Key → the stage and its argument, e.g. `sources.math.select.args.target`."""
        stages: dict[str, Stage[Any]] = {
            f"sources.{name}.select.args": source.select for name, source in self._state.mixer.sources.items()
        }
        for policy, flow in self._state.flows.items():
            path = f"policies.{policy}.trainer"
            stages |= {f"{path}.filter_args.{name}": stage for name, stage in flow.judge.filters.items()}
            if flow.closed_groups.replay.rank is not None:
                stages[f"{path}.replay.args"] = flow.closed_groups.replay.rank
        return {
            f"{path}.{name}": (stage, name)
            for path, stage in stages.items()
            for name in arguments_of(type(stage.algorithm))
        }
