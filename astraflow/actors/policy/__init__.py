"""The policy actor: a replica that serves one policy's newest weights.

actor         the policy actor
cohorts       deterministic runs: requests that start together
load          a replica's first weights
reply_stream  the replica's side of one generation
served        which version a replica serves, and whether that is new enough to take requests
updates       how a replica's engine gets from one version to a newer one, and what is told about it
    agreement     the start-up probe
"""
