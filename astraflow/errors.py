"""Every error that AstraFlow raises on purpose, by who must act on it.

    AstraflowError
    ├── ConfigError      the user: run file, flags, names, missing folders
    ├── BusError         the operator: server unreachable, credentials, streams, storage
    │   ├── FencedError  nobody: another incarnation took over, this one must exit
    │   └── CursorError  the operator: a log and a stored position in it disagree
    ├── MessageError     the producer of a message: malformed, oversized, unknown type or version
    ├── EnvError         the author of an environment or reward
    │   ├── GraderError  the author of a grader: judging an answer failed
    │   └── BudgetError  the author of an agent: the episode has spent its calls or tokens
    │       └── ContextError  likewise: a conversation has filled the model's context
    ├── EngineError      the operator of a policy engine
    │   └── RequestError the author of the request: no engine of this model can serve it
    ├── WeightsError     the publisher of a version: digest, shape or base mismatch
    └── TrainingError    the author of the run: training diverged or can't go on from what is there

A message says what, where, what was got, what was expected, and the next step.
"""


class AstraflowError(Exception):
    """Base of all errors that AstraFlow raises on purpose."""


class ConfigError(AstraflowError):
    """The run file, a flag or a name is wrong; the user can fix it."""


class BusError(AstraflowError):
    """The bus refused or failed an operation; the operator can fix it."""


class FencedError(BusError):
    """Another incarnation wrote first to a log that has one writer; this process must exit."""


class CursorError(BusError):
    """A stored log position is beyond, below or unequal to the log."""


class MessageError(AstraflowError):
    """A message can't be decoded or violates its schema."""


class EnvError(AstraflowError):
    """An environment or a grader failed; never counted as reward 0."""


class GraderError(EnvError):
    """An answer couldn't be judged; never counted as wrong."""


class BudgetError(EnvError):
    """An episode has spent its calls or tokens. An agent may catch it and return a reward for what there is."""


class ContextError(BudgetError):
    """What was said so far leaves no room in the model's context for one more token."""


class EngineError(AstraflowError):
    """A policy engine can't serve."""


class RequestError(EngineError):
    """A request that no engine of this model can serve: its tokens, its length or its sampling are wrong.

    Attributes:
        request_id: whose.
        fills_context: its prompt leaves no room for a token.
    """

    def __init__(self, text: str, *, request_id: str = "", fills_context: bool = False) -> None:
        super().__init__(text)
        self.request_id = request_id
        self.fills_context = fills_context


class WeightsError(AstraflowError):
    """A weight version is damaged or doesn't fit the model; the old version keeps serving."""


class TrainingError(AstraflowError):
    """Training can't go on: it diverged, or its state is unusable. Restarting would only repeat it."""
