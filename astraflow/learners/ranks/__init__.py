"""The learner of many ranks: each holds a piece of the model, and all compute every step together.

placement   where a rank's piece of a tensor lies in the whole tensor
dealing     which rank computes which passes
group       the processes of one learner, and what they exchange
owners      whole tensors on the rank that owns them
control     the lead's line to each follower: commands, beats, and the end of all when one goes
lead        a learner whose steps are computed by this process and its followers
follower    a rank that does what the lead says
"""
