"""What can go wrong between this process and the server, by what the caller does about it."""

from astraflow.errors import BusError, MessageError


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


class UnreadableValueError(MessageError):
    """A KV key holds what can't be read. Whoever knows its value may write it over `revision`."""

    def __init__(self, key: str, revision: int, why: str) -> None:
        super().__init__(
            f"KV key {key} can't be read ({why}): something else wrote to the bus, or its store is damaged; restore "
            f"the server's store folder, or start the run afresh (`astraflow up --fresh`)"
        )
        self.key, self.revision = key, revision
