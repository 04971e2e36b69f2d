"""SGLang as a policy engine: a server in an interpreter of its own, spoken to over HTTP.

Not here: anything that imports sglang; what runs inside the server lies in `serverside/` and imports nothing of ours.
"""
