"""The dataflow actor: it issues tasks, judges groups and emits batches, and one process of it leads.

actor           the dataflow actor
issuing         publishes the tasks of a decision
restore         brings a dataflow back to where the logs say it is
snapshot_copy   the snapshot once more, on this machine's disk
store           the snapshot, and what it lets others forget
users           what users want of a run: submissions and orders
    standstill  a run that gets nowhere
"""
