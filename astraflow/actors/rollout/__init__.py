"""The rollout actor: it plays tasks, with completions of whatever replica serves.

actor        the rollout actor
budget       what one episode may spend on generation, shared by all its policies, roles and sub-agents
call         a generation that is asked for, and what comes of it
call_stream  the state of one call in flight
cohort_gate  deterministic runs: which calls start together
gateway      where the environments that are played over HTTP are served
generation   the requester's side of a generation, over replicas that come and go
handle       what an environment or agent calls
needed       which tasks nobody needs any more
play         plays one task, from prompt to episode
recording    what was said in one episode
sharing      how training and evaluation share the slots of a pool
stats        counts of what a rollout process did since it last said so
stop_strings  where a reply ends by a stop string, on every engine
suspects     which episodes were in work when this rollout's process died
tokenizers   every policy's tokenizer, from the files that travel with its weights
transcript   what was said, shortened for people
watchdog     ends this process when the user's code holds its event loop up for too long
"""
