"""The comparison of engines: who answers when, what is kept, and what the table says."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.engines.__main__ import SCHEMA, _keep, main
from benchmarks.engines.base import PLAIN
from benchmarks.engines.compare import Row, earlier, measure
from benchmarks.engines.prompts import Prompt, _deck
from benchmarks.engines.report import summary, table
from benchmarks.flame import Node, draw, sampled, tree
from benchmarks.overhead import Spent
from envs.traces import Trace
from runtime.core import Decision, Outcome, Phase
from runtime.errors import UserError

PROMPTS = [Prompt(f"p{i}", "code", "single", 0, (1, 2, i)) for i in range(4)]


class Fake:
    """Answers with its own name's length, and notes when it was asked."""

    family = "ours"

    def __init__(self, name: str, order: list[str]) -> None:
        self.name, self._order = name, order

    def answer(self, prompt: tuple[int, ...], max_tokens: int) -> tuple[int, ...]:
        self._order.append(self.name)
        return prompt[:max_tokens]

    def settle(self) -> None:
        self._order.append("settled")


def test_the_order_rotates_and_rows_are_kept_after_each_prompt() -> None:
    order: list[str] = []
    rows: list[Row] = []
    kept: list[int] = []
    fakes = [Fake(name, order) for name in "abc"]
    assert measure(fakes, PROMPTS, 8, rows, lambda now: kept.append(len(now)), progress=False)
    asked = [name for name in order if name != "settled"]
    assert asked == list("abc") + list("bca") + list("cab") + list("abc")
    assert kept == [3, 6, 9, 12]
    assert order.count("settled") == 12


def test_it_goes_on_where_it_stopped() -> None:
    order: list[str] = []
    fakes = [Fake(name, order) for name in "ab"]
    rows = [Row("p0", name, "ours", 1.0, [1]) for name in "ab"]
    assert not measure(fakes, PROMPTS, 8, rows, lambda now: None, until_s=time.perf_counter() - 1.0, progress=False)
    assert order == []
    assert measure(fakes, PROMPTS, 8, rows, lambda now: None, progress=False)
    assert [row.prompt_id for row in rows] == ["p0"] * 2 + ["p1"] * 2 + ["p2"] * 2 + ["p3"] * 2


def rows_of(seconds: dict[str, float]) -> list[Row]:
    families = {PLAIN: "plain", "a": "assisted", "l": "lookup", "o": "ours"}
    return [
        Row(f"p{i}", name, families[name], each * (1 + i), [1, 2, 3])
        for i in range(3)
        for name, each in seconds.items()
    ]


def test_ratios_are_to_plain_and_to_the_best_speculation() -> None:
    found = {row["contender"]: row for row in summary(rows_of({PLAIN: 4.0, "a": 2.0, "l": 3.0, "o": 1.0}))}
    assert found["o"]["ratio_to_plain"]["value"] == pytest.approx(4.0)
    assert found["o"]["ratio_to_best"]["value"] == pytest.approx(2.0)
    assert [name for name, row in found.items() if row["best_speculation_of_transformers"]] == ["a"]
    assert found["l"]["tokens_per_s"] == pytest.approx(9 / 18)
    assert found["l"]["median_ms_per_token"] == pytest.approx(2000.0)
    lines = table(list(found.values())).splitlines()
    assert len(lines) == 2 + 4
    assert lines[3].startswith("| a (its best) |")


def test_rows_under_other_facts_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "engines.json"
    facts = {"threads": 2, "policy": "x"}
    assert earlier(out, facts, SCHEMA) == []
    rows = rows_of({PLAIN: 1.0, "a": 1.0})
    _keep(out, facts, rows)
    assert earlier(out, facts, SCHEMA) == rows
    with pytest.raises(UserError, match="other facts \\(threads\\)"):
        earlier(out, {**facts, "threads": 1}, SCHEMA)


def test_a_bundle_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--bundle", str(tmp_path / "none"), "--no-progress"]) == 2
    assert "no bundle at" in capsys.readouterr().err


def trace(group: str, kind: str, turn: int) -> Trace:
    return Trace(f"{group}-{turn}", "code", "heldout", kind, group, turn, (1, turn), (2,), ())


def test_no_two_prompts_are_of_one_group() -> None:
    traces = [trace(f"s{i}", "single", 0) for i in range(4)]
    traces += [trace(f"r{i}", "rag", turn) for i in range(2) for turn in range(3)]
    traces += [trace(f"c{i}", "chat", turn) for i in range(2) for turn in range(3)]
    deck = _deck(traces, "code", 0)[::-1]
    groups = Counter(prompt.prompt_id.split("-")[0] for prompt in deck)
    assert len(deck) == 8
    assert set(groups.values()) == {1}
    assert [prompt.kind for prompt in deck[:4]] == ["single", "rag", "single", "chat"]
    assert all(prompt.turn == 2 for prompt in deck if prompt.kind == "chat")


def test_stacks_are_merged_and_drawn(tmp_path: Path) -> None:
    top = tree(Counter({("x", "root", "a"): 30, ("root", "a", "b"): 60, ("x",): 99, ("root", "<c>"): 10}), "root")
    assert top.total == 100
    assert top.below["root"].below["a"] == Node(90, {"b": Node(60)})
    file = tmp_path / "picture.svg"
    draw(top, file, "title & more")
    text = file.read_text(encoding="utf-8")
    assert "title &amp; more" in text
    assert "&lt;c&gt;, 10.0%" in text
    assert text.count("<g>") == 4


def test_the_sampler_sees_where_time_goes() -> None:
    def slow() -> None:
        until_s = time.perf_counter() + 0.05
        while time.perf_counter() < until_s:
            sum(range(100))

    with sampled() as stacks:
        slow()
    top = tree(stacks, f"{Path(__file__).stem}:test_the_sampler_sees_where_time_goes.<locals>.slow")
    assert top.total > 0.02e9


def test_overhead_is_what_is_no_forward() -> None:
    spent = Spent()
    outcome = Outcome(Phase.DECODE, Decision(), 0.0, 0.0, tokens=(1, 2))
    for _ in range(3):
        spent.note(decide_ns=10, step_ns=90, forward_ns=80, outcome=outcome)
    row = spent.row("x")
    assert (row["rounds"], row["tokens"]) == (3, 6)
    assert row["outside_round_ns"] == 20
    assert row["outside_token_ns"] == 10
    assert row["share"] == pytest.approx(0.2)
