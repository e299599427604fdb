"""The page: what a stranger reads first, that it needs nothing beside it, and pictures of others on it."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest
import yaml
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from agents.report.charts import policy_ratios, shown_rows, throughput
from agents.report.descriptions import describe
from agents.report.drawing import ACCENT, BOUND
from agents.report.files import write_report
from agents.report.opening import facts, result, title
from agents.report.page import to_html
from agents.report.picture import Picture
from agents.report.rows import POLICY, Report, build_rows
from agents.serving import StreamResult

ROOT = Path(__file__).resolve().parents[2]
BANDITS = ("bandit_epsilon", "bandit_ucb", "bandit_exp3", "bandit_thompson")
NAMES = (
    "plain", "plain_reuse", "static:code:2", "best_static", "hf_dynamic", "adaedl", *BANDITS,
    *(f"{name}_resident" for name in BANDITS), "hedge", "memspec", "memspec_stop", "memspec_no_memory",
    "memspec_no_prediction", "rakv_asd", "stacked", "heuristic", "policy", "oracle_perfect", "oracle_clairvoyant",
    "oracle_budget",
)  # fmt: skip


def report(seconds: dict[str, float], streams: int = 4) -> Report:
    """Controllers that take so long for each stream, a little more or less from stream to stream."""
    results = [
        StreamResult(name, 0, stream, requests=5, tokens=100, seconds=took + 0.1 * (stream % 2))
        for name, took in seconds.items()
        for stream in range(streams)
    ]
    return Report("quick", "a <phone>", False, "abc", {}, build_rows(results, 200), True, streams, 200)


def everybody() -> Report:
    return report({name: 10.0 - 0.2 * place for place, name in enumerate((*NAMES, "static:math:4"))})


def picture(name: str = "A stream, step by step") -> Picture:
    figure = Figure()
    figure.add_subplot().plot([0, 1], [0, 1])
    return Picture(name, "What <it> shows.", figure)


@pytest.mark.parametrize("name", NAMES)
def test_every_controller_is_described(name: str) -> None:
    assert re.fullmatch(r"[A-Z].+\.", describe(name))


def test_the_project_names_no_controller_without_a_description() -> None:
    suites = [yaml.safe_load(path.read_text()) for path in (ROOT / "conf/suite").glob("*.yaml")]
    names = {name for suite in suites for name in suite.get("controllers") or ()}
    family = re.compile(r"(plain|best_static|hf_|adaedl|bandit_|hedge|memspec|rakv|stacked|heuristic|policy$)\w*")
    for node in ast.walk(ast.parse((ROOT / "agents/baselines.py").read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and family.fullmatch(node.value):
            names.add(node.value)
    assert {"plain", "memspec", "rakv_asd", "policy"} <= names
    assert [name for name in sorted(names) if not describe(name)] == []


def test_strangers_have_no_description() -> None:
    assert describe("mine") == "" and describe("mine_resident") == "" and describe("staticky") == ""


def test_the_page_needs_nothing_beside_it() -> None:
    page = to_html(everybody(), [picture()])
    outside = re.findall(r"""(?:src|href|action|data)\s*=\s*["'](?!#)[^"']*""", page)
    assert outside == []
    assert re.search(r"<script|<link|@import|url\((?!#)", page) is None


def test_the_page_opens_with_what_was_compared_and_who_won() -> None:
    page = to_html(report({"plain": 10.0, "memspec": 6.0, "policy": 5.0, "oracle_clairvoyant": 4.0}))
    assert "<h1>The learned policy writes 1.99 times as fast as the large model alone</h1>" in page
    assert "1.20 times as fast as the best other controller, memspec" in page and "a clear gain." in page
    for text in ("a &lt;phone&gt;", "3 controllers and 1 computed bounds", "4 streams of requests: 20 requests"):
        assert text in page
    assert page.index("<h1>") < page.index(escape(describe("memspec"))) < page.index("<svg") < page.index("All numbers")


@pytest.mark.parametrize(
    ("other_s", "verdict"), [(6.0, "a clear gain"), (4.0, "a clear loss"), (5.0, "too close to call")]
)
def test_the_verdict_goes_by_the_interval(other_s: float, verdict: str) -> None:
    assert result(report({"plain": 10.0, "policy": 5.0, "memspec": other_s})).endswith(f": {verdict}.")


def test_a_gain_on_half_of_the_streams_is_too_close_to_call() -> None:
    took = {"plain": (10.0,) * 4, "policy": (5.0,) * 4, "memspec": (4.0, 4.0, 7.0, 7.0)}
    results = [
        StreamResult(name, 0, stream, requests=5, tokens=100, seconds=seconds)
        for name, each in took.items()
        for stream, seconds in enumerate(each)
    ]
    said = result(replace(everybody(), rows=build_rows(results, 200)))
    assert "1.10 times as fast as the best other controller, memspec" in said and said.endswith(": too close to call.")


def test_without_a_policy_the_fastest_controller_is_named() -> None:
    only = report({"plain": 10.0, "memspec": 5.0, "oracle_clairvoyant": 4.0})
    assert title(only).startswith("memspec writes 1.99 times")
    assert result(only).startswith("The fastest controller, memspec, writes")
    assert title(report({"plain": 10.0, "memspec": 12.0})) == "Plain decoding is the fastest controller here"


@pytest.mark.parametrize(
    ("replay", "simulated", "text"),
    [(True, False, "Simulated.*as measured on"), (True, True, "Simulated.*not measured"), (False, False, "^Measured")],
)
def test_the_page_says_where_times_come_from(replay: bool, simulated: bool, text: str) -> None:
    said = {fact.name: fact.text for fact in facts(replace(everybody(), replay=replay, simulated=simulated))}
    assert re.search(text, said["Times"])


def test_differing_texts_are_named() -> None:
    good = report({"plain": 10.0, "memspec": 5.0})
    bad = replace(good, rows=tuple(replace(row, identical=row.controller == "plain") for row in good.rows))
    assert facts(good)[-1].text == "The same from every controller"
    assert facts(bad)[-1].text.endswith("with memspec")


def test_charts_show_the_best_static_only_and_bounds_last() -> None:
    rows = shown_rows(everybody())
    names = [row.controller for row in rows]
    assert "best_static" in names and not [name for name in names if name.startswith("static:")]
    assert [row.bound for row in rows] == [False] * (len(rows) - 3) + [True] * 3
    unnamed = report({"plain": 10.0, "static:code:2": 7.0, "static:math:2": 8.0})
    assert [row.controller for row in shown_rows(unnamed)] == ["static:code:2", "plain"]


def test_bars_are_as_long_as_rows_are_fast() -> None:
    shown = everybody()
    (axes,) = throughput(shown).axes
    rows = shown_rows(shown)
    bars = list(axes.patches)
    assert [bar.get_width() for bar in bars] == pytest.approx([row.tokens_per_s for row in rows])  # type: ignore[attr-defined]
    heights = [bar.get_y() for bar in bars]  # type: ignore[attr-defined]
    assert heights == sorted(heights, reverse=True)
    colours = {row.controller: to_hex(bar.get_facecolor()) for row, bar in zip(rows, bars, strict=True)}
    assert colours[POLICY] == ACCENT and colours["oracle_budget"] == BOUND
    assert policy_ratios(shown) is not None


def test_pictures_are_on_the_page_and_beside_it(tmp_path: Path) -> None:
    write_report(everybody(), tmp_path, [picture(), picture("Where the time goes: 2 causes")])
    assert {path.stem for path in tmp_path.glob("*.png")} == {
        "throughput", "a-stream-step-by-step", "where-the-time-goes-2-causes",
    }  # fmt: skip
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 4 and page.count('role="img" aria-label=') == 4
    assert "What &lt;it&gt; shows." in page
    assert page.index("The policy against each") < page.index("A stream, step by step") < page.index("All numbers")


@pytest.mark.parametrize("titles", [("Twice", "twice!"), ("Throughput",)])
def test_no_picture_takes_the_file_of_another(tmp_path: Path, titles: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected a title of its own, another is '(twice|throughput)' too"):
        write_report(everybody(), tmp_path, [picture(name) for name in titles])
    assert list(tmp_path.iterdir()) == []


def test_a_title_without_letters_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a letter or digit, got '—'"):
        picture("—").slug  # noqa: B018
