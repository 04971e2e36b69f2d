"""Questions that are answered by searching, and what searches.

    search_env    the environment: turns of searching, then an answer
    turns         what a reply does, and whether it is written as it should be
    scoring       how right an answer is
    world         people, companies and cities that don't exist: a corpus, and questions of several hops
    corpus        passages of files
    index         finds passages by their words
    server        the same over HTTP, for many rollouts
    client        asks such a server

Invariant: what was found is never scored: only what the policy has written is looked at, and only that is trained.
"""

from astraflow.envs.search.search_env import SearchEnv

__all__ = ["SearchEnv"]
