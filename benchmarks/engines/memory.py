"""Peak memory of one side, in a process of its own: ``python -m benchmarks.engines.memory SIDE BUNDLE PROMPT_FILE``.

Prints one JSON object: resident bytes at most when the models are loaded, and behind one answer. What
loading itself takes for a moment is part of both.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.engines.base import PLAIN, Contender
from benchmarks.engines.ours import PLAIN_OURS, POLICY
from benchmarks.engines.setting import Options, open_bundle, open_ours, open_transformers

ASSISTED = "transformers: assistant, defaults"
SIDES = (PLAIN, ASSISTED, PLAIN_OURS, POLICY)


def peaks(options: Options, prompt: tuple[int, ...], max_tokens: int) -> dict[str, dict[str, int]]:
    """Bytes by side, each in a child process, one after another."""
    with TemporaryDirectory(prefix="specpilot-") as folder:
        asked = Path(folder) / "prompt.json"
        asked.write_text(json.dumps({"prompt": prompt, "max_tokens": max_tokens}), encoding="utf-8")
        command = [sys.executable, "-m", "benchmarks.engines.memory"]
        rest = [str(options.bundle), str(asked), str(options.used_threads), str(options.profile or "")]
        found = {}
        for side in SIDES:
            done = subprocess.run([*command, side, *rest], capture_output=True, text=True, check=True)
            found[side] = dict(json.loads(done.stdout.splitlines()[-1]))
        return found


def _peak_bytes() -> int:
    """Of this program: where the system tells only that of the process, it counts what its parent held, too."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main() -> int:
    """The child's command line."""
    side, bundle_folder, asked, threads, profile = sys.argv[1:]
    options = Options(Path(bundle_folder), profile=Path(profile) if profile else None, static="plain",
                      threads=int(threads))  # fmt: skip
    question = json.loads(Path(asked).read_text(encoding="utf-8"))
    bundle = open_bundle(options.bundle)
    contenders: list[Contender]
    with ExitStack() as opened:
        if side.startswith("transformers"):
            _, contenders = open_transformers(options, bundle)
        else:
            contenders, _ = open_ours(options, bundle, opened, floats=False)
        loaded = _peak_bytes()
        (chosen,) = [contender for contender in contenders if contender.name == side]
        chosen.answer(tuple(question["prompt"]), question["max_tokens"])
    print(json.dumps({"loaded_bytes": loaded, "peak_bytes": _peak_bytes()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
