"""How an actor's log file reads: time, level, event, then the fields as key=value."""

import logging

_STANDARD = set(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class _FieldsFormatter(logging.Formatter):
    """Appends a record's `extra` fields."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in record.__dict__.items() if name not in _STANDARD}
        return " ".join([super().formatMessage(record), *(f"{name}={value}" for name, value in fields.items())])


def log_to_stderr() -> None:
    """Set up the process's log; the node sends stderr to the actor's log file."""
    handler = logging.StreamHandler()
    handler.setFormatter(_FieldsFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
