"""Policy engines: what samples tokens for a replica. Importing this needs no torch.

architecture     what a model's config.json says, as far as engines need it
base             the seam between a policy actor and whatever samples tokens
batching         continuous batching: which sequence is in which slot at each step
cpu              the in-process engine
decoder          the slot decoder for Llama, Qwen2 and Qwen3
decoder_weights  the slot decoder's weights
factory          the engine that a run file asks for
fallback         any causal language model of transformers as a `BatchModel`
keyed            a random number for every (seed, position), without state
kv_cache         memory for keys and values
linear           linear maps for inference, from weights that oneDNN has reordered for itself where it can
requests         what every engine refuses, whatever samples the tokens
rope             rotary positions, computed as transformers does, in fp32
sampling         from logits to tokens
sequences        a request as the decode loop sees it, and what a model must offer to be batched
sglang           SGLang as a policy engine
shell            what every engine over a model's files has in common
streams          the event-loop side of a running request
toy              tokens without a model, for tests of what is around it
weights          weights of a running model
worker           the engine's thread
    reference        what transformers makes of a row of tokens, in fp32
    scoring          logprobs of tokens that were given, computed on the very way on which a model samples
"""

from astraflow.engines.base import EngineLoad, EngineRequest, PolicyEngine, TokenChunk, TokenStream
from astraflow.engines.factory import build_engine

__all__ = ["EngineLoad", "EngineRequest", "PolicyEngine", "TokenChunk", "TokenStream", "build_engine"]
