"""What all sides of a comparison share, opened from the command line's options."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from agents.baselines import statics
from agents.paths import PROJECT
from agents.setup import prepare
from agents.tuning import STATIC, TUNING_SEED, tune
from benchmarks.engines.base import Contender
from benchmarks.engines.huggingface import generators
from benchmarks.engines.ours import Sessions, controlled, in_floats, in_integers
from runtime.bundle import Bundle, read_bundle
from runtime.device import device_profile
from runtime.engine.sources import resolve_first
from runtime.errors import UserError
from runtime.live import open_models
from runtime.profile import CostModel, Profile
from runtime.threads import usable_threads

TRACES = PROJECT / "envs" / "zoo" / "smollm2" / "traces" / "heldout.parquet"
ASSISTANT = "generalist"
"""The draft that assists transformers: the only one that knows all domains."""
TUNING_STREAMS = 4


@dataclass(frozen=True)
class Options:
    """The command line.

    Attributes:
        bundle: Folder of the bundle: its zoo, memory and policy.
        traces: Held-out traces; their prompts are asked.
        profile: File of the device's profile; None = the kept one, measured if there is none.
        static: Name of the static controller; None = tuned on training streams by replay.
        threads: CPU threads of every side; 0 = all cores.
        int8: Folder of a bundle for the target in int8; None = that is left out.
        clock: ``wall``, or ``cpu``: the process's own time, on a machine that others use; good for one thread.
    """

    bundle: Path
    traces: Path = TRACES
    profile: Path | None = None
    static: str | None = None
    threads: int = 0
    clock: str = "wall"
    int8: Path | None = None

    @property
    def used_threads(self) -> int:
        """Threads, counted."""
        return self.threads or usable_threads()


def open_transformers(options: Options, bundle: Bundle) -> tuple[PreTrainedModel, list[Contender]]:
    """Transformers' side: the target as it comes, and all it offers.

    Raises:
        UserError: If the zoo has no draft that knows all domains.
    """
    torch.set_num_threads(options.used_threads)
    zoo = bundle.zoo
    if ASSISTANT not in zoo.draft_names:
        raise UserError(f"zoo '{zoo.name}' has no draft '{ASSISTANT}' to assist with: take a bundle of the default zoo")
    draft = zoo.draft_path(zoo.draft_names.index(ASSISTANT))
    return generators(resolve_first(zoo.target.sources), draft, zoo.target.eos_ids)


def open_ours(options: Options, bundle: Bundle, opened: ExitStack, floats: bool) -> tuple[list[Contender], str]:
    """This engine's side, and the name of the static controller.

    ``floats`` = also with weights in fp32, and in int8 if a bundle for that is named.
    """
    models = open_models(bundle.zoo, threads=options.used_threads)
    profile = (
        Profile.load(options.profile)
        if options.profile
        else device_profile(bundle.zoo, threads=options.used_threads, models=models)
    )
    static = options.static or best_static(profile, opened)
    sessions = Sessions(models, bundle, CostModel(profile, bundle.zoo.draft_names), opened)
    more = [in_floats(sessions)] if floats else []
    integers = in_integers(options.int8, options.used_threads, opened) if options.int8 and floats else []
    return [*more, *controlled(sessions, static), *integers], static


def best_static(profile: Profile, opened: ExitStack) -> str:
    """The static controller that is fastest on training streams, by replay on a profile."""
    from tempfile import TemporaryDirectory

    from hydra import compose, initialize_config_dir

    file = Path(opened.enter_context(TemporaryDirectory(prefix="specpilot-"))) / "profile.json"
    profile.save(file)
    with initialize_config_dir(str(PROJECT / "conf"), version_base=None):
        setting = prepare(compose("config", [f"device.profile={file}"]))
    streams = setting.train.streams(TUNING_SEED, TUNING_STREAMS)
    best = max(tune(statics(setting.specs), setting.train, streams, False), key=lambda found: found.tokens_per_s)
    return f"{STATIC}{best.name.removeprefix(STATIC)}:{best.gamma}:{best.stop}"


def open_bundle(folder: Path) -> Bundle:
    """The bundle, its draft files checked."""
    bundle = read_bundle(folder)
    bundle.zoo.verify_files()
    return bundle
