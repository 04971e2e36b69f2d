"""Which tokenizer class transformers takes for a model folder, for those that don't use tokenizer.json as it is.

Most classes do. The ones below take only its vocabulary and merges and make the rest themselves: a Llama folder whose
file says Prepend is read as Metaspace. Values are transformers' own (5.24), a test compares the table with it. Classes
of other encoders and of speech are not here: their folders are read as they are. No code of a folder is ever run.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_WORDS_WITH_MARKS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_END = "<|endoftext|>"

# Special tokens that a class has where the folder names none.
# None: the class has it as none, whatever a saved padding says.
DEFAULTS: Mapping[str, Mapping[str, str | None]] = {
    "BertTokenizer": {
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    },
    "RobertaTokenizer": {
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "sep_token": "</s>",
        "cls_token": "<s>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
    },
    "LlamaTokenizer": {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"},
    "CodeLlamaTokenizer": {
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "prefix_token": "▁<PRE>",
        "middle_token": "▁<MID>",
        "suffix_token": "▁<SUF>",
        "eot_token": "▁<EOT>",
        "fill_token": "<FILL_ME>",
    },
    "GemmaTokenizer": {
        "unk_token": "<unk>",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
    },
    "Qwen2Tokenizer": {"unk_token": _END, "eos_token": _END, "pad_token": _END},
    "Qwen3_5Tokenizer": {"unk_token": _END, "eos_token": _END, "pad_token": _END},
    "GPT2Tokenizer": {"unk_token": _END, "bos_token": _END, "eos_token": _END, "pad_token": None},
    "GPTNeoXTokenizer": {"unk_token": _END, "bos_token": _END, "eos_token": _END, "pad_token": "<|padding|>"},
    "CohereTokenizer": {
        "unk_token": "<UNK>",
        "bos_token": "<BOS_TOKEN>",
        "eos_token": "<|END_OF_TURN_TOKEN|>",
        "pad_token": "<PAD>",
        "cls_token": "<CLS>",
        "sep_token": "<SEP>",
        "mask_token": "<MASK_TOKEN>",
    },
}

_TYPES = {
    "BertTokenizer": "align bark bert blip bros chinese_clip convbert distilbert electra ernie flava git "
    "grounding-dino layoutlm megatron-bert mm-grounding-dino nezha nomic_bert qdqbert realm retribert squeezebert tvp "
    "vilt visual_bert",
    "RobertaTokenizer": "bart bridgetower clap data2vec-text ibert lilt longformer mega mra roberta "
    "roberta-prelayernorm",
    "CodeLlamaTokenizer": "code_llama",
    "CohereTokenizer": "aya_vision cohere cohere2",
    "GPT2Tokenizer": "blip-2 codegen dbrx emu3 gpt2 gpt_neo gptj hyperclovax_vision_v2 instructblip instructblipvideo "
    "jais2 opt phi starcoder2",
    "GPTNeoXTokenizer": "falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe rwkv xlstm",
    "GemmaTokenizer": "diffusion_gemma gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma "
    "shieldgemma2 t5gemma zaya",
    "LlamaTokenizer": "idefics idefics2",
    "Qwen2Tokenizer": "audioflamingo3 colqwen2 cosmos3_omni dots3_note fun_asr_nano hunyuan_vl internvl lighton_ocr "
    "moss_transcribe_diarize ovis2 qianfan_ocr qwen2 qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_moe qwen2_vl qwen3 "
    "qwen3_asr qwen3_moe qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe vibevoice",
    "Qwen3_5Tokenizer": "qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen4_exp",
}
CLASS_OF_TYPE = {kind: name for name, kinds in _TYPES.items() for kind in kinds.split()}
"""`model_type` → the class that is registered for it."""

_PLAIN = (
    "EvollaModel aria arctic beam bigbird_pegasus camembertv2-base canary chatlm cohere_asr ernie4_5 ernie4_5_moe "
    "flex_olmo fuyu glm glm4 glm4_moe glm4_moe_lite glm4v glm4v_moe glm_image glmasr got_ocr2 gpt_bigcode "
    "gradium_phonon_tts granite granitemoe granitemoehybrid granitemoeshared h2ovl_chat hyperclovax hyperclovax_vlm "
    "internlm2 internlm3 iquestcoder jamba kimi_k25 kimi_linear kosmos-2 llava llava_next mimo_v2_flash minicpm3 "
    "minicpm_ocr minicpmv minicpmv4_6 minicpmv4_7 minimax_m2 ministral ministral3 mistral mistral3 mistral_large4 "
    "mixtral modernbert modernbert-decoder molmo molmo2 nemo_speechlm nemotron nvfp4 nystromformer olmo2 olmo3 "
    "olmo_hybrid omniasr opencua openvla paddleocr_vl pegasus_x persimmon phi3 phi3_v phimoe pix2struct pixtral "
    "pocket_tts smolvlm stablelm step3_vl umt5 vipllava voxtral voxtral_realtime xlm-roberta-xl"
)
PLAIN_TYPES = frozenset(_PLAIN.split())
"""Types whose tokenizer.json is used as it is, whatever class the folder names."""

OVERRULING_TYPES = frozenset(
    {"hyperclovax_vision_v2", "qwen2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp"}
)
"""Types whose registered class is taken though the folder names another, since folders are known to be wrong."""


def class_of(model_type: str, declared: str, *, byte_level: bool) -> str:
    """The class that rebuilds this folder's tokenizer; "" if tokenizer.json is used as it is.

    Args:
        declared: `tokenizer_class` of tokenizer_config.json, else of config.json; "" if neither names one.
        byte_level: tokenizer.json speaks of ByteLevel.
    """
    if model_type in OVERRULING_TYPES:
        return CLASS_OF_TYPE[model_type]
    named = declared.removesuffix("Fast")
    if model_type in PLAIN_TYPES or (named == "LlamaTokenizer" and byte_level):
        return ""
    if not named:
        return CLASS_OF_TYPE.get(model_type, "")
    return named if named in DEFAULTS else ""


def rebuilt(name: str, model: Mapping[str, Any], settings: Mapping[str, Any]) -> "Tokenizer":
    """A tokenizer of the class `name`, with no token added yet.

    Args: model: of tokenizer.json; settings: tokenizer_config.json with the class's special tokens.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    if name == "BertTokenizer":
        made = Tokenizer(models.WordPiece(vocab=_vocabulary(model), unk_token=str(settings.get("unk_token"))))
        made.normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
            strip_accents=settings.get("strip_accents"),
            lowercase=settings.get("do_lower_case", True),
        )
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        made.decoder = decoders.WordPiece(prefix="##")
        return made
    metaspace = name in ("LlamaTokenizer", "CodeLlamaTokenizer")
    spaced = settings.get("add_prefix_space")
    spaced = metaspace if spaced is None else bool(spaced)
    options: dict[str, Any] = {}
    if metaspace or name == "GemmaTokenizer":
        options = {"fuse_unk": True, "byte_fallback": True}
    if name in ("CodeLlamaTokenizer", "GemmaTokenizer"):
        options["unk_token"] = str(settings.get("unk_token"))
    made = Tokenizer(models.BPE(vocab=_vocabulary(model), merges=_merges(model), **options))
    if metaspace:
        always = name == "LlamaTokenizer" and bool(settings.get("legacy", False))
        scheme = "never" if not spaced else "always" if always else "first"
        made.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
        parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        if spaced or name == "CodeLlamaTokenizer":
            parts.append(decoders.Strip(content=" ", left=1))
        made.decoder = decoders.Sequence(parts)
    elif name == "GemmaTokenizer":
        made.normalizer = normalizers.Replace(" ", "▁")
        made.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous", invert=False)
        made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    else:
        made.decoder = decoders.ByteLevel()
        if name not in ("GPT2Tokenizer", "RobertaTokenizer"):
            made.normalizer = normalizers.NFC()
        bytewise = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
        if name.startswith("Qwen"):
            words = Regex(_WORDS if name == "Qwen2Tokenizer" else _WORDS_WITH_MARKS)
            split = pre_tokenizers.Split(words, behavior="isolated", invert=False)
            bytewise = pre_tokenizers.ByteLevel(add_prefix_space=spaced, use_regex=False)
            made.pre_tokenizer = pre_tokenizers.Sequence([split, bytewise])
        elif name == "CohereTokenizer":
            digits = pre_tokenizers.Digits(individual_digits=True)
            made.pre_tokenizer = pre_tokenizers.Sequence([digits, bytewise])
        else:
            made.pre_tokenizer = bytewise
    return made


def _vocabulary(model: Mapping[str, Any]) -> dict[str, int]:
    vocabulary = model.get("vocab", {})
    if isinstance(vocabulary, dict):
        return vocabulary
    return {piece[0] if isinstance(piece, list) else piece: at for at, piece in enumerate(vocabulary)}


def _merges(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = []
    for merge in model.get("merges", ()):
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        found.append((left, right))
    return found
