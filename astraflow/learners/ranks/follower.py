"""`python -m astraflow.learners.ranks.follower PORT`: a rank that does what the lead says, until the lead is gone.

It takes no decision and writes to no bus. What every rank finds alike (samples that don't fit, a damaged state, a full
disk) is the lead's to tell; anything else is a fault of this rank alone, and ends the process at once, so that no
handler keeps it alive while the others wait for it.
"""

import os
import signal
import socket
import sys
import traceback

import msgspec

from astraflow.learners.ranks.control import Hello, Line, Place, receive, send
from astraflow.lifeline import EXIT_TOGETHER

TOKEN_VARIABLE = "ASTRAFLOW_RANKS_TOKEN"


def main(port: int) -> None:
    """Be a rank; returns when the lead says so."""
    # First what takes long and holds the interpreter: a rank that has said hello must not fall silent.
    from astraflow.learners.ranks.lead import build_rank, obey

    lead = os.getppid()
    line = socket.create_connection(("127.0.0.1", port))
    send(line, Hello(token=os.environ[TOKEN_VARIABLE], pid=os.getpid()))
    place = msgspec.msgpack.decode(receive(line), type=Place)

    def lost(why: str) -> None:
        if why == "silent" and os.getppid() == lead:  # a frozen lead has a node that starts it anew when it has ended
            os.kill(lead, signal.SIGKILL)
        leave(place.rank, f"the lead's line is {why}")

    control = Line(line, silent_s=place.silent_s, lost=lost)
    try:
        learner = build_rank(place)
        while (command := control.next()).op != "stop":
            obey(learner, command)
        control.close()
    except BaseException:  # of whatever kind: the other ranks wait for this one
        leave(place.rank, traceback.format_exc())
        raise


def leave(rank: int, why: str) -> None:
    """End this process now, past whatever could catch it: its lines close, which is how the others learn of it."""
    sys.stderr.write(f"rank {rank}: {why.strip()}\n")
    sys.stderr.flush()
    os._exit(EXIT_TOGETHER)


if __name__ == "__main__":
    main(int(sys.argv[1]))
