from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("runtime", "envs", "agents", "conf")
"""Each room may import the ones before it."""
HELPERS = ("benchmarks", "tests")
MAX_LINES = 400
MODULES = {
    "hydra-core": "hydra",
    "pyyaml": "yaml",
    "sb3-contrib": "sb3_contrib",
    "stable-baselines3": "stable_baselines3",
}
"""Import name of a distribution, where it is not the distribution's name."""
PAGE = sorted(
    path for path in (ROOT / "runtime" / "server" / "page").iterdir() if path.suffix in {".html", ".css", ".js"}
)
THROUGH = {"fastapi": ("pydantic", "starlette"), "transformers": ("huggingface_hub", "tokenizers")}
"""Modules that a declared distribution brings along as part of its own interface."""


def _pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def _requirements(*extras: str) -> list[Requirement]:
    project = _pyproject()["project"]
    lines = list(project["dependencies"])
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    return [Requirement(line) for line in lines]


def _sources() -> list[Path]:
    folders = [ROOT / name for name in (*ROOMS, *HELPERS)]
    return sorted([*ROOT.glob("*.py"), *(path for folder in folders for path in folder.rglob("*.py"))])


def _room_sources(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and top-level name of every absolute import in a file, those inside functions and quotes of types too."""
    for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module.partition(".")[0]
        elif isinstance(node, ast.Call) and _called(node) in {"import_module", "__import__"}:
            name = node.args[0] if node.args else None
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield node.lineno, name.value.partition(".")[0]


def _called(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def _forbidden(room: str, names: frozenset[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in _room_sources(room)
        for line, name in _imports(path)
        if name in names
    ]


# -- who owns the names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["agents", "envs", "runtime"])
def test_room_resolves_to_this_checkout(name: str) -> None:
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"{name} cannot be imported from {ROOT}"
    assert [Path(place).resolve() for place in spec.submodule_search_locations or ()] == [ROOT / name]


def test_no_other_distribution_owns_a_room() -> None:
    owners = importlib.metadata.packages_distributions()
    foreign = {name: set(owners.get(name, ())) - {"specpilot"} for name in ("agents", "envs", "runtime")}
    assert not any(foreign.values()), f"uninstall what else owns these names: {foreign}"


def test_no_top_level_name_is_one_of_the_standard_library() -> None:
    ours = {path.stem for path in ROOT.glob("*.py")} | {
        path.name for path in ROOT.iterdir() if path.is_dir() and any(path.glob("*.py"))
    }
    assert not ours & sys.stdlib_module_names


# -- who knows whom --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", ROOMS)
def test_room_imports_only_rooms_below_it(room: str) -> None:
    above = frozenset(ROOMS[ROOMS.index(room) + 1 :]) | {*HELPERS, "train"}
    assert not _forbidden(room, above)


def test_runtime_imports_nothing_of_training() -> None:
    training = {"hydra", "omegaconf", "gymnasium", "stable_baselines3", "sb3_contrib"}
    assert _room_sources("runtime")
    assert not _forbidden("runtime", frozenset({"envs", "agents", "conf"} | training))


def test_runtime_imports_only_what_the_wheel_declares() -> None:
    declared = {"runtime", *sys.stdlib_module_names}
    for requirement in _requirements("gguf", "serve"):
        declared |= {_module(requirement.name), *THROUGH.get(requirement.name, ())}
    used = {name for path in _room_sources("runtime") for _, name in _imports(path)}
    foreign = frozenset(used - declared)
    assert not foreign, f"declare these in pyproject.toml or do without: {_forbidden('runtime', foreign)}"


def _module(distribution: str) -> str:
    return MODULES.get(canonicalize_name(distribution), distribution.replace("-", "_"))


# -- what is shipped -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from a copy: building writes into the tree it builds from."""
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, copy)
    for path in [*_sources(), ROOT / "runtime" / "py.typed", *PAGE]:
        target = copy / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*pip, "--wheel-dir", str(out), str(copy)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.iterdir()
    return zipfile.ZipFile(path)


def test_wheel_holds_runtime_only(wheel: zipfile.ZipFile) -> None:
    version = _pyproject()["project"]["version"]
    assert {name.partition("/")[0] for name in wheel.namelist()} == {"runtime", f"specpilot-{version}.dist-info"}


def test_wheel_holds_all_of_runtime(wheel: zipfile.ZipFile) -> None:
    expected = {path.relative_to(ROOT).as_posix() for path in [*_room_sources("runtime"), *PAGE]} | {"runtime/py.typed"}
    assert {name for name in wheel.namelist() if name.startswith("runtime/")} == expected


def test_wheel_carries_its_licence_and_command(wheel: zipfile.ZipFile) -> None:
    names = "\n".join(wheel.namelist())
    assert re.search(r"dist-info/licenses/LICENSE$", names, re.M)
    assert re.search(r"dist-info/licenses/NOTICE$", names, re.M)
    (entry_points,) = (name for name in wheel.namelist() if name.endswith("/entry_points.txt"))
    assert "specpilot = runtime.cli:main" in wheel.read(entry_points).decode()


# -- what a checkout installs ----------------------------------------------------------------------------------------


def test_lock_names_every_dependency_inside_its_range() -> None:
    lines = (ROOT / "requirements" / "lock.txt").read_text().splitlines()
    locked = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    versions = {canonicalize_name(name): version for name, version in locked.items()}
    for requirement in _requirements(*_pyproject()["project"]["optional-dependencies"]):
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, f"requirements/lock.txt lacks {requirement.name}"
        assert requirement.specifier.contains(version), f"locked {requirement.name}=={version}, declared {requirement}"


def test_makefile_installs_the_locked_torch() -> None:
    (made,) = re.findall(r"^TORCH \?= (torch==\S+)$", (ROOT / "Makefile").read_text(), re.M)
    assert made in (ROOT / "requirements" / "lock.txt").read_text().splitlines()


# -- the sources -----------------------------------------------------------------------------------------------------


def test_every_source_compiles() -> None:
    for path in _sources():
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True)


def test_no_source_is_too_long() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in _sources()}
    too_long = {name: lines for name, lines in lengths.items() if lines > MAX_LINES}
    assert not too_long, f"split these, at most {MAX_LINES} lines a file: {too_long}"
