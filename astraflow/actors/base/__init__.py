"""What every actor has: its context, its presence, its lease, and how a process begins and ends.

acting            one actor process from connect to goodbye, whatever its role
connection        how a process of this node reaches the bus
context           what an actor's code holds
diskfull          one error for a disk without room, and the pause before the next try
exits             exit codes, and the end of a log file
handover          from a pulled delivery to the task that works on it
heartbeat         presence from a thread of its own
lease             one holder at a time
logs              how an actor's log file reads
members           who is there, by the run's member records
owned_key         KV keys that only the holder of a lease writes
owned_log         a log that one actor alone writes
process_identity  which process of which machine somebody is, and whether that process has surely ended
run_record        the run's record on the bus
screening         what is wrong with a task or a request that decodes and yet can't be worked on
    leaving           the end of a process that users' code holds up
"""
