"""Which drafts a zoo gets, and which texts each learns from."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from envs.zoo.texts import Text
from runtime.errors import UserError

GENERALIST = "generalist"


@dataclass(frozen=True)
class DraftPlan:
    """One draft to build.

    Attributes:
        name: Its name and domain; ``generalist`` for the one of all domains.
        rows: Size of its vocabulary.
        layers: Target layers it copies.
        texts: What it learns from.
    """

    name: str
    rows: int
    layers: int
    texts: list[Text]


def plan_zoo(
    texts: Sequence[Text], domains: Sequence[str], layers: int, rows: int, generalist_rows: int, limit: int, seed: int
) -> list[DraftPlan]:
    """A specialist of every domain, then (with two or more domains) a generalist; all learn from as many texts.

    Args:
        texts: The corpus; only its ``distill`` split is used.
        domains: Domains, in building order.
        layers: Target layers of every draft.
        rows: Vocabulary of a specialist.
        generalist_rows: Vocabulary of the generalist.
        limit: Most texts a draft learns from; 0 = as many as the smallest domain has.
        seed: Which texts are drawn.

    Raises:
        UserError: If a domain has no text.
    """
    pools: dict[str, list[Text]] = {}
    for domain in domains:
        pool = [text for text in texts if text.prompt.domain == domain and text.prompt.split == "distill"]
        if not pool:
            known = sorted({text.prompt.domain for text in texts})
            raise UserError(f"domain '{domain}': no text to distill from; the corpus has {known}")
        pool.sort(key=lambda text: text.prompt.prompt_id)
        random.Random(f"{seed}-{domain}").shuffle(pool)
        pools[domain] = pool
    count = min(map(len, pools.values()))
    count = min(count, limit) if limit else count
    plans = [DraftPlan(domain, rows, layers, pool[:count]) for domain, pool in pools.items()]
    if len(pools) > 1:
        share, left = divmod(count, len(pools))
        mixed = [text for index, pool in enumerate(pools.values()) for text in pool[: share + (index < left)]]
        plans.append(DraftPlan(GENERALIST, generalist_rows, layers, mixed))
    return plans


def texts_sha256(texts: Sequence[Text]) -> str:
    """Hash (hex) of what a draft learns from."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(json.dumps([text.prompt.prompt_id, text.prompt_ids, text.output_ids]).encode())
    return digest.hexdigest()
