"""Options of ``specpilot generate``: where the text ends, how tokens are chosen, what is printed, and Ctrl-C."""

from __future__ import annotations

import argparse
import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from runtime.bundle import read_bundle
from runtime.cli import main
from runtime.cli.common import open_controller
from runtime.control.guarded import GuardedController
from runtime.profile import CostModel
from tests.cli.interrupting import interrupt_at
from tests.tiny_zoo import TinyZoo

PROMPT = "w5 w17 w3 w44 w9 w17 w3 w44"
Capture = pytest.CaptureFixture[str]


def generate(bundle: Path, *more: str) -> int:
    return main(
        ["generate", "--bundle", str(bundle), "--prompt", PROMPT, "--threads", "1", "--max-tokens", "24", *more]
    )


def answered(capsys: Capture, bundle: Path, *more: str, code: int = 0) -> dict[str, Any]:
    assert generate(bundle, "--json", *more) == code
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


@pytest.mark.parametrize("controller", ["plain", "static:one:4", "static:lookup:4"])
def test_a_stop_string_ends_the_text_and_is_never_printed(tiny_zoo: TinyZoo, capsys: Capture, controller: str) -> None:
    """transformers #48039: the text ends before the string, also where it lies over tokens inside a block."""
    whole = answered(capsys, tiny_zoo.bundle)["text"]
    words = whole.split()
    stop = f"{words[6][1:]} {words[7]}"
    options = ("--controller", controller, "--stop", "nowhere", "--stop", stop)
    answer = answered(capsys, tiny_zoo.bundle, *options)
    assert answer["text"] == whole[: whole.index(stop)]
    assert answer["finish_reason"] == "stop"
    assert len(answer["tokens"]) <= 8  # the token that completes the string is the last
    assert generate(tiny_zoo.bundle, *options) == 0
    assert capsys.readouterr().out == f"{answer['text']}\n"


def test_what_only_begins_like_a_stop_string_is_printed_in_the_end(tiny_zoo: TinyZoo, capsys: Capture) -> None:
    whole = answered(capsys, tiny_zoo.bundle)["text"]
    assert generate(tiny_zoo.bundle, "--stop", f"{whole[-3:]} and more") == 0
    assert capsys.readouterr().out == f"{whole}\n"


def test_the_reason_of_the_end_is_told(tiny_zoo: TinyZoo, capsys: Capture) -> None:
    answer = answered(capsys, tiny_zoo.bundle, "--max-tokens", "3")
    assert (answer["finish_reason"], len(answer["tokens"])) == ("length", 3)


@pytest.mark.parametrize("controller", ["plain", "static:one:4"])
def test_counters_are_printed(tiny_zoo: TinyZoo, capsys: Capture, controller: str) -> None:
    """vllm #13990, #9539: counts of drafted and accepted tokens could not be found."""
    stats = answered(capsys, tiny_zoo.bundle, "--controller", controller)["stats"]
    assert stats["committed"] == stats["tokens"] == stats["admitted"] + stats["accepted"] + stats["corrections"]
    assert stats["admitted"] == 1 and stats["drafted"] >= stats["accepted"]
    rate = stats["accepted"] / stats["drafted"] if stats["drafted"] else 0.0
    assert stats["acceptance_rate"] == pytest.approx(rate, abs=1e-4)
    assert generate(tiny_zoo.bundle, "--controller", controller, "--stats") == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().err.splitlines() if len(line.split()) == 2)
    assert int(shown["committed"]) == stats["committed"]  # how many were guessed depends on when a draft arrives
    assert int(shown["committed"]) == sum(int(shown[name]) for name in ("admitted", "accepted", "corrections"))
    assert int(shown["drafted"]) >= int(shown["accepted"]) and 0.0 <= float(shown["acceptance_rate"]) <= 1.0


def test_a_seed_repeats_a_sampled_text(tiny_zoo: TinyZoo, capsys: Capture) -> None:
    options = ("--temperature", "1.5", "--top-k", "40", "--top-p", "0.99", "--min-p", "0.001", "--controller", "plain")
    one = answered(capsys, tiny_zoo.bundle, *options, "--seed", "3")["tokens"]
    assert answered(capsys, tiny_zoo.bundle, *options, "--seed", "3")["tokens"] == one
    assert answered(capsys, tiny_zoo.bundle, *options, "--seed", "4")["tokens"] != one


def test_a_repetition_penalty_changes_the_text(tiny_zoo: TinyZoo, capsys: Capture) -> None:
    plain = answered(capsys, tiny_zoo.bundle)["tokens"]
    assert answered(capsys, tiny_zoo.bundle, "--repetition-penalty", "5")["tokens"] != plain


def test_the_target_may_run_in_another_dtype(tiny_zoo: TinyZoo, capsys: Capture) -> None:
    answer = answered(capsys, tiny_zoo.bundle, "--dtype", "bfloat16", "--max-tokens", "6", "--controller", "plain")
    assert answer["stats"]["tokens"] == len(answer["tokens"]) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stop", ""], "stop strings must not be empty"),
        (["--temperature", "-1"], "temperature must be at least 0, got -1.0"),
        (["--top-k", "-1"], "top_k must be at least 0, got -1"),
        (["--top-p", "0"], "top_p must be above 0 and at most 1, got 0.0"),
        (["--min-p", "2"], "min_p must be from 0 to 1, got 2.0"),
        (["--repetition-penalty", "0"], "repetition_penalty must be above 0, got 0.0"),
        (["--dtype", "float8"], "unknown dtype 'float8': expected one of float32"),
    ],
)
def test_a_bad_value_is_refused(tiny_zoo: TinyZoo, capsys: Capture, options: list[str], message: str) -> None:
    assert generate(tiny_zoo.bundle, *options) == 2
    err = capsys.readouterr().err
    assert err.startswith("specpilot generate: ") and message in err


def test_help_shows_examples_and_every_option(capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["generate", "--help"])
    text = capsys.readouterr().out
    options = ("stop", "temperature", "top-k", "top-p", "min-p", "repetition-penalty", "seed", "dtype", "json", "stats")
    assert all(f"--{name} " in text for name in options)
    assert "specpilot generate --bundle outputs/latest/bundle" in text


# -- Ctrl-C ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("step", [1, 4])
def test_ctrl_c_prints_what_was_committed(
    tiny_zoo: TinyZoo, capsys: Capture, monkeypatch: pytest.MonkeyPatch, step: int, times: int
) -> None:
    whole = answered(capsys, tiny_zoo.bundle, "--controller", "plain")["text"]
    handler = signal.getsignal(signal.SIGINT)
    interrupt_at(step, times, monkeypatch)
    assert generate(tiny_zoo.bundle, "--controller", "plain") == 130
    shown = capsys.readouterr()
    assert shown.out == " ".join(whole.split()[: step - 1]) + "\n"
    assert shown.err == "interrupted\n"
    assert signal.getsignal(signal.SIGINT) is handler


def test_ctrl_c_is_told_in_json(tiny_zoo: TinyZoo, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_at(4, 1, monkeypatch)
    answer = answered(capsys, tiny_zoo.bundle, "--controller", "plain", code=130)
    assert (answer["finish_reason"], len(answer["tokens"])) == ("cancelled", 3)


def test_a_thread_that_may_not_handle_signals_answers_too(tiny_zoo: TinyZoo, capsys: Capture) -> None:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(generate(tiny_zoo.bundle, "--max-tokens", "4")))
    thread.start()
    thread.join()
    assert codes == [0] and capsys.readouterr().out.strip()


def test_the_policy_stands_under_its_guard_unless_it_is_told_otherwise(tiny_zoo: TinyZoo) -> None:
    bundle = read_bundle(tiny_zoo.bundle)
    costs = CostModel(bundle.profile, bundle.zoo.draft_names)
    for controller, unguarded, guarded in (("policy", False, True), ("policy", True, False), ("plain", False, False)):
        options = argparse.Namespace(controller=controller, unguarded=unguarded)
        assert isinstance(open_controller(options, bundle, costs), GuardedController) is guarded
