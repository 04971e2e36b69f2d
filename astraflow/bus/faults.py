"""What can go wrong between this process and the server, by what the caller does about it."""

from astraflow.errors import BusError


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
