"""What to play and what to train: pure, without a bus, a clock, asyncio or torch.

    eval_rounds       what the answers of one evaluation round add up to
    feedback          what closed groups taught, on its way to the selectors of their sources
    held_episodes     episodes by their place in the EPISODES log, kept as long as something refers to them
    ledger            what became of every issued task, per policy and by reason
    replay_ranks      what is replayed first, by the names used in `[policies.<name>.trainer.replay].kind`
    since_last_batch  sums over one policy's training episodes since its previous batch, for metrics
    stages            what a data algorithm is
    staleness         how old a sample is, in optimizer steps
    stop_rule         a goal that ends the run
    tasks             the tasks that a decision stands for, and whom the episodes of an environment train
    trainer_progress  what is known of one policy's trainer
    problems          what keeps a run from getting anywhere, in sentences for people
    part_sums         means of the parts that rewards are made of, by name

A group's way: `sources` (with `select/` and `submissions`) say what is next, `admission` and `metering` how much,
`plan` makes the decisions; `groups` and `deadlines` follow what is open; `judge` (with `samples`, `advantages` and
`filters/`) says once what a closed group is worth; `closed_groups` (with `buffer` and `replay`) keep it until
`batches` bind it. `policy_flow` is one policy's side of all this, `evals` are evaluations, `user_orders` what users
want, `state` and `snapshot` the whole of it, and `core` is what the actor drives.
"""
