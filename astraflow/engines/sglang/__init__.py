"""SGLang as a policy engine: a server in its own interpreter, launched by the replica or attached to by URL.

    admission    how many requests a server gets at a time
    attach       a SGLang server that somebody else runs
    client       HTTP to one SGLang server
    completion   one request at a server
    desk         who waits for the server, and who is at it
    engine       the policy engine over a SGLang server
    labels       weight versions as a server reports them
    launch       a SGLang server as a child process, in the interpreter of its own venv
    link         one server, from its start to its end
    metrics      what a server's Prometheus page says, as far as admission and people need it
    scratch      a private folder that an engine shares with its server
    supported    where SGLang is on this machine, and which versions of it this engine works with
    update_file  changes of a model as one file
    updates      how weights get into a server, by the cheapest way that it allows
    serverside   the module that the server imports

The facts on which this rests were measured on SGLang 0.5.23 (docs/decisions/0008-sglang.md).
"""
