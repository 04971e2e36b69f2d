"""SGLang as a policy engine: a server in its own interpreter, launched by the replica or attached to by URL.

    engine.py      the PolicyEngine: swaps, failure      desk.py        the queue in front of the server
    completion.py  one request: its stream of tokens, its continuation when the server drops it
    client.py      HTTP
    launch.py      the server as a child process       attach.py     a server that somebody else runs
    updates.py     how weights reach the server        labels.py     versions as the server reports them
    admission.py   how many requests it gets           metrics.py    what it says about itself
    link.py        one server, from its start to its end   scratch.py   the folder that both see
    serverside/    the module that the server imports

The facts on which this rests were measured on SGLang 0.5.23 (docs/decisions/0008-sglang.md).
"""
