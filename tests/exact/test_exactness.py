"""Random decisions over tiny models: the text is plain decoding's, and the instrument sees when it is not."""

from __future__ import annotations

import dataclasses
import json
import random
import sys
from pathlib import Path

import pytest

from benchmarks.exactness import __main__ as command
from benchmarks.exactness.serving import Checker, ForwardTimer, Pressure, first_difference, plain_text, run
from benchmarks.exactness.table import BEGIN, END, write_between
from benchmarks.exactness.tally import Difference, Tally
from benchmarks.random_controller import RandomController
from envs.traces import TraceSet
from envs.workload import Item
from runtime.core import Phase, Request
from runtime.errors import UserError
from runtime.live import LiveModels, open_models
from tests.factories import make_world
from tests.tiny import PROMPT, target
from tests.tiny import plain_text as whole_forwards
from tests.tiny_zoo import TinyZoo

pytestmark = pytest.mark.exact
TOKENS = 200
TIGHT = Pressure(drafts=(1,), kv_tokens=(150, 250), wait=0.1)


@pytest.fixture
def models(tiny_zoo: TinyZoo) -> LiveModels:
    return open_models(tiny_zoo.zoo, threads=1)


@pytest.fixture
def sets(tiny_zoo: TinyZoo) -> list[tuple[str, TraceSet]]:
    return [(split, TraceSet.load(tiny_zoo.zoo.folder / f"traces/{split}.parquet")) for split in ("train", "heldout")]


def long_prompts(models: LiveModels, sets: list[tuple[str, TraceSet]]) -> list[tuple[str, TraceSet]]:
    """A few long prompts that begin alike, so that stored KV is good for the next one."""
    rng = random.Random(0)
    shared = tuple(rng.randrange(3, 61) for _ in range(70))
    traces = []
    for trace in sets[1][1].traces[:4]:
        prompt = (*shared, *trace.prompt_ids)
        output = plain_text(models.target, Request("r", prompt, 24, sets[1][1].eos_ids)).tokens
        traces.append(dataclasses.replace(trace, prompt_ids=prompt, output_ids=output))
    return [("heldout", dataclasses.replace(sets[1][1], traces=tuple(traces)))]


@pytest.mark.parametrize("seed", [0, 1])
def test_random_decisions_never_change_the_text(
    models: LiveModels, sets: list[tuple[str, TraceSet]], seed: int
) -> None:
    seen: list[int] = []
    tally = run(models, long_prompts(models, sets), TOKENS, seed, None, True, seen.append, TIGHT)
    assert tally.exact
    assert tally.differences == []
    assert tally.tokens == tally.committed == seen[-1] >= TOKENS
    assert min(tally.drafted, tally.loads, tally.evictions, tally.kv_hit_tokens, tally.waits, tally.controls) > 0
    assert tally.illegal == 0


def test_plain_text_is_that_of_whole_forwards() -> None:
    request = Request("r", PROMPT, 12)
    plain = plain_text(target(), request)
    assert plain.tokens == whole_forwards(12)
    assert len(plain.gaps) == 12
    assert min(plain.gaps) >= 0.0
    ended = plain_text(target(), dataclasses.replace(request, eos_ids=frozenset(plain.tokens[2:3])))
    assert ended.tokens == plain.tokens[: plain.tokens.index(plain.tokens[2]) + 1]


# -- the instrument notices --------------------------------------------------------------------------------------


@pytest.fixture
def item(models: LiveModels, sets: list[tuple[str, TraceSet]]) -> Item:
    trace = sets[0][1].traces[0]
    return Item(Request(trace.prompt_id, trace.prompt_ids, len(trace.output_ids)), trace)


def test_a_wrong_token_is_found(models: LiveModels, item: Item) -> None:
    tally = Tally()
    checker = Checker(models.target, True, tally)
    text = item.trace.output_ids
    wrong = (*text[:5], (text[5] + 1) % 61, *text[6:])
    checker.check(item, wrong)
    (found,) = tally.differences
    assert found[:5] == (item.request.request_id, "draft", 5, text[5], wrong[5])
    assert found.gap > 0.0
    assert (tally.tokens, tally.requests, tally.controls) == (5, 1, 1)
    assert not tally.exact


def test_a_short_text_is_found(models: LiveModels, item: Item) -> None:
    tally = Tally()
    Checker(models.target, False, tally).check(item, item.trace.output_ids[:4])
    assert [(d.kind, d.position, d.got) for d in tally.differences] == [("draft", 4, -1)]


def test_a_recorded_text_of_another_machine_is_no_mismatch(models: LiveModels, item: Item) -> None:
    tally = Tally()
    recorded = dataclasses.replace(item.trace, output_ids=(0, *item.trace.output_ids[1:]))
    Checker(models.target, True, tally).check(item._replace(trace=recorded), item.trace.output_ids)
    assert [(d.kind, d.position) for d in tally.differences] == [("trace", 0)]
    assert tally.exact


def test_first_difference() -> None:
    assert first_difference((1, 2), (1, 2)) is None
    assert first_difference((1, 2), (1, 3)) == 1
    assert first_difference((1, 2), (1, 2, 3)) == first_difference((1, 2, 3), (1, 2)) == 2


def test_forwards_are_timed() -> None:
    model = target()
    timer = ForwardTimer(model)
    plain_text(model, Request("r", PROMPT, 3))
    assert len(timer.seconds) == 3
    assert min(timer.seconds) > 0.0


def test_tallies_add_up() -> None:
    found = Difference("r", "draft", 1, 2, 3, 0.5, 4)
    total = Tally(requests=1, guard_s=0.5, serving_s=1.0, committed=500, guard_forwards=1)
    total.add(Tally(requests=2, guard_s=0.5, serving_s=3.0, committed=500, guard_forwards=1, differences=[found]))
    assert (total.requests, total.guard_share, total.guards_per_1000, total.exact) == (3, 0.25, 2.0, False)
    data = total.to_json()
    assert (data["mismatches"], data["differences"][0]["gap"]) == (1, 0.5)
    assert any("mismatches        1" in line for line in total.lines())


# -- the controller ----------------------------------------------------------------------------------------------


def test_the_controller_stays_legal_and_tries_everything() -> None:
    world = make_world(requests=8)
    seen: set[object] = set()
    for seed in range(3):
        session, controller = world.session(), RandomController(world.drafts, seed, wait=0.1)
        controller.begin_stream()
        session.start(item.request for item in world.streams(seed, 1)[0])
        finished = False
        while not finished:
            decision = controller.decide(session.observe())
            outcome = session.advance(decision)
            controller.learn(outcome)
            seen |= {(session.phase, decision.kv), decision.draft, f"gamma {decision.gamma}", f"wait {decision.wait}"}
            finished = outcome.stream_finished
        assert session.counters.illegal == 0
    assert {None, 0, 1, 2, "gamma 0", "gamma 1", "gamma 2", "gamma 4", "gamma 8", "wait True", "wait False"} <= seen
    assert (Phase.DECODE, True) in seen


def test_the_controller_repeats_itself_with_a_seed() -> None:
    world = make_world()
    session = world.session()
    session.start(item.request for item in world.streams(0, 1)[0])
    observation = session.observe()
    first, second = ([RandomController(world.drafts, 5).decide(observation) for _ in range(4)] for _ in range(2))
    assert first == second


# -- the command -------------------------------------------------------------------------------------------------


def call(monkeypatch: pytest.MonkeyPatch, tiny: TinyZoo, *arguments: str) -> int:
    fixed = ("exactness", "--zoo", str(tiny.zoo.folder), "--quiet", "--workers", "1")
    monkeypatch.setattr(sys, "argv", [*fixed, *arguments])
    return command.main()


def test_the_command_reports(monkeypatch: pytest.MonkeyPatch, tiny_zoo: TinyZoo, tmp_path: Path) -> None:
    out = tmp_path / "exactness.json"
    assert call(monkeypatch, tiny_zoo, "--tokens", "50", "--out", str(out)) == 0
    data = json.loads(out.read_text())
    assert data["schema"] == command.SCHEMA
    assert data["tokens"] >= 50
    assert (data["mismatches"], data["exact"]) == (0, True)
    assert {"device", "cores", "versions", "attention", "dtype", "torch_threads"} <= data["facts"].keys()
    assert not {"zoo", "target"} & data["settings"].keys()  # no paths


def test_the_command_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tiny_zoo: TinyZoo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, tiny_zoo, "--tokens", "9", "--target", str(tmp_path / "none")) == 2
    assert "exactness: " in capsys.readouterr().err


def test_the_table_is_written_into_a_document(
    monkeypatch: pytest.MonkeyPatch, tiny_zoo: TinyZoo, tmp_path: Path
) -> None:
    document = tmp_path / "doc.md"
    document.write_text(f"above\n{BEGIN}\nold\n{END}\nbelow\n")
    options = ("--table", "--dtypes", "float32", "--tokens", "20", "--document", str(document))
    assert call(monkeypatch, tiny_zoo, *options, "--out", str(tmp_path / "table.json")) == 0
    lines = document.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("above", "below")
    assert "old" not in lines
    assert [line.split("|")[2].strip() for line in lines if line.startswith("| float32")] == ["on", "off"]
    assert len(json.loads((tmp_path / "table.json").read_text())["cells"]) == 2


def test_a_document_without_markers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "doc.md"
    path.write_text("nothing here\n")
    with pytest.raises(UserError, match="expected the markers"):
        write_between(path, "table")
    assert path.read_text() == "nothing here\n"
