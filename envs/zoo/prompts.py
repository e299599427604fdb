"""Prompts of a zoo: grammars of forms and topics, sampled once and split three ways.

A domain is one YAML file (see ``prompts/code.yaml``). Every form of a section is combined with every topic of that
section; a seeded sample without replacement is split into ``distill`` (drafts learn from it), ``train`` (the policy
learns from it) and ``heldout`` (nothing learns from it). The splits share forms and topics, never a whole prompt.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

Split = Literal["distill", "train", "heldout"]
Kind = Literal["single", "rag", "chat"]
SPLITS: tuple[Split, ...] = get_args(Split)

PROMPT_FOLDER = Path(__file__).parent / "prompts"

FOLLOW_UPS = (
    "Can you give another example?",
    "Please explain that in simpler words.",
    "Make it shorter.",
    "What should I do next?",
    "Continue.",
    "Rewrite that as a numbered list.",
    "What is the most common mistake here?",
    "Give me a different version of the same thing.",
)


@dataclass(frozen=True)
class PromptCounts:
    """How many prompts of each kind one domain gets in one split.

    Attributes:
        single: Stand-alone prompts.
        documents: Shared documents; each is asked ``questions`` different questions.
        questions: Questions asked of each document.
        chats: Conversations.
        turns: User turns of each conversation.
    """

    single: int
    documents: int = 0
    questions: int = 0
    chats: int = 0
    turns: int = 3

    @property
    def fresh_prompts(self) -> int:
        """Prompts this split draws from the grammar (follow-up turns are not drawn)."""
        return self.single + self.documents * self.questions + self.chats


DEFAULT_COUNTS: dict[Split, PromptCounts] = {
    "distill": PromptCounts(single=576, documents=10, questions=4),
    "train": PromptCounts(single=48, documents=8, questions=3, chats=8, turns=3),
    "heldout": PromptCounts(single=32, documents=6, questions=3, chats=6, turns=3),
}


def load_grammar(path: Path) -> list[str]:
    """All prompts of one domain file, in file order.

    Raises:
        ValueError: If the file is not a grammar or yields duplicate prompts.
    """
    data: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict) or "sections" not in data:
        raise ValueError(f"{path}: expected a mapping with 'domain' and 'sections', got {type(data).__name__}")
    prompts = [
        form.format(topic=topic)
        for section in data["sections"]
        for form in section["forms"]
        for topic in section["topics"]
    ]
    if len(set(prompts)) != len(prompts):
        raise ValueError(f"{path}: {len(prompts) - len(set(prompts))} duplicate prompts; make forms or topics differ")
    return prompts


def split_prompts(prompts: list[str], counts: dict[Split, PromptCounts], seed: int) -> dict[Split, list[str]]:
    """Draw disjoint prompts for every split.

    Raises:
        ValueError: If the grammar has fewer prompts than the counts ask for.
    """
    needed = sum(count.fresh_prompts for count in counts.values())
    if needed > len(prompts):
        raise ValueError(f"the grammar yields {len(prompts)} prompts, {needed} are asked for: add forms or topics")
    drawn = random.Random(seed).sample(prompts, needed)
    result: dict[Split, list[str]] = {}
    for split, count in counts.items():
        result[split], drawn = drawn[: count.fresh_prompts], drawn[count.fresh_prompts :]
    return result
