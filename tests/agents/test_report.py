from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from agents.report.console import print_report
from agents.report.files import to_json, write_report
from agents.report.markdown import to_markdown
from agents.report.revision import UNKNOWN, git_revision
from agents.report.rows import Report, build_rows
from agents.serving import StreamResult

SCHEMA_KEYS = ["suite", "device", "simulated", "git", "versions", "rows"]
ROW_KEYS = [
    "controller", "seed", "requests", "tokens", "seconds", "tokens_per_s", "ttft_s", "speedup_vs_plain", "ci95",
    "oracle_ratio", "stall_s", "loads", "wasted_loads", "mean_accepted", "acceptance", "kv_hit_tokens",
    "peak_budget_bytes", "decide_us_p50", "decide_us_p99", "identical",
]  # fmt: skip


def result(controller: str, stream: int, seconds: float) -> StreamResult:
    return StreamResult(
        controller, 0, stream, requests=2, tokens=100, seconds=seconds, ttft_s=(0.5, 1.5), stall_s=0.25, loads=2,
        wasted_loads=1, speculative_rounds=10, drafted=40, accepted=30, kv_hit_tokens=7,
        peak_budget_bytes=1000 + stream, decide_us=(10.0, 20.0, 30.0),
    )  # fmt: skip


def results() -> list[StreamResult]:
    plain = [replace(result("plain", s, 10.0), speculative_rounds=0, drafted=0, accepted=0) for s in range(2)]
    policy = [result("policy", s, 5.0 - s) for s in range(2)]
    return [*plain, *policy, *(result("oracle_clairvoyant", s, 4.0) for s in range(2))]


def report() -> Report:
    return Report("quick", "made up <device>", True, "abc", {"numpy": "2"}, build_rows(results(), 200), True, 2, 200)


def test_rows_are_sums_over_streams() -> None:
    plain, policy, oracle = build_rows(results(), 200)
    assert (policy.requests, policy.tokens, policy.seconds, policy.loads, policy.wasted_loads) == (4, 200, 9.0, 4, 2)
    assert policy.tokens_per_s == pytest.approx(200 / 9)
    assert policy.speedup_vs_plain == pytest.approx(20 / 9)
    assert policy.ci95[0] == pytest.approx(2.0) and policy.ci95[1] == pytest.approx(2.5)
    assert policy.oracle_ratio == pytest.approx(8 / 9)
    assert (policy.mean_accepted, policy.acceptance) == (3.0, 0.75)
    assert (policy.ttft_s, policy.stall_s, policy.peak_budget_bytes) == (1.0, 0.5, 1001)
    assert (policy.decide_us_p50, policy.kv_hit_tokens, policy.identical) == (20.0, 14, True)
    assert policy.decide_us_p99 == pytest.approx(30.0)
    assert (plain.speedup_vs_plain, plain.ci95, plain.mean_accepted, plain.acceptance) == (1.0, (1.0, 1.0), 0.0, 0.0)
    assert plain.policy_ratio is not None and plain.policy_ratio.value == pytest.approx(20 / 9)
    assert oracle.bound and not plain.bound


def test_one_differing_text_spoils_identical() -> None:
    rows = build_rows([*results()[:-1], replace(results()[-1], identical=False)], 50)
    assert [row.identical for row in rows] == [True, True, False]


def test_without_policy_and_oracle() -> None:
    (plain,) = build_rows(results()[:2], 50)
    assert plain.policy_ratio is None and plain.oracle_ratio is None


def test_rows_need_plain_on_the_same_streams() -> None:
    with pytest.raises(ValueError, match="expected results of 'plain' with seed 0 to compare 'policy' with"):
        build_rows(results()[2:])
    with pytest.raises(ValueError, match="expected 'policy' to have served the streams of 'plain'"):
        build_rows(results()[:3])


def test_json_has_the_published_schema() -> None:
    data = to_json(report())
    assert data["schema"] == 1
    assert [key for key in data if key in SCHEMA_KEYS] == SCHEMA_KEYS
    for row in data["rows"]:
        assert list(row)[: len(ROW_KEYS)] == ROW_KEYS
    policy = data["rows"][1]
    types = {key: type(policy[key]) for key in ROW_KEYS}
    floats = dict.fromkeys(ROW_KEYS, float)
    integers = ("seed", "requests", "tokens", "loads", "wasted_loads", "kv_hit_tokens", "peak_budget_bytes")
    assert types == {**floats, **dict.fromkeys(integers, int), "controller": str, "identical": bool, "ci95": list}
    assert policy["policy_ratio"] == {"value": 1.0, "ci95": [1.0, 1.0]}


def test_all_files_are_written(tmp_path: Path) -> None:
    path = write_report(report(), tmp_path / "evaluation")
    files = sorted(file.name for file in path.parent.iterdir())
    assert files == ["report.html", "report.json", "report.md", "throughput.png"]
    assert json.loads(path.read_text()) == json.loads(json.dumps(to_json(report())))
    assert (path.parent / "throughput.png").read_bytes().startswith(b"\x89PNG")
    page = (path.parent / "report.html").read_text()
    assert page.count("<svg") == 2 and "made up &lt;device&gt;" in page


def test_the_page_is_the_same_every_time(tmp_path: Path) -> None:
    pages = [(write_report(report(), tmp_path / name).parent / "report.html").read_text() for name in ("a", "b")]
    assert pages[0] == pages[1]


def test_markdown_is_sorted_and_says_who_won() -> None:
    text = to_markdown(report())
    assert text.index("oracle_clairvoyant (bound)") < text.index("**policy**") < text.index("| plain |")
    assert "2.22 times as fast as plain" in text
    assert "the best other, plain" in text


def test_console_shows_every_row() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    print_report(report(), console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for name in ("plain", "policy", "oracle_clairvoyant"):
        assert name in shown
    assert "…" not in shown  # nothing cut off


def test_a_report_of_one_controller_can_be_written(tmp_path: Path) -> None:
    only = replace(report(), rows=build_rows(results()[:2], 50))
    page = (write_report(only, tmp_path).parent / "report.html").read_text()
    assert page.count("<svg") == 1


def test_revision_without_git(tmp_path: Path) -> None:
    assert git_revision(tmp_path) == UNKNOWN
    assert git_revision() != ""
