"""The processes of one machine: which roles it takes, how they start, stay and end.

autojoin     takes roles as the run needs them
capability   what this machine has and lacks for the roles of a run
child        one child process of a node
clouds       what a cloud's metadata service says of this machine's end
demand       which roles a node takes up
disk         a nats-server's disk: full, and free again
entering     how `up` enters a run on the bus
evaluate     evaluate models without a run
join         a node of a run that is already on the bus
local_runs   the runs of this machine, live or ended
node         one machine's part in a run
orders       what a node is told from outside while its processes run
preemption   notice that this machine is about to be taken away
prepare      prepares models before actors start
processes    the processes of one node
record       the run's record, as those who don't belong to the run yet read it
run_changes  what changed in a run file since the run began, and which changes a run can't survive
runfolder    the folder of one run on this machine
server       the run's own nats-server, kept running
stopper      signals that tell the node to leave
submit       puts a run on an external server
supervisor   keeps child processes running
threads      how the cores of one machine are shared among the compute processes that a node starts
up           a server and one node with every role, until the run has ended
"""
