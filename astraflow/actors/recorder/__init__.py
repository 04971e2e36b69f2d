"""The recorder actor: what a run said, in files of the run folder.

actor        the recorder actor
curves       reward-curve.png
host         what a run was run with
jsonl        a JSON-lines file that agrees with the log it is written from, whenever the process dies
summary      summary.json: what a run came to
tensorboard  metrics.jsonl as TensorBoard reads it
"""
