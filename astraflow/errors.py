"""Every error that AstraFlow raises on purpose, by who must act on it.

    AstraflowError
    ├── ConfigError                the user: run file, flags, names, missing folders
    │   ├── NotHereError           the user: a model isn't in the cache and may not be downloaded now
    │   └── DiskFullError          the user: the run folder has no room
    ├── BusError                   the operator: server unreachable, credentials, streams, storage
    │   ├── FencedError            nobody: another incarnation took over, this one must exit
    │   ├── CursorError            the operator: a log and a stored position in it disagree
    │   ├── LinkLostError          nobody: the connection ended, the next session tries again
    │   ├── NoAnswerError          nobody: nothing answers yet, the caller tries again
    │   ├── DeniedError            the operator: the credentials don't allow it
    │   ├── ApiError               the caller: nats-server refused a request, with its code
    │   ├── ConflictError          the caller: somebody else wrote, or the id is already stored
    │   ├── FullError              nobody: a bound of a stream is reached, the caller waits for room
    │   └── ConsumerLostError      nobody: a new consumer goes on
    ├── MessageError               the producer of a message: malformed, oversized, unknown type or version
    │   └── UnreadableValueError   who knows a KV key's value: it can't be read, and may be written anew
    ├── EnvError                   the author of an environment or reward
    │   ├── GraderError            the author of a grader: judging an answer failed
    │   ├── HungError              the author of an environment: its code didn't end within its time
    │   └── BudgetError            the author of an agent: the episode has spent its calls or tokens
    │       └── ContextError       likewise: a conversation has filled the model's context
    ├── RaisedError                the author of an environment or agent: what their code raised, with its line
    ├── EngineError                the operator of a policy engine
    │   ├── RefusedError           the caller: an SGLang server answered with an error, with its status
    │   ├── NotSharedError         the operator: an SGLang server doesn't see our folder
    │   ├── ForeignWeightsError    the operator: an SGLang server serves weights that aren't ours
    │   └── RequestError           the author of the request: no engine of this model can serve it
    ├── WeightsError               the publisher of a version: digest, shape or base mismatch
    ├── PlaceError                 the reader of a payload, who tries another place
    ├── TrainingError              the author of the run: training diverged or can't go on from what is there
    │   ├── LostStateError         the operator: what the run needs of its past is gone, and nothing can rebuild it
    │   └── DamagedCheckpointError nobody: it is set aside, and the one before is used
    ├── RowError                   who reads a question file, and says which row it is
    ├── ProcessError               the user: a process of a node failed, and would again
    ├── RefusalError               the client of the gateway: it can't be answered, with an HTTP status
    ├── EmptyGroupError            the caller: a group without members has no advantages
    ├── OutputLostError            the user: what was asked for could not be printed
    ├── StalledError               the author of a simulation: nothing will ever happen on its loop
    └── NotNeededError             nobody: the task's group is closed, its player stops

What runs inside an SGLang server has errors of its own: nothing of this package can be imported there.
A message says what, where, what was got, what was expected, and the next step.
"""

from pathlib import Path


class AstraflowError(Exception):
    """Base of all errors that AstraFlow raises on purpose."""


class ConfigError(AstraflowError):
    """The run file, a flag or a name is wrong; the user can fix it."""


class NotHereError(ConfigError):
    """It isn't in the cache and may not be downloaded now."""


class DiskFullError(ConfigError):
    """The run folder has no room; nobody but the user can make some."""


class RefusalError(AstraflowError):
    """A client of the gateway can't be answered as it asks. `status` is HTTP's."""

    def __init__(self, status: int, message: str, *, code: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.code = code  # for programs
        self.retry_after_s = retry_after_s  # 0 = trying again is in vain


class RowError(AstraflowError):
    """What is wrong with one row of a question file, beginning with the name of a key's value."""


class BusError(AstraflowError):
    """The bus refused or failed an operation; the operator can fix it."""


class FencedError(BusError):
    """Another incarnation wrote first to a log that has one writer; this process must exit."""


class CursorError(BusError):
    """A stored log position is beyond, below or unequal to the log."""


class LinkLostError(BusError):
    """The connection ended; the operation may be tried again in the next session."""


class NoAnswerError(BusError):
    """Nobody serves the subject (yet), or the answer is overdue; the operation may be tried again."""


class DeniedError(BusError):
    """The credentials don't allow it; trying again doesn't help."""


class ApiError(BusError):
    """The server refused an API request. `code` is like HTTP's, `err_code` is NATS's own."""

    def __init__(self, request: str, code: int, err_code: int, description: str) -> None:
        super().__init__(f"nats-server refused {request}: {description} (code {code}, err_code {err_code})")
        self.code, self.err_code, self.description = code, err_code, description


class ConflictError(BusError):
    """The subject's last sequence isn't the expected one, or the id is already stored."""

    def __init__(self, err_code: int, description: str) -> None:
        super().__init__(description)
        self.err_code = err_code


class FullError(BusError):
    """A bound of the stream is reached; space may come."""


class ConsumerLostError(BusError):
    """The consumer is gone or has skipped; a new one can go on."""


class MessageError(AstraflowError):
    """A message can't be decoded or violates its schema."""


class UnreadableValueError(MessageError):
    """A KV key holds what can't be read. Whoever knows its value may write it over `revision`."""

    def __init__(self, key: str, revision: int, why: str) -> None:
        super().__init__(
            f"KV key {key} can't be read ({why}): something else wrote to the bus, or its store is damaged; restore "
            f"the server's store folder, or start the run afresh (`astraflow up --fresh`)"
        )
        self.key, self.revision = key, revision


class EnvError(AstraflowError):
    """An environment or a grader failed; never counted as reward 0."""


class GraderError(EnvError):
    """An answer couldn't be judged; never counted as wrong."""


class BudgetError(EnvError):
    """An episode has spent its calls or tokens. An agent may catch it and return a reward for what there is."""


class ContextError(BudgetError):
    """What was said so far leaves no room in the model's context for one more token."""


class HungError(EnvError):
    """The user's code didn't end within its time."""


class RaisedError(AstraflowError):
    """What the user's code raised, as a value: `error` may be what no `except Exception` catches."""

    def __init__(self, text: str, *, error: BaseException) -> None:
        super().__init__(text)
        self.error = error


class EngineError(AstraflowError):
    """A policy engine can't serve."""


class RefusedError(EngineError):
    """The server answered with an error. `status` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class NotSharedError(EngineError):
    """What the server should have written into a folder of ours isn't there."""


class ForeignWeightsError(EngineError):
    """The server serves weights that this engine did not give it."""


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


class PlaceError(AstraflowError):
    """A place can't give the payload: a sentence that names it."""


class TrainingError(AstraflowError):
    """Training can't go on: it diverged, or its state is unusable. Restarting would only repeat it."""


class LostStateError(TrainingError):
    """A stream or file that the run goes on from is gone or damaged, and there is no copy."""


class DamagedCheckpointError(TrainingError):
    """A checkpoint's own files can't be read or don't match their digests."""

    def __init__(self, text: str, *, checkpoint: Path) -> None:
        super().__init__(text)
        self.checkpoint = checkpoint


class ProcessError(AstraflowError):
    """A process of this node failed in a way that another start would only repeat."""


class EmptyGroupError(AstraflowError):
    """A group without members has no advantages."""


class NotNeededError(AstraflowError):
    """The task's group is closed."""


class OutputLostError(AstraflowError):
    """What was asked for could not be printed."""


class StalledError(AstraflowError):
    """No timer is set and nobody works: whatever is awaited will never come."""
