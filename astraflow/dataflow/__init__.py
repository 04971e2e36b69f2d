"""What to play and what to train: pure, without a bus, a clock, asyncio or torch.

A group's way: `sources` (with `select/` and `submissions`) say what is next, `admission` and `metering` how much,
`plan` makes the decisions; `groups` and `deadlines` follow what is open; `judge` (with `samples`, `advantages` and
`filters/`) says once what a closed group is worth; `closed_groups` (with `buffer` and `replay`) keep it until
`batches` bind it. `policy_flow` is one policy's side of all this, `evals` are evaluations, `user_orders` what users
want, `state` and `snapshot` the whole of it, and `core` is what the actor drives.
"""
