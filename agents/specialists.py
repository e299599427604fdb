"""Whether specialists are worth switching to: ``python -m agents.specialists out=DIR``.

In every domain, on held-out prompts: each draft alone, with the length and stop level best on that domain's training
prompts, in committed tokens per second of decoding (prefill left out: no draft changes it).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import hydra
from hydra.utils import to_absolute_path
from omegaconf import DictConfig

from agents.setup import Setting, prepare
from envs.world import ReplayWorld
from runtime.control.rules import speculate
from runtime.core import GAMMAS, PLAIN, STOP_LEVELS, Decision, Phase, Request
from runtime.errors import UserError
from runtime.files import write_json

PLAIN_NAME = "plain"


def decode_rate(world: ReplayWorld, requests: list[Request], draft: int | None, gamma: int, stop: int) -> float:
    """Committed tokens per second of decode rounds with one draft that is resident from the start."""
    tokens, seconds = 0, 0.0
    session = world.session()
    session.start(requests)
    finished = False
    while not finished:
        observation = session.observe()
        decision: Decision = PLAIN
        if observation.phase is Phase.DECODE and draft is not None:
            if not session.memory.resident(draft):
                session.memory.load_now(draft, decision.victim, 0.0)
                observation = session.observe()
            decision = speculate(observation, draft, gamma, stop, PLAIN)
        outcome = session.advance(decision)
        if outcome.round is not None:
            tokens += outcome.committed
            seconds += outcome.seconds
        finished = outcome.stream_finished
    return tokens / seconds


def domain_requests(world: ReplayWorld, domain: str) -> list[Request]:
    """All requests of a domain in a split, turns in order."""
    traces = sorted(world.traces.split(world.split), key=lambda t: (t.group, t.turn))
    return [world.generator.request(trace) for trace in traces if trace.domain == domain]


def study(setting: Setting) -> dict[str, dict[str, float]]:
    """Held-out tokens per second by domain and draft, ``plain`` among the drafts."""
    domains = sorted({trace.domain for trace in setting.heldout.traces.traces})
    table: dict[str, dict[str, float]] = {}
    budget = replace(setting.memory, budget_bytes=10 * setting.memory.budget_bytes)
    train, heldout = (
        replace(world, config=replace(world.config, memory=budget)) for world in (setting.train, setting.heldout)
    )
    for domain in domains:
        tuning, judged = domain_requests(train, domain)[::3], domain_requests(heldout, domain)
        row = {PLAIN_NAME: decode_rate(heldout, judged, None, 0, 0)}
        for index, draft in enumerate(setting.specs):
            settings = [(gamma, stop) for gamma in GAMMAS for stop in range(len(STOP_LEVELS))]
            gamma, stop = max(settings, key=lambda pair: decode_rate(train, tuning, index, *pair))
            row[draft.name] = decode_rate(heldout, judged, index, gamma, stop)
        table[domain] = row
    return table


@hydra.main(version_base=None, config_path="../conf", config_name="evaluate")
def main(config: DictConfig) -> None:
    """Run the study, print it, write ``specialists.json``."""
    try:
        setting = prepare(config)
        table = study(setting)
    except UserError as error:
        sys.exit(f"specialists: {error}")
    names = [PLAIN_NAME, *(draft.name for draft in setting.specs)]
    print("| domain | " + " | ".join(names) + " | specialist / generalist |")
    print("|---" * (len(names) + 2) + "|")
    for domain, row in table.items():
        gain = f"{row[domain] / row['generalist']:.2f}" if domain in row and "generalist" in row else ""
        print(f"| {domain} | " + " | ".join(f"{row[name]:.2f}" for name in names) + f" | {gain} |")
    write_json(Path(to_absolute_path(config.out)) / "specialists.json", {"schema": 1, "tokens_per_s": table})


if __name__ == "__main__":
    main()
