"""Published question sets by one word: where they are, and in which columns. A table; it reads nothing.

A preset fills in what a run file doesn't say: every key of it can be given, and then counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from astraflow.envs.arguments import choice
from astraflow.errors import ConfigError
from astraflow.models.hub_datasets import DATASETS, parsed

_STEP_BY_STEP = r"\s*Let's think step by step and output the final answer within \\boxed\{\}\.?\s*$"
_ANSWER_LINE = (
    r"^Solve the following math problem step by step\. The last line of your response should be of the form Answer: "
    r"\$Answer \(without quotes\) where \$Answer is the answer to the problem\.\s*"
    r"|^Solve the following math problem step by step\.\s*"
    r"|\s*Remember to put your answer on its own line after \"Answer:\"\.\s*$"
)


@dataclass(frozen=True)
class QuestionSet:
    """One published set.

    Attributes:
        files: on the Hugging Face hub, without hf://datasets/.
        use: what it is for: train | eval.
        question_key, answer_key, question_strip, answer_strip: as in a run file.
    """

    name: str
    files: str
    use: str
    question_key: str = "question"
    answer_key: str = "answer"
    question_strip: str = ""
    answer_strip: str = ""

    @property
    def url(self) -> str:
        return DATASETS + self.files


PRESETS = {
    preset.name: preset
    for preset in (
        QuestionSet("deepscaler", "agentica-org/DeepScaleR-Preview-Dataset/deepscaler.json", "train", "problem"),
        QuestionSet(
            "dapo-filter", "aaabiao/dapo_filter/train", "train", "prompt", "reward_model.ground_truth", _STEP_BY_STEP
        ),
        QuestionSet(
            "dapo-math-17k",
            "BytedTsinghua-SIA/DAPO-Math-17k/data/dapo-math-17k.parquet",
            "train",
            "prompt",
            "reward_model.ground_truth",
            _ANSWER_LINE,
        ),
        QuestionSet("gsm8k", "openai/gsm8k/main/train", "train"),
        QuestionSet("gsm8k-test", "openai/gsm8k/main/test", "eval"),
        QuestionSet("aime24", "HuggingFaceH4/aime_2024/train", "eval", "problem"),
        QuestionSet("aime25", "math-ai/aime25/test", "eval", "problem"),
        QuestionSet("amc", "rawsh/2024_AMC12/train", "eval", "problem"),
        QuestionSet("math-500", "HuggingFaceH4/MATH-500/test", "eval", "problem"),
        QuestionSet("minerva", "math-ai/minervamath/test", "eval"),
        QuestionSet("olympiad", "math-ai/olympiadbench/test", "eval", "problem|question", "final_answer|solution"),
    )
}


@dataclass(frozen=True)
class QuestionSource:
    """Where questions are and how they are read, with a preset's values filled in.

    Attributes:
        paths: files, patterns, folders, splits or hf:// names.
        inside: where in a folder of `paths` a preset's files are; "" = anywhere.
    """

    paths: tuple[str, ...]
    inside: str
    question_key: str
    answer_key: str
    question_strip: str
    answer_strip: str


def source(
    *,
    dataset: str = "",
    path: str | Sequence[str] = "",
    question_key: str | None = None,
    answer_key: str | None = None,
    question_strip: str | None = None,
    answer_strip: str | None = None,
) -> QuestionSource:
    """What the arguments of an environment mean; None = the preset's.

    Raises: ConfigError for an unknown preset, or if neither it nor a path is given.
    """
    preset = PRESETS[choice("dataset", dataset, tuple(PRESETS))] if dataset else QuestionSet("", "", "")
    paths = (path,) if isinstance(path, str) else tuple(path)
    if not any(paths):
        if not dataset:
            raise ConfigError(
                f"needs args.path (a file, a pattern or {DATASETS}…), or args.dataset, one of {', '.join(PRESETS)}"
            )
        paths = (preset.url,)
    if not all(isinstance(one, str) and one for one in paths):
        raise ConfigError(f"path is {list(paths)}, expected text, or a list of texts")
    for one in paths:
        if one.startswith(DATASETS):
            parsed(one)
    given = {
        "question_key": question_key,
        "answer_key": answer_key,
        "question_strip": question_strip,
        "answer_strip": answer_strip,
    }
    values = {key: getattr(preset, key) if value is None else value for key, value in given.items()}
    for key, value in values.items():
        if not isinstance(value, str) or (key.endswith("_key") and not value):
            raise ConfigError(f"{key} is {value!r}, expected text")
    return QuestionSource(paths=paths, inside=parsed(preset.url).files if dataset else "", **values)


def table() -> str:
    """The presets as a Markdown table."""
    lines = ["| `dataset` | on the hub | for | question | answer | |", "|---|---|---|---|---|---|"]
    for preset in PRESETS.values():
        keys = (f"`{key}`".replace("|", "`, else `") for key in (preset.question_key, preset.answer_key))
        note = "instructions around the question are taken off" if preset.question_strip else ""
        lines.append(f"| `{preset.name}` | `{preset.files}` | {preset.use} | {' | '.join(keys)} | {note} |")
    return "\n".join(lines) + "\n"
