"""Profiles of devices that are not at hand, built from ratios: ``conf/device``, group key ``built``.

All costs are given in plain decoding steps, so one description serves every zoo. Such a profile says ``simulated``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any

from runtime.core import GAMMAS
from runtime.errors import UserError
from runtime.profile import Curve, DraftCost, Profile
from runtime.zoo import Zoo

REFERENCE_CONTEXT = 200
"""Tokens of context at which the widths' costs hold."""
WIDEST = GAMMAS[-1] + 1
"""Tokens of the widest verification."""
POSITIVE = ("plain_ms", "draft_step", "load", "decode_slowdown", "load_slowdown")
AT_LEAST_ZERO = ("decode_growth", "catch_up", "kv_copy", "kv_disk")


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
        if problems := tuple(self._problems()):
            raise UserError("; ".join(problems))

    def _problems(self) -> Iterator[str]:
        for name in ("verify", "prefill"):
            curve = getattr(self, name)
            if not isinstance(curve, Mapping) or not all(_number(x) for pair in curve.items() for x in pair):
                yield f"device.built.{name}: expected costs by width as {{1: 1.0, 2: 1.1}}, got {curve!r}"
            elif len(curve) < 2 or list(curve) != sorted(curve) or min(curve.values()) <= 0:
                yield f"device.built.{name}: expected positive costs by increasing width, got {dict(curve)}"
            elif name == "verify" and max(curve) < WIDEST:
                yield f"device.built.verify: expected widths up to {WIDEST} at least, got {', '.join(map(str, curve))}"
        for names, above, expected in ((POSITIVE, True, "above 0"), (AT_LEAST_ZERO, False, "of at least 0")):
            for name in names:
                value = getattr(self, name)
                if not _number(value) or value < 0 or (above and value == 0):
                    yield f"device.built.{name}: expected a number {expected}, got {value!r}"

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


def built_device(ratios: Mapping[str, Any]) -> BuiltDevice:
    """The device that the group key ``built`` describes.

    Raises:
        UserError: If a ratio is missing, unknown or impossible; all of them are told.
    """
    known = [field.name for field in fields(BuiltDevice)]
    wrong = [f"device.built.{name}: no such key" for name in ratios if name not in known]
    wrong += [f"device.built.{name}: missing" for name in known if name not in ratios]
    if wrong:
        raise UserError(f"{'; '.join(wrong)}: expected {', '.join(known)}, see conf/device/jetson-orin-nano.yaml")
    return BuiltDevice(**ratios)


def _number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
