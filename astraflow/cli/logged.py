"""What the package logs while a verb runs, as sentences for people: a log's event names mean nothing to them.

Actors' processes have logs of their own (`actors/base/logs.py`). Invariant: no event name reaches a terminal bare.
"""

import logging
import sys

SENTENCES = {
    "bus.close_hangs": "the connection to {url} doesn't close; left behind",
    "bus.dead_letter": "message {sequence} of {stream} can't be read and is set aside: {why}",
    "bus.dead_letter_lost": "message {sequence} of {stream} can't be read, and couldn't be set aside: {why}",
    "bus.denied": "the server doesn't allow this key to {verb} {subject}",
    "bus.ensure_failed": "the run's streams are not as they should be: {why}",
    "bus.event_dropped": "the event {event} couldn't be stored: {why}",
    "bus.id_taken": "a message id on {subject} was taken by another message; it is stored under another",
    "bus.lost": "the connection to {url} is lost ({why}); trying again",
    "bus.orphan_ended": "ended a nats-server whose `up` is gone (process {pid}, {folder})",
    "bus.publish_waits": "waiting to store {what}: {why}",
    "bus.queue_not_repaired": "a consumer of {stream} can't be made anew yet: {why}",
    "snapshot_copy_failed": "the copy of dataflow's snapshot in {path} can't be written, the bus has it: {why}",
    "sglang.folder_not_shared": "SGLang doesn't see this machine's folder: {why}",
    "sglang.no_checksums": "SGLang tells no checksums: {why}",
    "storage": "{actor}: {text}",
}
"""Every warning or worse that the package logs under a name; others are sentences without their reason."""


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        if hasattr(record, "fields"):  # an event of the run: the view has it, and a process's end is told once
            return
        if sentence := SENTENCES.get(said):
            said = sentence.format_map(vars(record))
        elif why := vars(record).get("why") or vars(record).get("error"):
            said = f"{said}: {why}"
        sys.stderr.write(f"astraflow: {said}\n")


def say_warnings() -> None:
    """From now on; replaces what an earlier call set up."""
    package = logging.getLogger("astraflow")
    package.handlers = [_Handler(logging.WARNING)]
    package.propagate = False
