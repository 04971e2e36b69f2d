"""The actors: the processes of a run, which meet only on the bus. Each role's package has its `run` in `actor.py`.

base      what every actor has
dataflow  the dataflow actor
policy    the policy actor
recorder  the recorder actor
region    a region's keeper
rollout   the rollout actor
trainer   the trainer actor
"""
