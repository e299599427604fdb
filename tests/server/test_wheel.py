"""The wheel alone, in an environment with nothing but what it declares, serves a bundle over HTTP.

Declared distributions and all they need are linked into the environment from this one, so that nothing is fetched;
whatever else is installed here (the training libraries, this checkout) cannot be imported there.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.serving import GREETING
from tests.server.serving import PATIENCE_S
from tests.tiny_zoo import TinyZoo, copied

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links files, and ends the server by a signal")


def declared(*extras: str) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    return [Requirement(line) for line in lines]


def closure(wanted: list[Requirement]) -> set[str]:
    """Distributions that these need, themselves included."""
    found: set[tuple[str, str]] = set()
    for requirement in wanted:
        for extra in ("", *requirement.extras):
            if (key := (canonicalize_name(requirement.name), extra)) in found:
                continue
            found.add(key)
            lines = importlib.metadata.requires(requirement.name) or []
            wanted += [
                one for one in map(Requirement, lines) if not one.marker or one.marker.evaluate({"extra": extra})
            ]
    return {name for name, _ in found}


def link(distribution: str, site: Path) -> None:
    """Make a distribution of this environment importable from another one."""
    found = importlib.metadata.distribution(distribution)
    for name in {path.parts[0] for path in found.files or ()} - {"..", "__pycache__"}:
        if not (site / name).exists():
            (site / name).symlink_to(Path(str(found.locate_file(name))))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: building writes into the tree it builds from."""
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "runtime", copy / "runtime", ignore=shutil.ignore_patterns("__pycache__"))
    pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(out), str(copy))
    (built,) = out.iterdir()
    return built


def pip(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def installed(wheel: Path, folder: Path, *extras: str) -> Path:
    """An environment with the wheel, and what it needs with these extras; its folder of programs."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for distribution in closure(declared(*extras)):
        link(distribution, site)
    pip("--python", str(folder / "bin/python"), "install", "--quiet", "--no-deps", "--no-index", str(wheel))
    return folder / "bin"


def run(programs: Path, *command: str) -> subprocess.CompletedProcess[str]:
    program, *arguments = command
    return subprocess.run(
        [programs / program, *arguments], capture_output=True, text=True, check=False, cwd=programs.parent
    )


def test_the_wheel_alone_serves_a_bundle(wheel: Path, tiny_zoo: TinyZoo, tmp_path: Path) -> None:
    programs = installed(wheel, tmp_path / "env", "serve")
    bundle = copied(tiny_zoo.bundle, tmp_path / "bundle")
    where = run(programs, "python", "-c", "import runtime; print(runtime.__file__)").stdout.strip()
    assert Path(where).is_relative_to(tmp_path / "env")
    for absent in ("gymnasium", "stable_baselines3", "hydra", "agents", "envs", "pytest", "openai"):
        assert "No module named" in run(programs, "python", "-c", f"import {absent}").stderr, absent
    command = [str(programs / "specpilot"), "serve", "--bundle", str(bundle), "--port", "0", "--threads", "1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None and process.stderr is not None
            found = GREETING.match(process.stdout.readline())
            assert found, process.stderr.read()
            model, url = found.groups()
            body = {"model": model, "messages": [{"role": "user", "content": "w5 w17"}], "max_tokens": 8}
            with httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S) as client:
                answer = client.post("/v1/chat/completions", json=body).json()
                assert answer["usage"]["completion_tokens"] == 8
                assert "<title>" in client.get("/").text
            process.terminate()
            assert process.wait(PATIENCE_S) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_without_the_extra_the_wheel_generates_and_says_what_serving_needs(
    wheel: Path, tiny_zoo: TinyZoo, tmp_path: Path
) -> None:
    programs = installed(wheel, tmp_path / "env")
    call = ["--bundle", str(tiny_zoo.bundle), "--threads", "1"]
    written = run(programs, "specpilot", "generate", *call, "--prompt", "w5 w17", "--max-tokens", "4")
    assert written.returncode == 0 and written.stdout.strip(), written.stderr
    refused = run(programs, "specpilot", "serve", *call)
    assert refused.returncode == 2 and "pip install 'specpilot[serve]'" in refused.stderr
