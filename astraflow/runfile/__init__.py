"""The run file: read, overridden, checked, documented. The schema itself is `astraflow.config`.

broken_toml    what can still be read of a TOML text that isn't valid
checks         what the keys of a run file mean together
critic_checks  what `[policies.<name>.trainer.critic]` means together with the trainer's other keys
decode         from a TOML tree to a typed RunConfig, with errors that name key, place and nearest name
docs           the reference page of the run file, made from the schema
downloads      what a run downloads at its first start on this machine, for people
environments   building the environments of a run file, to check their arguments, and how their tasks are divided
gateway_checks  what is played over HTTP, and where the gateway may listen
load           reading a run file
loss_checks    what the keys of `[policies.<name>.trainer.loss]` mean together
overrides      `--set a.b=value`
schema         the shape of the run file, read from the structs of `astraflow.config`
sglang_checks  what [policies.<name>.engine.sglang] means together with the rest
stages         the data algorithms of a run file
tokenizer_checks  whether tokenizers of model folders can be read
toml           writing TOML, and finding the line of a key in a TOML text
transports     what the keys of [policies.<name>.weights] mean together
unknown        what stands where a run file's value is wrong, so that the rest can still be checked
    question_sets  what environments ask, for people
    answers        whether graders can see the answers that a run's policies give, for people
"""

from astraflow.runfile.answers import unseen_answers
from astraflow.runfile.downloads import downloads
from astraflow.runfile.load import load, resolved
from astraflow.runfile.question_sets import question_sets
from astraflow.runfile.stages import pipeline
from astraflow.runfile.tokenizer_checks import tokenizer_notes

__all__ = ["downloads", "load", "pipeline", "question_sets", "resolved", "tokenizer_notes", "unseen_answers"]
