"""The default target behind the real server: 50 prompts, the same text as transformers' own greedy ``generate``.

Random decisions choose among all drafts of the default zoo, so nothing but the verification keeps the text.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agents.setup import PROJECT
from benchmarks.exactness.serving import KV_RESERVE_TOKENS, budget_of, nominal_costs
from benchmarks.mixture import prompts_by_domain
from benchmarks.random_controller import RandomController
from envs.zoo.prompts import FOLLOW_UPS
from runtime.engine.sources import CACHE_VARIABLE, resolve_first
from runtime.live import Served, open_models, open_session
from runtime.server.config import ServerConfig
from runtime.zoo import Zoo
from tests.server.serving import Running, running_over

pytestmark = [
    pytest.mark.slow,
    pytest.mark.exact,
    pytest.mark.skipif(CACHE_VARIABLE not in os.environ, reason=f"{CACHE_VARIABLE} names no folder with the target"),
]
CHATS, TURNS, TOKENS = 25, 2, 32
ZOO = PROJECT / "envs/zoo/smollm2"
MODEL = "real"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    @contextmanager
    def opened() -> Iterator[Served]:
        models = open_models(Zoo.load(ZOO))
        memory = budget_of(models, 2, 1500)
        with open_session(models, memory, nominal_costs(models.zoo), KV_RESERVE_TOKENS, 1) as session:
            yield Served(models, session, RandomController(session.drafts, 0, prefetch=0.5, wait=0.0))

    with running_over(opened, ServerConfig(MODEL, port=0, keep_free_bytes=0)) as one:
        yield one


class Reference:
    """The target as transformers runs it."""

    def __init__(self) -> None:
        folder = resolve_first(Zoo.load(ZOO).target.sources)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def text(self, turns: list[dict[str, str]]) -> str:
        given = self.tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        written = self.model.generate(**given, max_new_tokens=TOKENS, do_sample=False)
        return str(self.tokenizer.decode(written[0, given["input_ids"].shape[1] :], skip_special_tokens=True))


def questions() -> list[str]:
    """Of all domains, spread over their prompts."""
    domains = list(prompts_by_domain(200).values())
    each = CHATS // len(domains)
    return [prompts[index * len(prompts) // each] for prompts in domains for index in range(each)]


def test_fifty_prompts_have_the_text_of_transformers_generate(server: Running) -> None:
    reference, differences, asked = Reference(), list[tuple[str, str, str]](), 0
    with server.client() as client:
        for index, question in enumerate(questions()):
            turns: list[Any] = []
            for turn in range(TURNS):
                said = question if turn == 0 else FOLLOW_UPS[index % len(FOLLOW_UPS)]
                turns.append({"role": "user", "content": said})
                answer = client.chat.completions.create(model=MODEL, messages=turns, temperature=0, max_tokens=TOKENS)
                got, expected = answer.choices[0].message.content or "", reference.text(turns)
                asked += 1
                if got != expected:
                    differences.append((question, expected, got))
                turns.append({"role": "assistant", "content": expected})
    assert asked == 50 and not differences, differences
    drafted = [server.metric(f'specpilot_drafted_tokens_total{{draft="{name}"}}') for name in server.state()["drafts"]]
    assert sum(count > 0 for count in drafted) >= 4, drafted
