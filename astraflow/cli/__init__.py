"""The `astraflow` command: one module per verb.

agent       `astraflow agent`
arguments   flags that several verbs share
bus         `astraflow bus`
check       `astraflow check`
drain       `astraflow drain`
evaluate    `astraflow eval`
init        `astraflow init`
leaf        `astraflow bus --leaf`
logged      what the package logs, as sentences
main        the `astraflow` command
node        `astraflow node`
output      what a verb prints on
parser      the command line's parser
prometheus  `astraflow prometheus`
retrieve    `astraflow retrieve`
show        `astraflow show`
status      `astraflow status`
stop        `astraflow stop`
submit      `astraflow submit`
top         `astraflow top`
up          `astraflow up`
version     `astraflow version`
weights     `astraflow weights ls|verify|export`
where       which live run a verb is about
"""
