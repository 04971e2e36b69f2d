"""The `astraflow` command: one module per verb.

agent      `astraflow agent`
arguments  flags that several verbs share
bus        `astraflow bus`
check      `astraflow check`
drain      `astraflow drain`
evaluate   `astraflow eval`
leaf       `astraflow bus --leaf`
main       the `astraflow` command
node       `astraflow node`
retrieve   `astraflow retrieve`
status     `astraflow status`
stop       `astraflow stop`
submit     `astraflow submit`
top        `astraflow top`
up         `astraflow up`
version    `astraflow version`
weights    `astraflow weights ls|verify|export`
where      which live run a verb is about
    init       `astraflow init`
    logged     what the package logs, as sentences
    output     what a verb prints on
    parser     the command line's parser
"""
