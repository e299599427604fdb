"""The load test itself: it asks what it should, and notices what it is there for."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from benchmarks import load
from benchmarks.clients import Answer, Tally
from benchmarks.load_report import FIRST, LAST, RESTARTED, Observed, judge
from benchmarks.mixture import FEWEST_TOKENS, KINDS, MOST_TOKENS, Ask, asks, prompts_by_domain
from benchmarks.probes import Probe, Run, agreement, runs_of
from benchmarks.resident import Growth, Sample, growth
from runtime.errors import UserError
from tests.tiny_zoo import TinyZoo

FLAT = Growth(100.0, 100.0, 0.0, 0.0)
ASK = Ask("whole", "a question", "", 16, 0)


def probe(text: str = "an answer", **runs: Run) -> Probe:
    return Probe("a question", text, 8, 4, 0, {("code", int(name[1:])): run for name, run in runs.items()})


# -- what is asked ---------------------------------------------------------------------------------------------------


def test_the_mixture_has_all_kinds_and_domains_and_repeats_itself() -> None:
    prompts = prompts_by_domain(50)
    found = list(islice(asks(prompts, 3), 500))
    assert found == list(islice(asks(prompts, 3), 500)) != list(islice(asks(prompts, 4), 500))
    assert set(Counter(ask.kind for ask in found)) == set(KINDS)
    assert {FEWEST_TOKENS, MOST_TOKENS} <= {ask.max_tokens for ask in found}
    for of_domain in prompts.values():
        assert sum(ask.prompt in of_domain for ask in found) == 500 // len(prompts)
    with pytest.raises(UserError, match="at most 0 words"):
        prompts_by_domain(0)


# -- what is noticed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "agree"),
    [
        (Run(2, True), Run(2, True), True),
        (Run(2, True), Run(3, True), False),
        (Run(2, True), Run(2, False), True),  # drafted two, both right
        (Run(2, True), Run(3, False), False),
        (Run(5, False), Run(1, False), True),
        (Run(5, False), Run(5, True), True),
        (Run(5, False), Run(4, True), False),
    ],
)
def test_runs_of_different_lengths_are_compared(one: Run, other: Run, agree: bool) -> None:
    assert one.agrees(other) is other.agrees(one) is agree


def test_runs_are_read_from_a_trace_and_the_look_up_is_left_out() -> None:
    def step(draft: str | None, drafted: int, accepted: int, tokens: int) -> dict[str, object]:
        return {"decision": {"draft": draft}, "drafted": drafted, "accepted": accepted, "tokens": [{}] * tokens}

    steps = [
        step(None, 0, 0, 1),
        step("code", 4, 2, 3),
        step("lookup", 8, 8, 9),
        step("code", 2, 2, 3),
        step("math", 0, 0, 1),
    ]
    assert runs_of(steps) == {("code", 1): Run(2, True), ("code", 13): Run(2, False)}


def test_agreement_counts_the_same_place_only() -> None:
    first = [probe(p1=Run(2, True), p5=Run(1, False)), probe(p9=Run(0, True))]
    assert agreement(first, [probe(p1=Run(2, False), p7=Run(3, True))]) == (1, 0)
    assert agreement(first, [probe(p1=Run(3, False), p9=Run(1, True))]) == (2, 2)


def samples(*bytes_: float) -> list[Sample]:
    return [Sample(float(index), int(one)) for index, one in enumerate(bytes_)]


def test_growth_is_that_behind_the_warm_up() -> None:
    filling = samples(*range(0, 1000, 40), *[1000] * 75)
    assert growth(filling).share == 0.0
    leaking = samples(*range(0, 1000, 40), *(1000 + 2 * index for index in range(75)))
    assert growth(leaking).share > 0.1 and growth(leaking).slope_bytes_per_hour == pytest.approx(7200)
    jumping = samples(*[1000] * 60, 5000, *[1000] * 39)  # one reading says nothing
    assert growth(jumping).share == 0.0
    with pytest.raises(UserError, match="run it longer"):
        growth(samples(1, 2, 3))


def test_a_tally_notices_other_texts_and_forgives_shorter_ones() -> None:
    tally = Tally()
    for text in ("ab", "abcd", "abc\N{REPLACEMENT CHARACTER}", "a"):
        tally.take(ASK, Answer(text, "key"), 3, 1.0)
    assert tally.unlike == 0 and tally.done == {"whole": 4} and tally.tokens == 12
    tally.take(ASK, Answer("abx", "key"), 3, 1.0)
    tally.take(ASK, Answer("abx"), 3, 1.0)
    assert tally.unlike == 1


def observed() -> Observed:
    tally = Tally()
    tally.take(ASK, Answer("text"), 3, 1.0)
    probes = [probe(p1=Run(2, True))]
    return Observed(tally, [], {FIRST: probes, LAST: probes, RESTARTED: probes})


def test_a_good_run_keeps_all_promises() -> None:
    assert set(judge(1, observed(), FLAT).values()) == {True}


def test_every_promise_can_be_broken() -> None:
    assert broken(2, observed()) == ["served"]
    failing = observed()
    failing.tally.fail(ASK, ValueError("no"))
    assert broken(1, failing) == ["served"] and failing.tally.failures == ["whole: ValueError: no"]
    inside = replace(observed(), metrics={'specpilot_requests_total{outcome="failed"}': 1.0})
    assert broken(1, inside) == ["served"]
    other = observed()
    other.probes[RESTARTED] = [probe("another answer")]
    assert broken(1, other) == ["same_text"]
    worse = observed()
    worse.probes[LAST] = [probe(p1=Run(1, True))]
    assert broken(1, worse) == ["same_guesses"]
    gone = observed()
    gone.probes[LAST] = []
    assert broken(1, gone) == ["served", "same_guesses"]
    assert broken(1, observed(), FLAT._replace(share=0.05)) == ["flat"]
    never = observed()
    never.probes[RESTARTED] = []
    assert broken(1, never) == ["restarted"]


def broken(requests: int, seen: Observed, grown: Growth = FLAT) -> list[str]:
    return [name for name, kept in judge(requests, seen, grown).items() if not kept]


# -- all of it -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_short_load_on_the_tiny_model(tiny_zoo: TinyZoo, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "load.json"
    code = load.main([
        "--bundle", str(tiny_zoo.bundle), "--requests", "120", "--clients", "6", "--minutes", "0.1", "--queue", "2",
        "--kv-folder", str(tmp_path / "kv"), "--serve=--threads=1", "--log", str(tmp_path / "log"), "--out", str(out),
        "--no-progress",
    ])  # fmt: skip
    report = json.loads(out.read_text())
    kept = report["promises"]
    assert code == (0 if report["passed"] else 1)
    assert {name for name in kept if not kept[name]} <= {"flat"}, report  # too short a time to say
    assert sum(report["answers"].values()) == 120 and report["seconds"] >= 6 and report["failed"] == 0
    assert report["kv_disk_bytes_after_kill"] > 0
    assert report["metrics"]['specpilot_requests_total{outcome="client_closed"}'] <= report["answers"]["cancelled"]
    assert "120 answers" in capsys.readouterr().out
