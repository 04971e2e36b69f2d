"""Tokenizers in the shapes that published models have, with vocabularies of a few hundred pieces, as model folders."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = [
    "the answer is 42 and the question was about prices and hours, wasn't it?",
    "Natalia sold 48 clips in April; how many clips did Natalia sell altogether in April and May?",
    "def add(a, b):\n    return a + b\n\n",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. [INST] what is it [/INST] user assistant system",
] * 20
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|")
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{{ ' ' + m['content'].strip() + ' ' + eos_token }}"
    "{% else %}{{ bos_token + '[INST] ' + m['content'].strip() + ' [/INST]' }}{% endif %}{% endfor %}"
)


def byte_level(split: str = "", *, spaced: bool = False, ignore_merges: bool = False) -> Tokenizer:
    """Byte-level BPE; `split` is a regex as Qwen's or Llama-3's, "" the one of GPT-2."""
    made = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=spaced, use_regex=not split)
    words = [pre_tokenizers.Split(Regex(split), "isolated")] if split else []
    made.pre_tokenizer = pre_tokenizers.Sequence([*words, bytewise]) if words else bytewise
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=420,
            special_tokens=list(CONTROL),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return made


def sentencepiece(scheme: str = "", *, fallback: bool = True) -> Tokenizer:
    """BPE as converted from SentencePiece: Metaspace with a prepend scheme, or the Prepend normalizer ("")."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    special = ["<unk>", "<s>", "</s>", *([f"<0x{byte:02X}>" for byte in range(256)] if fallback else [])]
    trained.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=256 + 260, special_tokens=special, show_progress=False)
    )
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    made = Tokenizer(models.BPE(model["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=fallback))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if scheme:
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    else:
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if scheme != "never" else parts)
    made.add_special_tokens([AddedToken(text, normalized=False) for text in ("<unk>", "<s>", "</s>")])
    return made


def gemma() -> Tokenizer:
    """BPE with spaces replaced, white space among the added tokens, and tags that aren't special."""
    made = sentencepiece("never")
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    made.add_tokens([AddedToken(text, normalized=False) for text in ("\n", "\n\n", "▁▁", "▁▁▁▁", "<table>")])
    return made


def unigram() -> Tokenizer:
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    made.decoder = decoders.Metaspace()
    made.train_from_iterator(
        CORPUS,
        trainers.UnigramTrainer(
            vocab_size=200,
            special_tokens=["<unk>", "<s>", "</s>"],
            unk_token="<unk>",
            show_progress=False,
        ),
    )
    return made


def wordpiece() -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    made.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    )
    return made


def flagged() -> Tokenizer:
    """Added tokens that take the white space beside them, stand alone, or are matched in normalized text."""
    made = byte_level()
    made.normalizer = normalizers.NFC()
    made.add_tokens(
        [
            AddedToken("<|left|>", lstrip=True, special=True, normalized=False),
            AddedToken("<|right|>", rstrip=True, special=True, normalized=False),
            AddedToken("alone", single_word=True, normalized=False),
            AddedToken("é!", normalized=True),
            AddedToken("<think>", normalized=False),
            AddedToken("</think>", normalized=False),
        ]
    )
    return made


def with_bos(made: Tokenizer, bos: str, eos: str) -> Tokenizer:
    made.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A {eos}", special_tokens=[(text, made.token_to_id(text)) for text in (bos, eos)]
    )
    return made


def as_roberta(made: Tokenizer) -> Tokenizer:
    made.post_processor = processors.RobertaProcessing(
        ("<|im_end|>", made.token_to_id("<|im_end|>")), ("<|im_start|>", made.token_to_id("<|im_start|>"))
    )
    return made


def as_bert(made: Tokenizer) -> Tokenizer:
    made.post_processor = processors.BertProcessing(
        ("[SEP]", made.token_to_id("[SEP]")), ("[CLS]", made.token_to_id("[CLS]"))
    )
    return made


def saved_state(made: Tokenizer) -> Tokenizer:
    made.enable_truncation(max_length=16)
    made.enable_padding(length=64, pad_id=0, pad_token="<|endoftext|>")
    return made


ANY = {"tokenizer_class": "PreTrainedTokenizerFast"}
CHAT = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "chat_template": CHATML}
PIECES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": LLAMA2}
BERT = {"bos_token": "[CLS]", "eos_token": "[SEP]", "unk_token": "[UNK]", "chat_template": LLAMA2}

# name → (tokenizer, its tokenizer_config.json, config.json)
SHAPES: dict[str, tuple[Callable[[], Tokenizer], dict[str, Any], dict[str, Any]]] = {
    "byte-level": (byte_level, {**ANY, **CHAT}, {"model_type": "gpt_bigcode"}),
    "byte-level-spaced": (lambda: byte_level(spaced=True), {**ANY, **CHAT}, {"model_type": "llama"}),
    "gpt2": (
        byte_level,
        {**CHAT, "tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True},
        {"model_type": "gpt2"},
    ),
    "qwen2": (lambda: byte_level(QWEN), CHAT, {"model_type": "qwen2"}),
    "qwen2-other-split": (byte_level, {**CHAT, "tokenizer_class": "Qwen2TokenizerFast"}, {"model_type": "qwen3"}),
    "llama3": (lambda: byte_level(LLAMA3, ignore_merges=True), {**ANY, **CHAT}, {"model_type": "llama"}),
    "llama3-declared-llama": (
        lambda: byte_level(LLAMA3),
        {**CHAT, "tokenizer_class": "LlamaTokenizerFast"},
        {"model_type": "llama"},
    ),
    "gpt4o": (lambda: byte_level(GPT4O), {**ANY, **CHAT}, {"model_type": "phi3"}),
    "neox": (
        lambda: with_bos(byte_level(), *CONTROL[:2]),
        {**CHAT, "tokenizer_class": "GPTNeoXTokenizer"},
        {"model_type": "gpt_neox"},
    ),
    "metaspace-first": (lambda: sentencepiece("first"), {**ANY, **PIECES}, {"model_type": "llama"}),
    "metaspace-always": (lambda: sentencepiece("always"), {**ANY, **PIECES}, {"model_type": "llama"}),
    "metaspace-never": (lambda: sentencepiece("never"), {**ANY, **PIECES}, {"model_type": "mistral"}),
    "prepend": (lambda: with_bos(sentencepiece(), "<s>", "</s>"), {**ANY, **PIECES}, {"model_type": "mistral"}),
    "no-byte-fallback": (lambda: sentencepiece(fallback=False), {**ANY, **PIECES}, {"model_type": "mistral"}),
    "llama2": (
        sentencepiece,
        {**PIECES, "tokenizer_class": "LlamaTokenizer", "legacy": False},
        {"model_type": "llama"},
    ),
    "llama2-legacy": (
        sentencepiece,
        {"tokenizer_class": "LlamaTokenizerFast", "legacy": True, "chat_template": LLAMA2},
        {"model_type": "llama"},
    ),
    "code-llama": (sentencepiece, {**PIECES, "tokenizer_class": "CodeLlamaTokenizer"}, {"model_type": "llama"}),
    "gemma": (gemma, {"tokenizer_class": "GemmaTokenizer", **PIECES}, {"model_type": "gemma2"}),
    "gemma-as-it-is": (gemma, {**ANY, **PIECES}, {"model_type": "gemma2"}),
    "unigram": (unigram, {**ANY, **PIECES}, {"model_type": "mistral"}),
    "wordpiece": (lambda: as_bert(wordpiece()), {**ANY, **BERT}, {"model_type": "llama"}),
    "bert": (
        wordpiece,
        {"tokenizer_class": "BertTokenizerFast", "chat_template": CHATML, "do_lower_case": False},
        {"model_type": "llama"},
    ),
    "roberta": (
        lambda: as_roberta(byte_level()),
        {**CHAT, "tokenizer_class": "RobertaTokenizer"},
        {"model_type": "llama"},
    ),
    "roberta-processing": (lambda: as_roberta(byte_level(spaced=True)), {**ANY, **CHAT}, {"model_type": "llama"}),
    "flagged-tokens": (flagged, {**ANY, **CHAT}, {"model_type": "llama"}),
    "saved-state": (lambda: saved_state(byte_level()), {**ANY, **CHAT}, {"model_type": "llama"}),
    "cleaning-up": (wordpiece, {**ANY, **BERT, "clean_up_tokenization_spaces": True}, {"model_type": "llama"}),
}


def write(folder: Path, made: Tokenizer, settings: dict[str, Any], config: dict[str, Any]) -> Path:
    made.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"vocab_size": made.get_vocab_size(), **config}))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
