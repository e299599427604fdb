"""The command: the same text whoever decides, and one clear message for every mistake."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.cli import main
from tests.tiny_zoo import TinyZoo, copied, edit_json, write_target

PROMPT = "w5 w17 w3 w44 w9 w17 w3 w44"
Capture = pytest.CaptureFixture[str]


def generate(bundle: Path, *more: str, prompt: str = PROMPT) -> int:
    return main(["generate", "--bundle", str(bundle), "--prompt", prompt, "--threads", "1", *more])


def tokens_of(capsys: Capture, drafts: bool = False) -> list[int]:
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert not drafts or answer["stats"]["drafted"] > 0
    assert answer["stats"]["tokens"] == len(answer["tokens"])
    tokens: list[int] = answer["tokens"]
    return tokens


def refused(code: int, capsys: Capture) -> str:
    """The one message of a refused call."""
    err = capsys.readouterr().err
    assert code == 2
    assert "Traceback" not in err
    lines = [line for line in err.splitlines() if line.startswith("specpilot ")]
    assert len(lines) == 1, err
    return lines[0]


@pytest.fixture
def bundle(tiny_zoo: TinyZoo, tmp_path: Path) -> Path:
    """A copy of the bundle that may be damaged."""
    return copied(tiny_zoo.bundle, tmp_path / "bundle")


@pytest.mark.exact
def test_the_text_does_not_depend_on_who_decides(tiny_zoo: TinyZoo, capsys: Capture) -> None:
    assert generate(tiny_zoo.bundle, "--max-tokens", "24", "--json", "--controller", "plain") == 0
    plain = tokens_of(capsys)
    assert 1 < len(plain) <= 24
    for name in ("policy", "static:one:4", "static:two:4", "static:lookup:2:1", "memspec:2", "rakv_asd", "plain_reuse"):
        assert generate(tiny_zoo.bundle, "--max-tokens", "24", "--json", "--controller", name) == 0
        assert tokens_of(capsys, drafts=name.startswith("static:one")) == plain, name


def test_the_text_streams_and_stats_go_to_stderr(tiny_zoo: TinyZoo, capsys: Capture) -> None:
    assert generate(tiny_zoo.bundle, "--max-tokens", "8", "--json") == 0
    text = json.loads(capsys.readouterr().out)["text"]
    assert generate(tiny_zoo.bundle, "--max-tokens", "8", "--stats") == 0
    shown = capsys.readouterr()
    assert shown.out == f"{text}\n"
    stats = dict(line.split(maxsplit=1) for line in shown.err.splitlines() if len(line.split()) == 2)
    assert stats["controller"] == "policy" and int(stats["tokens"]) == 8


def test_the_prompt_may_come_from_standard_input(
    tiny_zoo: TinyZoo, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(PROMPT))
    assert generate(tiny_zoo.bundle, "--max-tokens", "6", "--json", prompt="-") == 0
    given = tokens_of(capsys)
    assert generate(tiny_zoo.bundle, "--max-tokens", "6", "--json") == 0
    assert tokens_of(capsys) == given


def test_a_prompt_that_is_not_text_is_refused(
    tiny_zoo: TinyZoo, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9 au lait"), encoding="utf-8"))
    assert_matches(refused(generate(tiny_zoo.bundle, prompt="-"), capsys), "standard input is not UTF-8 text")


def test_info_describes_the_bundle(tiny_zoo: TinyZoo, capsys: Capture) -> None:
    assert main(["info", str(tiny_zoo.bundle)]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("one", "two", "lookup", "made up", "simulated"))
    assert main(["info", str(tiny_zoo.bundle), "--json"]) == 0
    manifest = json.loads(capsys.readouterr().out)
    assert manifest["drafts"] == ["one", "two", "lookup"]


def test_verify_finds_a_whole_bundle_whole(tiny_zoo: TinyZoo, capsys: Capture) -> None:
    assert main(["verify", str(tiny_zoo.bundle)]) == 0
    assert capsys.readouterr().out == f"{tiny_zoo.bundle}: whole, fits this runtime\n"


def change(name: str, how: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / name
        path.write_bytes(how(path.read_bytes()))

    return damage


def change_manifest(how: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    return lambda folder: edit_json(folder / "manifest.json", how)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "policy changed": (change("policy.onnx", lambda data: data + b"\0"), "policy.onnx does not have the hash"),
    "policy missing": (lambda folder: (folder / "policy.onnx").unlink(), "policy.onnx is missing: copy the bundle"),
    "profile changed": (change("profile.json", lambda data: data + b" "), "profile.json does not have the hash"),
    "another observation": (
        change_manifest(lambda m: m["observation"]["global"].pop()),
        "field 'observation' of the manifest is not what this runtime",
    ),
    "another action": (change_manifest(lambda m: m["action"]["gammas"].append(99)), "field 'action' of the manifest"),
    "schema 0": (change_manifest(lambda m: m.update(schema=0)), "expected a bundle manifest of schema 1, got 0"),
    "no hashes": (change_manifest(lambda m: m.pop("sha256")), "field 'sha256' of the manifest"),
    "no memory": (change_manifest(lambda m: m.pop("memory")), "field 'memory' of the manifest"),
    "memory of words": (
        change_manifest(lambda m: m["memory"].update(budget_bytes="x")),
        "field 'memory.budget_bytes' of the manifest is 'x'",
    ),
    "no interval": (
        change_manifest(lambda m: m["memory"].update(decision_interval=0)),
        "field 'memory.decision_interval' of the manifest is 0",
    ),
    "half a manifest": (change("manifest.json", lambda data: data[: len(data) // 2]), "not a readable bundle manifest"),
    "manifest not text": (change("manifest.json", lambda _: b"\xff\xfe\x00"), "not a readable bundle manifest"),
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), "no bundle manifest at"),
    "draft truncated": (
        change("zoo/drafts/one.draft.safetensors", lambda data: data[:-100]),
        "draft one at .* the file is damaged or of another zoo",
    ),
    "draft missing": (
        lambda folder: (folder / "zoo/drafts/two.draft.safetensors").unlink(),
        "draft two is missing at",
    ),
    "topic predictor truncated": (
        change("zoo/topic.safetensors", lambda data: data[:-8]),
        "topic.safetensors does not",
    ),
}


@pytest.mark.parametrize("command", ["generate", "verify"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_bundle_is_refused(bundle: Path, capsys: Capture, damage: str, command: str) -> None:
    do, message = DAMAGES[damage]
    do(bundle)
    code = generate(bundle) if command == "generate" else main(["verify", str(bundle)])
    assert_matches(refused(code, capsys), f"specpilot {command}: .*{message}")


def assert_matches(line: str, pattern: str) -> None:
    assert re.search(pattern, line), line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--controller", "oracle"], "unknown controller 'oracle': expected one of policy, plain"),
        (["--controller", "static:three:4"], "no draft 'three' in this zoo, it has one, two, lookup"),
        (["--controller", "static:one:5"], "controller 'static:one:5': expected one of .* got '5'"),
        (["--controller", "static:lookup:²"], "controller 'static:lookup:²': expected one of"),
        (["--controller", "static:one"], "unknown controller 'static:one'"),
        (["--target", "/nope"], "no model '/nope': expected a folder"),
        (["--max-tokens", "0"], "--max-tokens must be at least 1, got 0"),
        (["--max-tokens", "100000"], "context"),
        (["--device", "nonsense"], "device 'nonsense'"),
        (["--threads", "-1"], "expected a number of threads, .* got -1"),
        (["--device", "cuda:99"], "device .cuda:99. cannot be used here"),
    ],
)
def test_a_wrong_option_is_refused(tiny_zoo: TinyZoo, capsys: Capture, options: list[str], message: str) -> None:
    assert_matches(refused(generate(tiny_zoo.bundle, *options), capsys), message)


@pytest.mark.parametrize("prompt", ["", " \n"])
def test_an_empty_prompt_is_refused(tiny_zoo: TinyZoo, capsys: Capture, prompt: str) -> None:
    assert_matches(refused(generate(tiny_zoo.bundle, prompt=prompt), capsys), "the prompt is empty: pass some text")


def test_a_prompt_beyond_the_context_is_refused(tiny_zoo: TinyZoo, capsys: Capture) -> None:
    assert_matches(refused(generate(tiny_zoo.bundle, prompt="w5 " * 300), capsys), "context")


@pytest.mark.parametrize("command", ["generate", "info", "verify", "profile", "pull"])
def test_a_missing_bundle_is_refused(tmp_path: Path, capsys: Capture, command: str) -> None:
    missing = str(tmp_path / "missing")
    arguments = {
        "generate": ["--bundle", missing, "--prompt", PROMPT],
        "info": [missing],
        "verify": [missing],
        "profile": ["--bundle", missing],
        "pull": ["--bundle", missing],
    }[command]
    assert_matches(refused(main([command, *arguments]), capsys), f"specpilot {command}: no bundle at .*missing")


def test_another_target_is_refused(tiny_zoo: TinyZoo, tmp_path: Path, capsys: Capture) -> None:
    write_target(tmp_path / "other", seed=1)
    line = refused(generate(tiny_zoo.bundle, "--target", str(tmp_path / "other")), capsys)
    assert_matches(line, "zoo 'tiny' belongs to a target with fingerprint .* use the target the drafts were")


def test_a_missing_zoo_is_refused(tmp_path: Path, capsys: Capture) -> None:
    line = refused(main(["profile", "--zoo", str(tmp_path / "missing")]), capsys)
    assert_matches(line, "specpilot profile: no zoo manifest at .*missing")


def test_a_missing_option_is_named(capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["generate", "--prompt", PROMPT])
    assert "--bundle" in capsys.readouterr().err
