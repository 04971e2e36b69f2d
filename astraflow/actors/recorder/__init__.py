"""The recorder actor: what a run said, in files of the run folder.

actor    the recorder actor
curves   reward-curve.png
jsonl    a JSON-lines file that agrees with the log it is written from, whenever the process dies
tensorboard  metrics.jsonl as TensorBoard reads it
summary  summary.json: what a run came to
"""
