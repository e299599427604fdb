"""What every controller does, in one sentence for somebody who has read nothing else."""

from __future__ import annotations

from collections.abc import Mapping

DESCRIPTIONS: Mapping[str, str] = {
    "plain": "The large model writes alone, one token at a time, and keeps nothing of earlier prompts: the yardstick.",
    "plain_reuse": "The large model writes alone, but does not compute again a prompt's beginning that it has seen.",
    "static:": "One small model always guesses, with one fixed length: the setting that was best on training data.",
    "fixed:": "One small model always guesses this many tokens; `bypass` also computes every prompt anew.",
    "best_static": "The best of all fixed settings, chosen on training data: what careful tuning by hand reaches.",
    "hf_dynamic": "Hugging Face transformers' rule: one small model, guessing more after success, less after a miss.",
    "adaedl": "One small model that stops guessing when its own uncertainty says that the next guess would fail.",
    "bandit_epsilon": "Mostly uses the small model that paid best so far, now and then a random one.",
    "bandit_ucb": "Uses the small model that could still turn out best: a bonus for those that were rarely tried.",
    "bandit_exp3": "Draws the small model by chance, with weights that grow with what each one paid.",
    "bandit_thompson": "Uses each small model as often as it is likely to be the best, given what it paid so far.",
    "hedge": "Scores every small model in memory on all text written; the one that would have guessed best guesses.",
    "memspec": "A paper's method (MemSpec): predicts the best small model and loads it while writing goes on.",
    "memspec_stop": "MemSpec that also stops guessing when the small model is unsure of itself.",
    "memspec_no_memory": "MemSpec without its memory management: it demands the best model and waits for each load.",
    "memspec_no_prediction": "MemSpec without its prediction: it goes by how well each small model has guessed lately.",
    "rakv_asd": "Another paper's method (RAKV-ASD): one small model; measured costs say how far it guesses.",
    "stacked": "Both papers put together by hand: MemSpec picks the small model, RAKV-ASD how far it guesses.",
    "stacked_plus": "Stacked, with what this project adds to both papers written in by hand: no learning either.",
    "heuristic": "What the policy starts from: the same choices from a table of measured gains, nothing learned.",
    "policy": "The learned policy: one small network decides model, length, loading and reuse together.",
    "oracle_perfect": "Not a real method: always knows the best small model of the moment, and loading is free.",
    "oracle_clairvoyant": "Not a real method: knows every guess in advance, and loading is free; nothing is faster.",
    "oracle_budget": "Not a real method: knows every guess in advance, but memory is limited and loads take time.",
}
"""By name; a name that ends in a colon stands for all that begin with it."""

RESIDENT = "_resident"
RESIDENT_SENTENCE = "This variant loads what fits at the start and keeps it: it never waits, and never swaps."


def describe(controller: str) -> str:
    """The sentence of a controller by its name in reports; empty for a name that is not known."""
    if controller in DESCRIPTIONS:
        return DESCRIPTIONS[controller]
    base = controller.removesuffix(RESIDENT)
    if base != controller:
        return f"{describe(base)} {RESIDENT_SENTENCE}" if describe(base) else ""
    return DESCRIPTIONS.get(controller.split(":")[0] + ":", "")
