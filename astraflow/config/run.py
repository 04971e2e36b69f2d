"""What a run is called and what it keeps: [run], [record]."""

from typing import Annotated

from msgspec import Struct

from astraflow.config.kinds import Name, doc


class RunSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[run]: name, seed and where results go."""

    name: Annotated[Name, doc("names the run on the bus and its folder: [a-z0-9-], at most 32, not a dash at first")]
    seed: Annotated[int, doc("seeds sources, sampling, shuffling and dithering", ge=0)] = 0
    folder: Annotated[str, doc("results go to <folder>/<name>")] = "runs"
    stop_when: Annotated[
        str,
        doc('a goal that ends the run, e.g. "eval.held-out.correct of solver > 0.95"; also on dataflow.…; "" = none'),
    ] = ""
    deterministic: Annotated[bool, doc("one replica, no staleness, ordered admission: bit-repeatable")] = False


class RecordSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[record]: what the run folder keeps."""

    keep_episodes: Annotated[bool, doc("keep every episode on the bus, not only what is still needed")] = False
    episode_text: Annotated[bool, doc("write prompts and replies to episodes.jsonl")] = True
    transcript_chars: Annotated[
        int, doc("kept of the messages of one trajectory, for `astraflow show`; 0 = no messages", ge=0)
    ] = 16_000
    tensorboard: Annotated[bool, doc("write metrics for TensorBoard too, into <run folder>/tensorboard")] = False
    curve: Annotated[bool, doc("draw reward-curve.png at the end, which takes matplotlib one or two seconds")] = True
