"""Learners: what turns batches into new weights.

attention      attention for short rows on CPUs, under the same interface as transformers' own
base           the seam between a trainer actor and whatever updates weights
batch          samples as they come off the bus become flat arrays and pack items
checkpoint     a learner's state on disk
critic         a value head on the policy's hidden states
dither         start fp32 master weights inside their bf16 cell instead of at its centre
durable        files that survive a power cut once the call returns
factory        build the learner that the run file names
gae            generalised advantage estimation over the tokens that a policy sampled, of whole trajectories
gradients      losses and gradients of an update, micro-batch by micro-batch, of a policy and perhaps its critic
logprobs       logprobs of sampled tokens under some weights, without ever holding logits of a whole batch
losses         what a learner minimises
master         fp32 master weights behind those that the model computes with, and the optimizer
model          load a causal language model from a local folder, and know what it lets us do with it
norms          the norm of all gradients, whatever pieces of them a rank holds
packing        which tokens go through the model together
ranks          the learner of many processes
schedule       the learning rate of each step
step_metrics   what an optimizer step reports
torch_learner  the learner that trains: one process, or one rank of a model
team           who computes a step together: one process, or many ranks
toy            a learner that only counts
"""
