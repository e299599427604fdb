"""This device's profile: measured once with the real models, kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.bundle import library_versions
from runtime.engine.native.library import kernels
from runtime.engine.opening import TRANSFORMERS, USUAL_DTYPE, TargetChoice, choose_engine
from runtime.engine.sources import cache_folder
from runtime.errors import UserError
from runtime.importing import importing
from runtime.profile import PROFILE_SCHEMA, Profile
from runtime.threads import usable_threads
from runtime.zoo import Zoo

if TYPE_CHECKING:
    from runtime.live import LiveModels


def device_name() -> str:
    """The processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def profile_path(zoo: Zoo, device: str, threads: int, engine: str = TRANSFORMERS, dtype: str = USUAL_DTYPE) -> Path:
    """Where a measurement is kept: one file for zoo, machine, thread count, engine, dtype, kernels and libraries."""
    from runtime.profiling import EXTRA_LIBRARIES  # here, because the import takes seconds

    facts = {
        "schema": PROFILE_SCHEMA,
        "target": zoo.target.fingerprint,
        "drafts": [draft.sha256 for draft in zoo.drafts],
        "machine": [device_name(), os.cpu_count(), device, threads],
        "versions": library_versions("torch", "transformers", *EXTRA_LIBRARIES.get(engine, ())),
    }
    if engine != TRANSFORMERS:
        facts["engine"] = engine
    elif device == "cpu":
        library = kernels()
        facts["kernels"] = None if library is None else Path(library._name).stem
    else:
        import torch

        from runtime.engine.graphs.choice import wanted

        facts["graphs"] = wanted(torch.device(device))
    if dtype != USUAL_DTYPE:
        facts["dtype"] = dtype
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    return cache_folder() / "profiles" / f"{zoo.name}-{key}.json"


def device_profile(
    zoo: Zoo,
    target: str | None = None,
    device: str = "cpu",
    threads: int = 0,
    remeasure: bool = False,
    progress: bool = True,
    models: LiveModels | None = None,
    engine: str = TRANSFORMERS,
    dtype: str = USUAL_DTYPE,
) -> Profile:
    """The kept profile of this device, or a new measurement (a minute or two).

    Args:
        zoo: The zoo to measure with.
        target: Another source of the target; None = the zoo's own.
        device: Torch device.
        threads: CPU threads; 0 = all cores.
        remeasure: Measure even if a profile is kept.
        progress: Whether to show a progress bar.
        models: Models already in memory, of that engine and dtype; None = opened if something is measured.
        engine: The engine to measure; ``auto`` as in ``runtime.engine.opening.choose_engine``.
        dtype: What the target runs in, a name of ``DTYPES``.
    """
    threads = threads or usable_threads()
    engine = choose_engine(TargetChoice(target, device, dtype, threads, engine))
    with importing():
        from runtime.live import open_models  # here, because the import takes seconds
        from runtime.profiling import measure_profile
    path = profile_path(zoo, device, threads, engine, dtype)
    if path.exists() and not remeasure:
        try:
            return Profile.load(path)
        except UserError:
            path.unlink()
    print(f"measuring what {engine} costs in {dtype} on this device, with the real models: once, one to three minutes, "
          "longer if other programs run", file=sys.stderr, flush=True)  # fmt: skip
    models = models or open_models(zoo, target, device, threads, dtype, engine=engine)
    profile = measure_profile(models, threads=threads, progress=progress)
    profile.save(path)
    return profile
