"""Running programs that nobody trusts: what a model wrote, or a test that judges it.

    sandbox      one program, from its start to its result
    session      a program that lives on between inputs: a shell, an interpreter
    job          what is run, its bounds, what came of it
    isolation    the command line that isolates a program, and what it needs of this machine
    watch        waiting for a program with its bounds in mind
    probe        attacks at the start: isolation that doesn't hold is refused
    seccomp      the filter of system calls

Calls block; environments make them in threads. It knows no tasks and no rewards.
Invariant: a program sees no network, no file of this machine's but /usr, and no process of ours, and none of its own
processes outlives it. Where that can't be had, nothing runs unless the run file says `unsafe`.
"""

from astraflow.envs.sandbox.job import Limits, Result, Status
from astraflow.envs.sandbox.sandbox import Sandbox
from astraflow.envs.sandbox.session import Session

__all__ = ["Limits", "Result", "Sandbox", "Session", "Status"]
