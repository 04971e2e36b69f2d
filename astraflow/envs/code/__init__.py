"""Problems that are solved by programs, and tests that tell whether they are.

    code_env         the environment
    sets             published sets by one word, and where the columns of a row are
    problems         from rows of question files to problems with their tests
    replies          from a reply's text to the program in it
    grader           runs a program against its tests, in sandboxes
    printed          compares what a program printed with what it should have
    inside_solver    runs in a sandbox: the program, called from outside
    inside_checker   runs in another: the tests, which call it

Invariant: a program that is graded shares no process, no memory and no file with what grades it; only plain values
travel between the two.
"""

from astraflow.envs.code.code_env import CodeEnv

__all__ = ["CodeEnv"]
