"""Streams: the same for the same seed, turns in order, prompts evenly."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from envs.traces import Trace
from envs.workload import Stream, Workload, WorkloadConfig
from runtime.errors import UserError
from tests.replay.scripted import EOS, make_trace, make_traces


def make_split() -> list[Trace]:
    traces, seed = [], 0
    for domain in ("code", "math", "legal"):
        for kind, groups, turns in (("single", 6, 1), ("rag", 2, 3), ("chat", 2, 3)):
            for group in range(groups):
                for turn in range(turns):
                    seed += 1
                    traces.append(make_trace(seed, kind, f"{domain}-{kind}-{group}", turn, domain, "heldout", most=6))
    return traces


TRACES = make_traces(make_split())


def make_workload(**options: Any) -> Workload:
    return Workload(TRACES, "heldout", WorkloadConfig(**options))


def names(stream: Stream) -> list[str]:
    return [item.request.request_id for item in stream]


def test_a_stream_is_the_same_for_the_same_seed_and_index() -> None:
    workload = make_workload()
    assert workload.stream(3, 1) == make_workload().stream(3, 1)
    assert names(workload.stream(3, 1)) != names(workload.stream(3, 2))
    assert names(workload.stream(3, 1)) != names(workload.stream(4, 1))
    assert workload.covering(3, 5)[:2] == workload.covering(3, 2)


@pytest.mark.parametrize("seed", range(5))
def test_a_conversation_keeps_its_order(seed: int) -> None:
    turns: dict[str, list[int]] = {}
    for _, trace in make_workload(requests=200).stream(seed, 0):
        if trace.kind == "chat":
            turns.setdefault(trace.group, []).append(trace.turn)
    assert turns
    for order in turns.values():
        assert order == [index % 3 for index in range(len(order))]


def test_a_topic_lasts_as_long_as_asked_for() -> None:
    lengths, last = [], ""
    for _, trace in make_workload(requests=300, min_topic_requests=2, max_topic_requests=3).stream(0, 0):
        if trace.domain != last:
            lengths.append(0)
            last = trace.domain
        lengths[-1] += 1
    assert set(lengths[:-1]) == {2, 3}


def test_covering_streams_cover_the_split_evenly() -> None:
    workload = make_workload(requests=12)
    counts = Counter(name for stream in workload.covering(0, 40) for name in names(stream))
    assert set(counts) == {trace.prompt_id for trace in TRACES.traces}
    for domain in ("code", "math", "legal"):
        for kinds in (["single"], ["rag", "chat"]):
            seen = [counts[t.prompt_id] for t in TRACES.traces if t.domain == domain and t.kind in kinds]
            assert max(seen) - min(seen) <= 1, (domain, kinds, seen)


def test_a_request_asks_for_what_was_recorded() -> None:
    longest = max(len(trace.output_ids) for trace in TRACES.traces)
    for request, trace in make_workload(requests=60).stream(0, 0):
        assert request.prompt_ids == trace.prompt_ids and request.eos_ids == {EOS}
        assert request.max_new_tokens == (longest if trace.output_ids[-1] == EOS else len(trace.output_ids))
    assert all(item.request.max_new_tokens <= 2 for item in make_workload(max_new_tokens=2).stream(0, 0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"requests": 0}, "requests must be at least 1, got 0"),
        ({"min_topic_requests": 5}, "expected 1 <= min_topic_requests <= max_topic_requests, got 5 and 4"),
        ({"follow_up": 2}, "follow_up is a probability, got 2"),
        ({"max_new_tokens": -1}, "max_new_tokens must be at least 0, got -1"),
    ],
)
def test_a_senseless_workload_is_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_workload(**options)


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(UserError, match="hold no split 'train'"):
        Workload(TRACES, "train", WorkloadConfig())


def test_only_the_domains_and_kinds_that_are_asked_for() -> None:
    stream = make_workload(requests=60, domains=("code", "legal"), kinds=("single",)).stream(0, 0)
    assert {(item.trace.domain, item.trace.kind) for item in stream} == {("code", "single"), ("legal", "single")}
    with pytest.raises(UserError, match=r"workload.domains: no traces of art in split 'heldout', expected some"):
        make_workload(domains=("art",))


def test_some_answers_are_cut_short() -> None:
    stream = make_workload(requests=200, short_share=0.5, short_tokens=2).stream(0, 0)
    short = sum(item.request.max_new_tokens == 2 for item in stream)
    assert 70 < short < 130
    whole = make_workload(requests=200).stream(0, 0)
    assert all(item.request.max_new_tokens > 2 for item in whole if len(item.trace.output_ids) > 2)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [("short_share", 1.5, "short_share is a probability"), ("short_tokens", 0, "short_tokens must be at least 1")],
)
def test_wrong_short_answers_are_refused(option: str, value: float, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_workload(**{option: value})
