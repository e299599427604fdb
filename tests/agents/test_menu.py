"""RAKV-ASD's menu, from pieces whose times are made up so that the answers are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agents.menu import break_evens, choices, latencies, repeat_spread, round_seconds
from agents.pieces import Piece, read_pieces
from agents.serving import StreamResult
from runtime.core import GAMMAS, PLAIN, Decision
from runtime.errors import UserError
from tests.factories import make_world

ROUND_S = {0: 0.1, 1: 0.15, 2: 0.2, 4: 0.3, 8: 0.5}
TTFT_S = 1.0


def make_piece(name: str, gamma: int, rounds: tuple[int, ...], scale: float = 1.0, stream: int = 0) -> Piece:
    """A stream of requests with so many rounds of one length, and a plain round at the end of each."""
    guess = Decision(draft=0, gamma=gamma) if gamma else PLAIN
    decisions = tuple((PLAIN, *[guess] * count, PLAIN, PLAIN) for count in rounds)
    request_s = tuple(scale * (TTFT_S + count * ROUND_S[gamma] + ROUND_S[0]) for count in rounds)
    ttft_s = tuple(scale * TTFT_S for _ in rounds)
    tokens = tuple(count + 2 for count in rounds)
    result = StreamResult(
        name, 0, stream, len(rounds), sum(tokens), sum(request_s), ttft_s, request_s=request_s, request_tokens=tokens
    )
    return Piece(result, tuple((0,) * n for n in tokens), decisions)


def menu(fewer: int = 1) -> dict[str, list[Piece]]:
    """Plain needs 12 and 24 rounds; guessing needs that divided by ``fewer``."""
    pieces = {"plain_reuse": [make_piece("plain_reuse", 0, (12, 24))]}
    for gamma in GAMMAS:
        pieces[f"fixed:{gamma}"] = [make_piece(f"fixed:{gamma}", gamma, (12 // fewer, 24 // fewer))]
    return pieces


def with_costs(piece: Piece, name: str) -> Piece:
    """Every request copies its KV out at the end, for 70 ms; a draft absorbs the prompt first, for 300 ms."""
    paid_s = 0.07 + (0.0 if name == "plain_reuse" else 0.3)
    return replace(piece, result=replace(piece.result, request_s=tuple(s + paid_s for s in piece.result.request_s)))


def test_round_seconds_are_told_apart_and_a_disturbed_request_hardly_counts() -> None:
    streams = make_world(requests=2).streams(0, 6)
    pieces = {
        name: [make_piece(name, gamma, (5 + index, 20 - 2 * index), stream=index) for index in range(len(streams))]
        for name, gamma in (("plain_reuse", 0), *((f"fixed:{gamma}", gamma) for gamma in GAMMAS))
    }
    pieces = {name: [with_costs(piece, name) for piece in served] for name, served in pieces.items()}
    assert round_seconds(pieces, streams) == pytest.approx(ROUND_S, abs=1e-3)
    first = pieces["plain_reuse"][0]
    slow = replace(first.result, request_s=(50.0, *first.result.request_s[1:]))
    pieces["plain_reuse"][0] = replace(first, result=slow)
    assert round_seconds(pieces, streams) == pytest.approx(ROUND_S, abs=1e-3)


def test_break_even_is_where_tokens_pay_for_the_round() -> None:
    measured_s = {0: 0.1, 1: 0.15, 2: 0.1 * (1 + 0.5 + 0.25), 4: 0.1, 8: 1.0}
    evens = break_evens({0: 0.2, 1: 0.24, 2: 0.2, 4: 0.2, 8: 0.2}, measured_s)
    assert [even.gamma for even in evens] == list(GAMMAS)
    assert [evens[0].measured, evens[1].measured, evens[2].measured] == pytest.approx([0.5, 0.5, 0.0])
    assert evens[3].measured > 1.0  # ten plain steps for nine tokens: never
    assert evens[0].predicted == pytest.approx(0.2)


@pytest.mark.parametrize(("fewer", "speculates", "right"), [(1, False, 2), (1, True, 0), (4, True, 2), (4, False, 0)])
def test_a_choice_is_judged_by_both_sides(fewer: int, speculates: bool, right: int) -> None:
    pieces = menu(fewer)
    pieces["policy"] = [make_piece("policy", 2 if speculates else 0, (12, 24))]
    judged = choices("policy", pieces, {"policy": 2.0 * pieces["policy"][0].result.seconds}, spread=0.01)
    assert (judged.clear, judged.right) == (2, right)
    assert judged.predicted_error == pytest.approx(1.0)


def test_ties_are_not_judged() -> None:
    pieces = menu()
    pieces["policy"] = [make_piece("policy", 0, (12, 24))]
    assert choices("policy", pieces, {"policy": 1.0}, spread=10.0).clear == 0


def test_spread_is_that_of_equal_work() -> None:
    same = {"a": [make_piece("a", 0, (12,) * 8)], "b": [make_piece("b", 0, (12,) * 8)]}
    assert repeat_spread(same, ["a", "b"]) == 0.0
    assert repeat_spread({**same, "b": [make_piece("b", 2, (12,) * 8)]}, ["a", "b"]) == 0.0  # did something else
    slower = Piece(
        StreamResult("b", 0, 0, 4, 4, 4.0, request_s=(1.0, 1.0, 2.0, 2.0)),
        same["b"][0].texts,
        same["b"][0].decisions[:4],
    )
    plain = Piece(
        StreamResult("a", 0, 0, 4, 4, 4.0, request_s=(1.0, 1.0, 1.0, 1.0)),
        same["a"][0].texts,
        same["a"][0].decisions[:4],
    )
    assert repeat_spread({"a": [plain], "b": [slower]}, ["a", "b"]) == pytest.approx(0.25)


def test_latency_by_prompt_length() -> None:
    world = make_world(requests=2)
    streams = world.streams(0, 1)
    (wait,) = latencies({"plain_reuse": [make_piece("plain_reuse", 0, (12, 24))]}, streams)
    assert (wait.requests, wait.long_s) == (2, 0.0)  # the made-up prompts are short
    assert wait.short_s == pytest.approx(TTFT_S + 18 * 0.1 + 0.1)


def test_only_streams_that_all_served_are_read(tmp_path: Path) -> None:
    for stream in (0, 1):
        make_piece("plain", 0, (3,), stream=stream).save(tmp_path / f"{stream:03d}-plain.json", "k")
    make_piece("policy", 2, (3,), stream=1).save(tmp_path / "001-policy.json", "k")
    found = read_pieces(tmp_path)
    assert {name: [piece.result.stream for piece in served] for name, served in found.items()} == {
        "plain": [1],
        "policy": [1],
    }
    assert found["policy"][0] == make_piece("policy", 2, (3,), stream=1)
    with pytest.raises(UserError, match="found no stream that all controllers served"):
        read_pieces(tmp_path / "nothing")
