"""``resume=PATH``: the configuration of the run that goes on, and the refusal of what would make it another run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from agents.checkpoints.folder import Found, find_checkpoint
from runtime.errors import UserError

FREE = (
    "resume",
    "progress",
    "live_check",
    "suite",
    "agent.total_timesteps",
    "agent.checkpoint_every",
    "agent.patience",
    "agent.min_gain",
    "agent.keep",
)
"""What may change from one part of a run to the next, everything below included."""


def resumed(config: DictConfig, overrides: Sequence[str]) -> tuple[DictConfig, Found | None]:
    """The configuration to run with, and the checkpoint to go on from.

    Args:
        config: As composed; ``config.resume`` names a run folder or a checkpoint, null = a new run.
        overrides: The overrides of the command line. On top of the kept configuration only these apply.

    Raises:
        UserError: If there is no whole checkpoint, or an override changes what the run's results depend on.
    """
    place = config.get("resume")
    if place is None:
        return config, None
    found = find_checkpoint(Path(place))
    kept = OmegaConf.create(found.checkpoint.config)
    merged = OmegaConf.create(OmegaConf.to_container(config, resolve=True))
    merged.merge_with(kept)
    for key in overridden(overrides):
        value = OmegaConf.select(config, key, default=merged)  # merged: no value can be that
        if value is merged:
            raise UserError(f"resume with {key}: not a key of the configuration; name the single values to change")
        OmegaConf.update(merged, key, value, merge=False)
    refuse_changes(kept, cast(DictConfig, merged), found.path)
    return cast(DictConfig, merged), found


def overridden(overrides: Sequence[str]) -> Iterator[str]:
    """Keys that Hydra's overrides name; ``~key`` names one too."""
    for override in overrides:
        key = override.partition("=")[0].lstrip("+~").partition("@")[0]
        if key:
            yield key.replace("/", ".")


def refuse_changes(kept: Any, now: DictConfig, path: Path) -> None:
    """Compare a checkpoint's configuration with the one to go on with.

    Raises:
        UserError: If they differ in a key that is not ``FREE``; it names each key and both values.
    """
    before, after = dict(flattened(OmegaConf.to_container(kept))), dict(flattened(OmegaConf.to_container(now)))
    changed = [
        f"{key} was {value!r}, now {after.get(key, 'something else')!r}"
        for key, value in before.items()
        if (key not in after or after[key] != value) and not any(f"{key}.".startswith(f"{free}.") for free in FREE)
    ]
    if changed:
        raise UserError(
            f"{path} cannot be resumed with another configuration: {'; '.join(changed)}. Leave these overrides out, or "
            f"start a new run without resume. Free to change: {', '.join(FREE[1:])}"
        )


def flattened(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings by dotted key; an empty mapping is a leaf."""
    for key, value in cast(Mapping[str, Any], tree).items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flattened(value, f"{name}.")
        else:
            yield name, value


def in_run_folder(arguments: Sequence[str]) -> list[str]:
    """Command line arguments for Hydra: a run that goes on stays in its folder, and leaves the folder's records alone.

    Args:
        arguments: As given, without the program's name.

    Raises:
        UserError: If ``resume`` names nothing to go on from.
    """
    values = [argument.partition("=")[2].strip("'\"") for argument in arguments if argument.startswith("resume=")]
    if not values or values[-1] in ("null", ""):
        return list(arguments)
    run = str(find_checkpoint(Path(values[-1])).run).replace("\\", "\\\\").replace("'", "\\'")
    return [*arguments, f"hydra.run.dir='{run}'", "hydra.output_subdir=null"]


def how_to_resume(run: Path) -> str:
    """What to type after an interruption."""
    try:
        found = find_checkpoint(run)
    except UserError:
        return "no checkpoint was written yet, start again"
    return f"go on at decision {found.checkpoint.decisions} with: python train.py resume={run}"
