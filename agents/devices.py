"""Profiles of devices that are not at hand, built from ratios: ``conf/device``, group key ``built``.

All costs are given in plain decoding steps, so one description serves every zoo. Such a profile says ``simulated``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runtime.errors import UserError
from runtime.profile import Curve, DraftCost, Profile
from runtime.zoo import Zoo

REFERENCE_CONTEXT = 200
"""Tokens of context at which the widths' costs hold."""


@dataclass(frozen=True)
class BuiltDevice:
    """A device as ratios. Costs are in plain decoding steps.

    Attributes:
        name: Of the device.
        plain_ms: A plain decoding step in milliseconds.
        decode_growth: How much more a step costs for every 1,000 tokens of context.
        verify: Forward of the target by width; widths up to 9 at least.
        prefill: Prefilling by number of tokens.
        draft_step: One guess of a draft.
        catch_up: How much more a draft's forward costs for every 1,000 tokens it absorbs.
        load: Loading a draft.
        kv_copy: Storing or restoring the KV of 1,000 tokens in memory.
        kv_disk: Reading or writing the KV of 1,000 tokens on disk.
        decode_slowdown: Factor on decoding while a load is running.
        load_slowdown: Factor on a load while decoding goes on.
    """

    name: str
    plain_ms: float
    decode_growth: float
    verify: Mapping[int, float]
    prefill: Mapping[int, float]
    draft_step: float
    catch_up: float
    load: float
    kv_copy: float
    kv_disk: float
    decode_slowdown: float
    load_slowdown: float

    def __post_init__(self) -> None:
        for name in ("verify", "prefill"):
            curve = getattr(self, name)
            if len(curve) < 2 or list(curve) != sorted(curve) or min(curve.values()) <= 0:
                raise UserError(f"device.built.{name}: expected positive costs by increasing width, got {dict(curve)}")
        for name in ("plain_ms", "draft_step", "load"):
            if getattr(self, name) <= 0:
                raise UserError(f"device.built.{name}: expected a cost above 0, got {getattr(self, name)}")

    def profile(self, zoo: Zoo, threads: int) -> Profile:
        """The device's profile for a zoo."""
        plain_s = self.plain_ms / 1e3

        def per_1000(steps: float) -> Curve:
            return Curve((0.0, 1000.0), (0.0, steps * plain_s))

        def curve(costs: Mapping[int, float]) -> Curve:
            return Curve(tuple(map(float, costs)), tuple(cost * plain_s for cost in costs.values()))

        draft = Curve((1.0, 1001.0), (self.draft_step * plain_s, (self.draft_step + self.catch_up) * plain_s))
        weightless = DraftCost(Curve((1.0,), (0.0,)), 0.0, 0)
        return Profile(
            device=f"{self.name} (simulated)",
            engine="transformers",
            dtype="float32",
            threads=threads,
            target=zoo.target.fingerprint,
            reference_context=REFERENCE_CONTEXT,
            forward=curve(self.verify),
            decode=Curve(
                (REFERENCE_CONTEXT, REFERENCE_CONTEXT + 1000.0),
                (plain_s, plain_s * (1.0 + self.decode_growth)),
            ),
            prefill=curve(self.prefill),
            drafts={
                spec.name: DraftCost(draft, self.load * plain_s, spec.bytes, spec.kv_bytes_per_token)
                if spec.file
                else weightless
                for spec in zoo.drafts
            },
            kv_store=per_1000(self.kv_copy),
            kv_restore=per_1000(self.kv_copy),
            kv_bytes_per_token=zoo.target.kv_bytes_per_token,
            kv_load=per_1000(self.kv_disk),
            kv_save=per_1000(self.kv_disk),
            decode_slowdown=self.decode_slowdown,
            load_slowdown=self.load_slowdown,
            simulated=True,
        )
