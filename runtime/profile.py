"""A device's measured costs, and the cost model that interpolates them.

Written by ``specpilot profile``, read by replay, by controllers that weigh costs, and by the bundle. All times are
seconds of device-synchronised wall time; ``spread`` values are half the inter-quartile range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.errors import UserError
from runtime.files import read_json, write_json

PROFILE_SCHEMA = 2
"""2: ``kv_load`` and ``kv_save``. A profile of schema 1 is read; what it lacks is estimated from its draft loads."""


@dataclass(frozen=True)
class Curve:
    """A cost as a piecewise linear function, extended linearly at both ends and never below zero.

    Attributes:
        x: Increasing widths or contexts, in tokens.
        seconds: Median at each ``x``.
        spread: Half the inter-quartile range at each ``x``.
    """

    x: tuple[float, ...]
    seconds: tuple[float, ...]
    spread: tuple[float, ...] = ()

    def at(self, x: float) -> float:
        """Seconds at ``x``."""
        xs, ys = self.x, self.seconds
        if len(xs) == 1:
            return ys[0]
        index = 1
        while index < len(xs) - 1 and x > xs[index]:
            index += 1
        slope = (ys[index] - ys[index - 1]) / (xs[index] - xs[index - 1])
        return max(0.0, ys[index - 1] + slope * (x - xs[index - 1]))


@dataclass(frozen=True)
class DraftCost:
    """Measured costs of one draft.

    Attributes:
        forward: Seconds of one forward by width (1 = one guess; wider = catch-up).
        load_s: From storage to usable, with nothing else running.
        bytes: Compute memory while resident, without KV.
        kv_bytes_per_token: Size of its KV for one token.
    """

    forward: Curve
    load_s: float
    bytes: int
    kv_bytes_per_token: int = 0


@dataclass(frozen=True)
class Profile:
    """Everything measured on one device.

    Attributes:
        device: Human-readable device name.
        engine: Engine that was measured.
        dtype: Dtype of the target.
        threads: CPU threads used.
        versions: Library versions.
        simulated: True if the numbers were built, not measured.
        target: Fingerprint of the target's weights.
        reference_context: Context at which ``forward`` was measured.
        forward: Seconds of a target forward by width, 1 up to at least 9, at ``reference_context``.
        decode: Seconds of a width-1 forward by context.
        prefill: Seconds of prefilling by number of prompt tokens.
        drafts: Costs by draft name.
        kv_store: Seconds to copy out the KV by tokens.
        kv_restore: Seconds to bring a stored KV from memory back into use by tokens.
        kv_load: Seconds to read a stored KV from disk into memory by tokens; None = not measured.
        kv_save: Seconds to write a stored KV to disk by tokens; None = not measured.
        round_overhead_s: Time of a round outside model forwards.
        decode_slowdown: Factor on forwards while a load is running, at least 1.
        load_slowdown: Factor on a load while decoding goes on, at least 1.
        kv_bytes_per_token: Size of the target's KV for one token.
    """

    device: str
    engine: str
    dtype: str
    threads: int
    target: str
    reference_context: int
    forward: Curve
    decode: Curve
    prefill: Curve
    drafts: Mapping[str, DraftCost]
    kv_store: Curve
    kv_restore: Curve
    kv_bytes_per_token: int
    kv_load: Curve | None = None
    kv_save: Curve | None = None
    round_overhead_s: float = 0.0
    decode_slowdown: float = 1.0
    load_slowdown: float = 1.0
    simulated: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write the profile as JSON, aside first."""
        write_json(path, self.to_json())

    def to_json(self) -> dict[str, Any]:
        """All of it as a JSON object; ``from_json`` reads it."""
        return {"schema": PROFILE_SCHEMA, **asdict(self)}

    @classmethod
    def load(cls, path: Path) -> Profile:
        """Read a profile.

        Raises:
            UserError: If the file is missing, corrupt or of another schema.
        """
        return cls.from_json(read_json(path, "profile", PROFILE_SCHEMA, oldest=1), str(path))

    @classmethod
    def from_json(cls, data: Mapping[str, Any], where: str) -> Profile:
        """Build a profile from its JSON object; ``where`` names the source in messages."""
        fields = {key: value for key, value in data.items() if key != "schema"}
        try:
            for name in ("forward", "decode", "prefill", "kv_store", "kv_restore"):
                fields[name] = _curve(fields[name])
            for name in ("kv_load", "kv_save"):
                fields[name] = _curve(fields[name]) if fields.get(name) else None
            fields["drafts"] = {
                name: DraftCost(**{**cost, "forward": _curve(cost["forward"])})
                for name, cost in fields["drafts"].items()
            }
            return cls(**fields)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{where}: not a whole profile ({error}): run `specpilot profile` again") from None


def _curve(data: Mapping[str, Any]) -> Curve:
    curve = Curve(*(tuple(map(float, data.get(name, ()))) for name in ("x", "seconds", "spread")))
    if not curve.x or len(curve.x) != len(curve.seconds) or list(curve.x) != sorted(set(curve.x)):
        raise ValueError(f"a curve needs increasing x and as many seconds, got {len(curve.x)} and {len(curve.seconds)}")
    return curve


class CostModel:
    """Answers what a piece of work costs on the profiled device. All answers in seconds."""

    def __init__(self, profile: Profile, draft_names: tuple[str, ...]) -> None:
        missing = [name for name in draft_names if name not in profile.drafts]
        if missing:
            raise UserError(
                f"the profile of {profile.device} has no costs for {', '.join(missing)} (it has "
                f"{', '.join(profile.drafts)}): run `specpilot profile` for this zoo"
            )
        self.profile = profile
        self.costs = tuple(profile.drafts[name] for name in draft_names)
        self._reference_s = profile.decode.at(profile.reference_context)
        self._plain: dict[int, float] = {}
        self._draft: tuple[dict[int, float], ...] = tuple({} for _ in draft_names)

    def forward_s(self, width: int, context: int) -> float:
        """A target forward of ``width`` tokens behind ``context`` tokens.

        What a longer context adds is reading its KV, which does not depend on the width.
        """
        decode_s = self.profile.decode.at(context)
        if width == 1:
            return decode_s
        longer: float = decode_s - self._reference_s
        return self.profile.forward.at(width) + longer

    def plain_s(self, context: int) -> float:
        """One token by plain decoding, behind ``context`` tokens."""
        answer = self._plain.get(context)
        if answer is None:
            answer = self._plain[context] = self.profile.decode.at(context) + self.profile.round_overhead_s
        return answer

    def prefill_s(self, tokens: int, context: int) -> float:
        """Prefilling ``tokens`` prompt tokens behind ``context`` reused ones."""
        prefill = self.profile.prefill
        return (
            max(prefill.at(context + tokens) - prefill.at(context), prefill.at(tokens))
            if context
            else prefill.at(tokens)
        )

    def draft_s(self, draft: int, width: int) -> float:
        """A forward of a draft over ``width`` tokens."""
        answer = self._draft[draft].get(width)
        if answer is None:
            answer = self._draft[draft][width] = self.costs[draft].forward.at(width)
        return answer

    def load_s(self, draft: int) -> float:
        """Bringing a draft from storage while nothing else runs."""
        return self.costs[draft].load_s

    def kv_store_s(self, tokens: int) -> float:
        """Copying out the KV of ``tokens`` tokens."""
        return self.profile.kv_store.at(tokens)

    def kv_restore_s(self, tokens: int) -> float:
        """Bringing a stored KV of ``tokens`` tokens back into use."""
        return self.profile.kv_restore.at(tokens)

    def kv_load_s(self, tokens: int) -> float:
        """Reading a stored KV of ``tokens`` tokens from disk into memory."""
        return self._disk_s(self.profile.kv_load, tokens)

    def kv_save_s(self, tokens: int) -> float:
        """Writing a stored KV of ``tokens`` tokens to disk."""
        return self._disk_s(self.profile.kv_save, tokens)

    def _disk_s(self, measured: Curve | None, tokens: int) -> float:
        """As measured, else at the pace at which drafts are loaded."""
        if measured is not None:
            return measured.at(tokens)
        paces = [cost.load_s / cost.bytes for cost in self.costs if cost.bytes]
        return tokens * self.profile.kv_bytes_per_token * (sum(paces) / len(paces) if paces else 0.0)

    @cached_property
    def step_ratios(self) -> npt.NDArray[np.float32]:
        """Width-1 draft forward / plain decode step, shape (drafts,)."""
        plain_s = self.plain_s(self.profile.reference_context)
        return np.array([cost.forward.at(1) / plain_s for cost in self.costs], dtype=np.float32)

    @cached_property
    def load_ratios(self) -> npt.NDArray[np.float32]:
        """Load / plain decode step, shape (drafts,)."""
        plain_s = self.plain_s(self.profile.reference_context)
        return np.array([cost.load_s / plain_s for cost in self.costs], dtype=np.float32)

    def verify_ratios(self, gammas: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """(Verify forward of gamma + 1 tokens) / plain decode step, shape (gammas,)."""
        context = self.profile.reference_context
        plain_s = self.plain_s(context)
        return np.array([self.forward_s(g + 1, context) / plain_s for g in gammas], dtype=np.float32)
