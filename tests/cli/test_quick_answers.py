"""What needs no model is answered without importing the libraries that run one: they take seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_zoo import TinyZoo

ROOT = Path(__file__).resolve().parents[2]
LARGE = ("torch", "transformers", "onnxruntime", "fastapi", "uvicorn", "safetensors.torch")

CALL = f"""
import sys
from runtime.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as ended:
    code = ended.code
print([name for name in {LARGE!r} if name in sys.modules], code, file=sys.stderr)
"""


def imported(*arguments: str) -> str:
    """Large libraries that a call imported, and its exit code."""
    call = [sys.executable, "-c", CALL, *arguments]
    done = subprocess.run(call, capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--help",), 0),
        (("generate", "--help"), 0),
        (("completion", "bash"), 0),
        (("generate", "--bundle", "/nope"), 2),
        (("generate", "--bundle", "/nope", "--prompt", "w5"), 2),
        (("chat", "--bundle", "/nope"), 2),
        (("serve", "--bundle", "/nope"), 2),
        (("bench", "--bundle", "/nope", "--repeat", "0"), 2),
        (("profile", "--bundle", "/nope"), 2),
        (("pull",), 2),
    ],
)
def test_help_and_mistakes_import_nothing_large(arguments: tuple[str, ...], code: int) -> None:
    assert imported(*arguments) == f"[] {code}"


def test_a_bundle_is_described_without_a_model(tiny_zoo: TinyZoo) -> None:
    assert imported("info", str(tiny_zoo.bundle)) == "[] 0"


def test_wrong_options_of_a_good_bundle_are_told_at_once(tiny_zoo: TinyZoo) -> None:
    bundle = ("--bundle", str(tiny_zoo.bundle))
    assert imported("serve", *bundle, "--port", "70000") == "[] 2"
    assert imported("generate", *bundle, "--prompt", "w5", "--dtype", "int4") == "[] 2"
    assert imported("generate", *bundle, "--prompt", "w5", "--controller", "nobody") == "[] 2"
