"""The trainer actor: it trains one policy, keeps checkpoints and publishes versions.

actor           the trainer actor of one policy
checkpoints     what a trainer writes to continue from
learner_thread  one thread for one learner
publishing      publishes versions beside training
resume          how a trainer finds its starting point
trained_log     which tasks were trained, in the surviving lineage
"""
