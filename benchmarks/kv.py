"""What a stored prefix is worth: time to first token behind it, against reading it from disk and computing it again.

    python -m benchmarks.kv [--out FILE]

Everything goes through a ``DecodeSession`` over the real target. For every prefix length the same request is admitted
in three ways, in turn: bypassing what is stored, reusing it from memory, and reusing it from disk (from the blocks'
files, maybe in the page cache of the system). Asserts that all ways write the same token. RAKV-ASD is asked what
it would do, for every length, place and length of what follows, and its answer is compared with what was measured.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from runtime.bundle import library_versions
from runtime.control.rakv_asd import RakvAsdController
from runtime.core import Decision, MemoryConfig, Phase, Request
from runtime.device import device_name, device_profile
from runtime.errors import UserError
from runtime.files import write_json
from runtime.live import LiveModels, open_models, open_session
from runtime.profile import CostModel
from runtime.session import DecodeSession
from runtime.threads import usable_threads
from runtime.zoo import Zoo

SCHEMA = 1
LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
QUESTIONS = (1, 8, 32)
"""Prompt tokens behind the prefix."""
PLACES = ("bypass", "memory", "disk")
HEADLINE = 1000


class Case(NamedTuple):
    """A prompt: so many tokens of stored prefix, so many behind it."""

    prefix: int
    question: int


@dataclass(frozen=True)
class Result:
    """Median time to first token of one prompt, seconds, and what RAKV-ASD would do.

    ``memory_wins`` and ``disk_wins`` are the rounds in which reuse was faster than the bypass measured beside it.
    """

    prefix: int
    question: int
    bypass_s: float
    memory_s: float
    disk_s: float
    reuses_memory: bool
    reuses_disk: bool
    memory_wins: int
    disk_wins: int
    rounds: int

    def choices(self) -> list[Choice]:
        """From memory, and from disk."""
        return [
            Choice(self.reuses_memory is (self.memory_s < self.bypass_s), self._clear(self.memory_wins)),
            Choice(self.reuses_disk is (self.disk_s < self.bypass_s), self._clear(self.disk_wins)),
        ]

    def _clear(self, wins: int) -> bool:
        return min(wins, self.rounds - wins) * 8 <= self.rounds


class Choice(NamedTuple):
    """What RAKV-ASD chose in one case: whether it is the faster side, and whether that side won 7 rounds of 8."""

    right: bool
    clear: bool


class Bench:
    """One session whose stored KV is moved about between measurements.

    Args:
        session: Over the real models, with a disk folder.
        text: Tokens to take prompts from.
    """

    def __init__(self, session: DecodeSession, text: tuple[int, ...]) -> None:
        self.session, self.text = session, text
        self.rakv = RakvAsdController(len(session.drafts), 0, session.costs)

    def keep(self, tokens: int) -> None:
        """Store the KV of the first tokens of the text, in memory and on disk."""
        self._serve(self.text[: tokens + 1], Decision(), retain=True)
        self.session.memory.prefixes.flush()

    def measure(self, case: Case, rounds: int) -> Result:
        """One prompt in all ways, in turn."""
        times: dict[str, list[float]] = {place: [] for place in PLACES}
        choice: dict[str, bool] = {}
        for _ in range(rounds + 1):  # the first warms up
            tokens = {place: self._admit(case, place, times, choice) for place in PLACES}
            if len(set(tokens.values())) != 1:
                raise AssertionError(f"{case}: the ways to the first token disagree: {tokens}")
        seconds = {place: statistics.median(values[1:]) for place, values in times.items()}
        wins = {
            place: sum(
                reused < bypassed for reused, bypassed in zip(times[place][1:], times["bypass"][1:], strict=True)
            )
            for place in PLACES
        }
        return Result(
            prefix=case.prefix,
            question=case.question,
            bypass_s=seconds["bypass"],
            memory_s=seconds["memory"],
            disk_s=seconds["disk"],
            reuses_memory=choice["memory"],
            reuses_disk=choice["disk"],
            memory_wins=wins["memory"],
            disk_wins=wins["disk"],
            rounds=rounds,
        )

    def _admit(self, case: Case, place: str, times: dict[str, list[float]], choice: dict[str, bool]) -> int:
        prompt = (*self.text[: case.prefix], *self.text[-case.question :])
        if place == "disk":
            while self.session.memory.kv.drop_least(lambda node: 0.0):
                pass
        elif place == "memory":
            self._serve(prompt, Decision(kv=True))  # brings it back
        seconds, token, choice[place] = self._serve(prompt, Decision(kv=place != "bypass"))
        times[place].append(seconds)
        return token

    def _serve(self, prompt: tuple[int, ...], decision: Decision, retain: bool = False) -> tuple[float, int, bool]:
        """One token; seconds to it, the token, and whether RAKV-ASD would reuse."""
        self.session.start([Request("bench", prompt, 1)])
        would = self.rakv.decide(self.session.observe()).kv
        first = self.session.advance(decision)
        if self.session.phase is not Phase.COMPLETE:
            raise RuntimeError("expected a request of one token to be complete behind its prefill")
        self.session.advance(Decision(kv=retain))
        return first.seconds, first.tokens[0], would


@contextmanager
def bench(zoo: Zoo, models: LiveModels, costs: CostModel) -> Iterator[Bench]:
    """A bench over a fresh session and a folder that is deleted at the end."""
    per_token = models.target.kv_bytes_per_token
    room = 4 * max(LENGTHS) * per_token
    specs = zoo.specs(512)
    budget = room + sum(spec.bytes for spec in specs if not spec.loadable)
    config = MemoryConfig(budget, 0, per_token, room)
    text = tuple((7919 * i * i + 104729 * i) % (models.target.vocab_size - 200) + 100 for i in range(max(LENGTHS) + 64))
    with (
        tempfile.TemporaryDirectory(prefix="specpilot-") as folder,
        open_session(models, config, costs, 512, 4, kv_folder=Path(folder)) as session,
    ):
        made = Bench(session, text)
        made.keep(-(-max(LENGTHS) // 32) * 32)
        yield made


def table(results: list[Result]) -> str:
    """Results as Markdown."""
    lines = [
        "| prefix | behind it | computed again | from memory | from disk | memory / again | disk / again |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {r.prefix} | {r.question} | {r.bypass_s * 1e3:.0f} ms | {r.memory_s * 1e3:.0f} ms | "
        f"{r.disk_s * 1e3:.0f} ms | {r.memory_s / r.bypass_s:.2f} | {r.disk_s / r.bypass_s:.2f} |"
        for r in results
    ]
    return "\n".join(lines)


def pays_from(results: list[Result], question: int) -> int | None:
    """The shortest prefix from which on reading it from disk is always faster than computing it again."""
    shortest = None
    for result in sorted((r for r in results if r.question == question), key=lambda r: -r.prefix):
        if result.disk_s >= result.bypass_s:
            break
        shortest = result.prefix
    return shortest


def main() -> int:
    """Command line; returns the exit status."""
    try:
        _measure()
    except UserError as error:
        print(f"kv: {error}", file=sys.stderr)
        return 2
    return 0


def _measure() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--zoo", type=Path, default=Path("envs/zoo/smollm2"), help="zoo whose target is measured")
    parser.add_argument("--rounds", type=int, default=8, help="measurements of every case (default: 8)")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 = all cores")
    parser.add_argument("--out", type=Path, default=Path("outputs/kv.json"), help="report (JSON)")
    options = parser.parse_args()
    zoo = Zoo.load(options.zoo)
    threads = options.threads or usable_threads()
    models = open_models(zoo, threads=threads)
    profile = device_profile(zoo, threads=threads, models=models)
    costs = CostModel(profile, zoo.draft_names)
    cases = [Case(prefix, question) for question in QUESTIONS for prefix in LENGTHS]
    with bench(zoo, models, costs) as measured:
        results = [measured.measure(case, options.rounds) for case in tqdm(cases, desc="prefixes", disable=None)]
    choices = [choice for result in results for choice in result.choices()]
    clear = [choice.right for choice in choices if choice.clear]
    headline = next(r for r in results if (r.prefix, r.question) == (HEADLINE, QUESTIONS[1]))
    report = {
        "schema": SCHEMA,
        "device": device_name(),
        "threads": threads,
        "versions": library_versions("torch", "transformers"),
        "results": [asdict(result) for result in results],
        "disk_pays_from_tokens": {question: pays_from(results, question) for question in QUESTIONS},
        "rakv_choices": len(choices),
        "rakv_right": sum(choice.right for choice in choices),
        "rakv_clear_choices": len(clear),
        "rakv_clear_right": sum(clear),
    }
    write_json(options.out, report)
    print(table(results))
    print(
        f"\nfirst token behind {HEADLINE} stored tokens: {headline.memory_s * 1e3:.0f} ms from memory, "
        f"{headline.disk_s * 1e3:.0f} ms from disk, {headline.bypass_s * 1e3:.0f} ms computed again"
    )
    print(f"reading from disk pays from so many tokens on (by tokens behind): {report['disk_pays_from_tokens']}")
    right = sum(choice.right for choice in choices)
    print(
        f"RAKV-ASD chooses the side with the lower median in {right} of {len(choices)} cases "
        f"({right / len(choices):.1%}); where one side is faster in 7 rounds of 8, in {sum(clear)} of {len(clear)} "
        f"({sum(clear) / max(len(clear), 1):.1%})"
    )
    print(f"report: {options.out}")


if __name__ == "__main__":
    sys.exit(main())
