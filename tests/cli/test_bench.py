"""``specpilot bench``: who runs when, what is told, and what happens if a text is not the target's own."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.bundle import Bundle
from runtime.cli import main
from runtime.cli.benching import runs
from runtime.cli.benching.prompts import PROMPTS, read_prompts
from runtime.cli.benching.runs import Lane, Run, timed
from runtime.cli.benching.summary import differences, summarise
from runtime.cli.common import controller_named
from runtime.control.base import Controller
from runtime.control.guarded import GuardedController
from runtime.core import Counters, Request
from runtime.profile import CostModel
from runtime.session import DecodeSession
from tests.tiny_zoo import TinyZoo

LINES = ("w5 w17 w3 w44 w9", "w6 w18 w4", "", "w30 w31 w32 w33 w34 w35")
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Three prompts and a blank line."""
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


def bench(tiny: TinyZoo, prompts: Path, *more: str) -> int:
    fixed = ["--prompts", str(prompts), "--threads", "1", "--max-tokens", "10"]
    return main(["bench", "--bundle", str(tiny.bundle), *fixed, *more])


@pytest.mark.exact
def test_every_controller_answers_every_prompt_in_turn(
    tiny_zoo: TinyZoo, prompts: Path, capsys: Capture, tmp_path: Path
) -> None:
    out = tmp_path / "deep" / "bench.json"
    names = "policy,static:one:4,policy"
    assert bench(tiny_zoo, prompts, "--controllers", names, "--repeat", "2", "--json", "--out", str(out)) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert json.loads(out.read_text()) == result
    assert result["schema"] == 1 and result["identical"] is True
    order = [row["controller"] for row in result["rows"]]
    a, b, c = "policy", "static:one:4", "plain"
    assert order == [a, b, c, b, c, a, c, a, b, b, c, a, c, a, b, a, b, c]
    assert Counter((row["prompt"], row["pass"]) for row in result["rows"]) == {
        (prompt, turn): 3 for prompt in range(3) for turn in range(2)
    }
    assert [each["controller"] for each in result["controllers"]] == [a, b, c]
    plain = result["controllers"][2]
    assert plain["ratio_to_plain"] == 1.0 and plain["ci95"] == [1.0, 1.0]
    assert plain["acceptance"] is None and plain["loads"] == 0
    assert all(each["differing"] == 0 and each["tokens"] == plain["tokens"] for each in result["controllers"])
    assert [prompt["text"] for prompt in result["prompts"]] == [line for line in LINES if line]
    assert result["machine"]["threads"] == 1 and result["versions"]["specpilot"]
    assert result["bundle"]["profile"] == {"device": "made up", "simulated": True, "threads": 1}
    assert result["peak_rss_bytes"] > 1_000_000


def test_the_table_is_for_people(tiny_zoo: TinyZoo, prompts: Path, capsys: Capture) -> None:
    assert bench(tiny_zoo, prompts, "--controllers", "static:lookup:4", "--repeat", "1") == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert "profile of: made up, simulated" in lines[0] and "6 answers, up to 10 tokens" in lines[2]
    head, lookup, plain = lines[5:]
    assert head.split()[:2] == ["controller", "tokens/s"]
    assert lookup.startswith("static:lookup:4") and plain.split()[2:4] == ["1.000", "[1.000,"]
    assert shown.err == ""  # no bar: stderr is no terminal


def test_a_text_that_differs_is_a_failure(
    tiny_zoo: TinyZoo, prompts: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(lane: Lane, request: Request, prompt: int, turn: int) -> Run:
        run = timed(lane, request, prompt, turn)
        if lane.name == "plain" or prompt != 1:
            return run
        return dataclasses.replace(run, tokens=(*run.tokens[:4], run.tokens[4] + 1, *run.tokens[5:]))

    monkeypatch.setattr(runs, "timed", wrong)
    assert bench(tiny_zoo, prompts, "--controllers", "static:lookup:4", "--repeat", "2") == 1
    err = capsys.readouterr().err.splitlines()
    assert err[0] == "specpilot bench: 2 of 12 texts differ from plain decoding's:"
    assert err[1].strip() == "'static:lookup:4', prompt 2 ('w6 w18 w4'), pass 1: another token at position 5"
    assert len(err) == 3


def test_every_pass_begins_afresh(tiny_zoo: TinyZoo, prompts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Controller] = []

    def noted(name: str, bundle: Bundle, costs: CostModel, unguarded: bool = False) -> Controller:
        made.append(controller_named(name, bundle, costs, unguarded))
        return made[-1]

    settled: list[DecodeSession] = []
    monkeypatch.setattr(runs, "controller_named", noted)
    monkeypatch.setattr(runs, "_settle", settled.append)
    assert bench(tiny_zoo, prompts, "--controllers", "policy", "--repeat", "3", "--unguarded") == 0
    assert [each.name for each in made] == ["plain", *["policy", "plain"] * 3]  # the first one warms up
    assert len(set(map(id, made))) == len(made)
    assert not isinstance(made[1], GuardedController)  # --unguarded
    assert len(settled) == 3 * 3 * 2 and len(set(map(id, settled))) == 3 * 2  # after every answer; sessions of a pass


def test_loads_under_way_are_waited_for_outside_of_the_timing() -> None:
    loading = {0: False, 1: True}
    waited: list[int] = []
    polls: list[bool] = []

    def wait(draft: int) -> None:
        waited.append(draft)
        loading[draft] = False

    memory = SimpleNamespace(
        loading=loading.__getitem__, loader=SimpleNamespace(wait=wait), poll=lambda: polls.append(True)
    )
    session: Any = SimpleNamespace(drafts=("one", "two"), memory=memory)
    runs._settle(session)
    assert (waited, polls) == ([1], [True])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--controllers", ", ,"], "--controllers ', ,' names nobody: expected some of policy"),
        (["--controllers", "plain,oracle"], "unknown controller 'oracle'"),
        (["--max-tokens", "0"], "--max-tokens must be at least 1, got 0"),
        (["--repeat", "0"], "--repeat must be at least 1, got 0"),
        (["--max-tokens", "5000"], "prompt 1 has 6 tokens, with --max-tokens 5000 more than the 257"),
        (["--out", "."], "--out . cannot be written (it is a folder): expected a name for a new file"),
        (["--prompts", "/nope.txt"], "--prompts /nope.txt cannot be read"),
        (["--dtype", "float8"], "unknown dtype 'float8'"),
    ],
)
def test_a_bad_option_is_refused(
    tiny_zoo: TinyZoo, prompts: Path, capsys: Capture, options: list[str], message: str
) -> None:
    assert bench(tiny_zoo, prompts, *options) == 2
    err = capsys.readouterr().err
    assert err.startswith("specpilot bench: ") and message in err


def test_prompts_are_lines(tmp_path: Path, tiny_zoo: TinyZoo, capsys: Capture) -> None:
    assert read_prompts(None) is PROMPTS
    assert len({prompt.text for prompt in PROMPTS}) == len(PROMPTS) >= 10
    assert len({prompt.domain for prompt in PROMPTS}) >= 6
    empty = tmp_path / "empty.txt"
    empty.write_text(" \n\n")
    assert bench(tiny_zoo, empty) == 2
    assert "holds no prompt: expected one a line" in capsys.readouterr().err
    empty.write_bytes(b"\xff\xfe")
    assert bench(tiny_zoo, empty) == 2
    assert "cannot be read" in capsys.readouterr().err


# -- sums --------------------------------------------------------------------------------------------------------


def made(controller: str, prompt: int, seconds: float, tokens: tuple[int, ...] = (1, 2, 3), turn: int = 0) -> Run:
    counters = Counters(rounds=2, drafted=4, accepted=1, corrections=1, loads=1, stall_s=0.5)
    counters.peak_budget_bytes = 100 * (prompt + 1)
    return Run(controller, prompt, turn, tokens, seconds, seconds / 10, counters)


def test_a_summary_adds_up() -> None:
    seconds = {"plain": (1.0, 2.0, 6.0), "fast": (0.5, 1.0, 3.0)}
    all_runs = [made(name, prompt, each) for name, row in seconds.items() for prompt, each in enumerate(row)]
    fast, plain = summarise(all_runs, ("fast", "plain"))
    assert fast.ratio_to_plain == pytest.approx(2.0) and fast.ci95 == pytest.approx((2.0, 2.0))
    assert (plain.tokens_per_s, fast.tokens_per_s) == pytest.approx((1.5, 3.0))
    assert (fast.ttft_s, fast.acceptance, fast.tokens_per_round) == pytest.approx((0.1, 0.25, 1.0))
    assert (fast.loads, fast.stall_s, fast.peak_budget_bytes, fast.tokens) == (3, 1.5, 300, 9)


def test_passes_are_taken_together() -> None:
    seconds = {"plain": (1.0, 3.0), "fast": (0.5, 0.3)}
    all_runs = [made(name, 0, each, turn=turn) for name, row in seconds.items() for turn, each in enumerate(row)]
    fast, _ = summarise(all_runs, ("fast", "plain"))
    assert fast.ratio_to_plain == pytest.approx(5.0) and fast.ci95 is None
    assert fast.tokens == 6 and fast.seconds == pytest.approx(0.8)


def test_differences_are_found_at_their_first_token() -> None:
    all_runs = [
        made("plain", 0, 1.0),
        made("a", 0, 1.0, (1, 2, 4)),
        made("a", 0, 1.0, (1, 2), turn=1),
        made("plain", 0, 1.0, (7, 2, 3), turn=1),
        made("b", 0, 1.0),
    ]
    assert [(each.run.controller, each.position) for each in differences(all_runs)] == [
        ("a", 2),
        ("a", 2),
        ("plain", 0),
    ]
    assert [each.differing for each in summarise(all_runs, ("a", "b", "plain"))] == [2, 0, 1]
