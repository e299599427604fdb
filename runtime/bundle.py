"""The bundle: what is deployed. A folder without any pickle.

policy.onnx     observation and mask to action; normalisation and prior inside
manifest.json   spec of observation and action, hashes, versions, training configuration
profile.json    the costs the policy was trained for
zoo/            the zoo's manifest, drafts and topic predictor
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from runtime import __version__
from runtime.control.action import ActionCodec
from runtime.control.frozen import FrozenController
from runtime.control.observation import DRAFT_FEATURES, GLOBAL_FEATURES, bounds
from runtime.core import GAMMAS, STOP_LEVELS
from runtime.errors import UserError
from runtime.files import read_json, sha256_file, write_json
from runtime.profile import Profile
from runtime.zoo import MANIFEST, Zoo

BUNDLE_SCHEMA = 1
POLICY, PROFILE, BUNDLE_MANIFEST, ZOO_FOLDER = "policy.onnx", "profile.json", "manifest.json", "zoo"
_FIELDS = {
    "sha256": (POLICY, PROFILE, f"{ZOO_FOLDER}/{MANIFEST}"),
    "memory": ("budget_bytes", "workspace_bytes", "kv_reserve_tokens", "decision_interval"),
    "versions": (),
    "training": (),
}
"""Objects of the manifest and what each must hold."""


def observation_spec() -> dict[str, Any]:
    """The feature table as JSON: what the policy reads, in order."""
    return {
        "dtype": "float32",
        "global": [feature._asdict() for feature in GLOBAL_FEATURES],
        "per_draft": [feature._asdict() for feature in DRAFT_FEATURES],
    }


def action_spec(n_drafts: int) -> dict[str, Any]:
    """The action codec as JSON: what the policy's five integers mean."""
    return {
        "dimensions": ["speculate", "stop", "prefetch", "kv", "victim"],
        "nvec": list(ActionCodec(n_drafts).nvec),
        "gammas": list(GAMMAS),
        "stop_levels": list(STOP_LEVELS),
    }


def library_versions(*names: str) -> dict[str, str]:
    """Installed versions of the named distributions, Python's among them."""
    found = {"python": platform.python_version(), "specpilot": __version__}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True)
class Bundle:
    """A checked bundle."""

    folder: Path
    manifest: Mapping[str, Any]
    zoo: Zoo
    profile: Profile

    @property
    def policy_sha256(self) -> str:
        """Hash of the policy's graph."""
        return str(self.manifest["sha256"][POLICY])

    def controller(self, name: str = "policy") -> FrozenController:
        """The frozen policy."""
        n_drafts = len(self.zoo.drafts)
        return FrozenController(self.folder / POLICY, n_drafts, len(bounds(n_drafts)[0]), name)


def write_bundle(
    folder: Path,
    policy: Path,
    zoo: Zoo,
    profile: Profile,
    memory: Mapping[str, int],
    training: Mapping[str, Any],
    replace: bool = False,
) -> None:
    """Assemble a bundle beside ``folder`` and move it there whole.

    Args:
        folder: Where the bundle will be; must not exist unless ``replace``.
        policy: The exported graph.
        zoo: The zoo; its files are copied.
        profile: The costs the policy was trained for.
        memory: ``budget_bytes``, ``workspace_bytes``, ``kv_reserve_tokens``, ``decision_interval``.
        training: Configuration of the training run, JSON-able.
        replace: Whether a bundle that is there gives way, when the new one is whole.
    """
    aside, before = (folder.with_name(f".{folder.name}.{os.getpid()}.{kind}") for kind in ("tmp", "before"))
    shutil.rmtree(aside, ignore_errors=True)
    (aside / ZOO_FOLDER).mkdir(parents=True)
    try:
        shutil.copyfile(policy, aside / POLICY)
        profile.save(aside / PROFILE)
        write_json(aside / ZOO_FOLDER / MANIFEST, zoo.manifest())
        for name in (zoo.topic, *(draft.file for draft in zoo.drafts)):
            if name:
                _copy(zoo.folder / name, aside / ZOO_FOLDER / name)
        hashed = [*_FIELDS["sha256"], *([f"{ZOO_FOLDER}/{zoo.topic}"] if zoo.topic else [])]
        write_json(
            aside / BUNDLE_MANIFEST,
            {
                "schema": BUNDLE_SCHEMA,
                "observation": observation_spec(),
                "action": action_spec(len(zoo.drafts)),
                "drafts": list(zoo.draft_names),
                "memory": dict(memory),
                "sha256": {name: sha256_file(aside / name) for name in hashed},
                "versions": library_versions("torch", "transformers", "onnxruntime", "numpy", "stable-baselines3"),
                "training": dict(training),
            },
        )
        if replace and folder.exists():
            folder.replace(before)
        aside.replace(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        shutil.rmtree(before, ignore_errors=True)


def read_bundle(folder: Path) -> Bundle:
    """Read and check a bundle.

    Raises:
        UserError: If it is not a bundle, a hash differs, or it does not fit this runtime; the field is named.
    """
    if not folder.is_dir():
        raise UserError(f"no bundle at {folder}: expected a folder with {BUNDLE_MANIFEST} (train.py leaves one)")
    manifest = read_json(folder / BUNDLE_MANIFEST, "bundle manifest", BUNDLE_SCHEMA)
    for field, keys in _FIELDS.items():
        value = manifest.get(field)
        if not isinstance(value, dict) or any(key not in value for key in keys):
            raise UserError(
                f"{folder}: field '{field}' of the manifest is not whole: expected an object with "
                f"{', '.join(keys) or 'anything'}; copy the bundle again"
            )
    for key in _FIELDS["memory"]:
        number = manifest["memory"][key]
        if type(number) is not int or number < (1 if key == "decision_interval" else 0):
            raise UserError(
                f"{folder}: field 'memory.{key}' of the manifest is {number!r}, expected a whole number that is not "
                "negative; copy the bundle again"
            )
    for name, expected in manifest["sha256"].items():
        path = folder / name
        if not path.is_file():
            raise UserError(f"{folder}: {name} is missing: copy the bundle again")
        if sha256_file(path) != expected:
            raise UserError(f"{folder}: {name} does not have the hash of the manifest: it is damaged or was changed")
    zoo = Zoo.load(folder / ZOO_FOLDER)
    for field, expected_spec in (
        ("observation", observation_spec()),
        ("action", action_spec(len(zoo.drafts))),
        ("drafts", list(zoo.draft_names)),
    ):
        if manifest.get(field) != expected_spec:
            raise UserError(
                f"{folder}: field '{field}' of the manifest is not what this runtime ({__version__}) and zoo "
                f"'{zoo.name}' give: use the specpilot version {manifest['versions'].get('specpilot')} that "
                "made the bundle, or train again"
            )
    return Bundle(folder, manifest, zoo, Profile.load(folder / PROFILE))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
