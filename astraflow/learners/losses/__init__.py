"""What a learner minimises: objective × off-policy correction × regularisers × aggregation; pure torch, no model.

    tokens         what a loss sees, and who reported which logprobs
    ratios         importance ratios of tokens and sequences
    objectives     clip, ratio, logprob, cispo, sapo
    correction     weights of proximal over behaviour policy, truncated or masked
    trust          M2PO's second-moment mask
    regularisers   KL to a reference in loss or reward; normalised advantages
    aggregation    weights that sum tokens up to the loss
    values         a critic's loss
    diagnostics    what is counted on the way
    compose        one loss of the parts that a run file names
    own            a loss of the user's own: what is wrong with it, in a sentence
    presets        names of papers for sets of parts; imports no torch, and neither does this file

Invariant: a loss is a sum over tokens with weights that were taken over the *whole* update, so any split into
micro-batches or ranks gives the same gradient. Log ratios are finite whatever they are fed: see `ratios.py`.
"""
