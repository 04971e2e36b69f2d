"""What dataflow decides: pure, fed with messages, no asyncio, no torch, no bus.

admission         which training groups to issue now
advantages        a group's rewards become advantages
batches           one numbered batch from the groups chosen for it
buffer            closed groups that wait for a batch, in the order in which they will be trained
closed_groups     one policy's closed groups
core              dataflow's state machine: messages in, decisions and batches out
deadlines         which tasks should have had a record by now
eval_rounds       what the answers of one evaluation round add up to
evals             evaluation rounds
feedback          what closed groups taught, on its way to the selectors of their sources
filters           groups that aren't worth training on, by the names used in `[policies.<name>.trainer].filters`
groups            an open group
held_episodes     episodes by their place in the EPISODES log, kept as long as something refers to them
judge             what one policy makes of a closed group
knobs             the knobs of a run's data algorithms, by their keys in the run file
ledger            what became of every issued task, per policy and by reason
metering          how many groups a policy may have in the works
order             in which order closed groups are trained, by the names used in `[dataflow].order`
overlong          a soft penalty for replies that come near the token budget
pass_at           what several answers per task say
plan              what dataflow should decide now: issue, reissue, close
policy_flow       one trainable policy's side of dataflow
replay            groups that were trained before and may be trained again
replay_ranks      what is replayed first, by the names used in `[policies.<name>.trainer.replay].kind`
role_groups       group statistics of one policy that may have played several roles
samples           from an episode to samples
select            which tasks of a source are worth a rollout, by the names used in `[sources.<name>.select].kind`
since_last_batch  sums over one policy's training episodes since its previous batch, for metrics
snapshot          what dataflow must remember besides its logs
sources           where training tasks come from
stages            what a data algorithm is
staleness         how old a sample is, in optimizer steps
state             the parts that dataflow's state machine is made of, built for a run that begins or from a snapshot
submissions       tasks that users submit, as sources
tasks             the tasks that a decision stands for
trained_by        which policies play in an environment, and which of them its episodes train
trainer_progress  what is known of one policy's trainer
"""
