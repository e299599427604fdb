"""Controllers by name, as commands and reports write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runtime.control.adaedl import AdaEdlController
from runtime.control.base import Controller
from runtime.control.dynamic import HfDynamicController
from runtime.control.guarded import GuardedController
from runtime.control.memspec import MemSpecController
from runtime.control.memspec_ablations import MemSpecNoMemoryController, MemSpecNoPredictionController
from runtime.control.rakv_asd import RakvAsdController
from runtime.control.stacked import StackedController
from runtime.control.static import StaticController, plain_controller
from runtime.core import GAMMAS, STOP_LEVELS, DraftSpec
from runtime.errors import UserError
from runtime.profile import CostModel

NAMES = (
    "policy, plain, plain_reuse, static:<draft>:<gamma>[:<stop level>], hf_dynamic:<draft>, adaedl:<draft>, "
    "memspec[:<gamma>], memspec_no_memory[:<gamma>], memspec_no_prediction[:<gamma>], rakv_asd[:<draft>], stacked, "
    "stacked_plus"
)

MEMSPEC_GAMMA = 2
"""Draft length of MemSpec and its ablations if a name says nothing of it."""


def make_controller(
    name: str,
    draft_names: tuple[str, ...],
    costs: CostModel,
    expected: tuple[float, ...],
    policy: Callable[[], Controller] | None = None,
) -> Controller:
    """Build a controller.

    Args:
        name: One of ``NAMES``.
        draft_names: Drafts of the zoo, in index order.
        costs: Costs of the device.
        expected: Mean training acceptance of every draft: ``rakv_asd`` without a draft takes the best, and
            ``memspec_no_prediction`` starts from it.
        policy: Builds the frozen policy; None if there is no bundle.

    Raises:
        UserError: If the name, a draft or a number in it is not known.
    """
    kind, *parts = name.split(":")
    n = len(draft_names)
    if kind == "policy":
        if policy is None:
            raise UserError("controller 'policy' needs a bundle: pass --bundle, or choose another controller")
        return policy()
    if kind == "plain" and not parts:
        return plain_controller(n)
    if kind == "plain_reuse" and not parts:
        return plain_controller(n, reuse_kv=True)
    if kind == "static" and len(parts) in (2, 3):
        stop = _number(name, parts[2], tuple(range(len(STOP_LEVELS)))) if len(parts) == 3 else 0
        return StaticController(
            n, _draft(name, parts[0], draft_names), _number(name, parts[1], GAMMAS), stop, name=name
        )
    if kind in ("memspec", "memspec_no_memory", "memspec_no_prediction") and len(parts) <= 1:
        return _memspec(kind, _number(name, parts[0], GAMMAS) if parts else MEMSPEC_GAMMA, expected)
    if kind in ("rakv_asd", "hf_dynamic", "adaedl") and len(parts) == 1:
        return _with_draft(name, _draft(name, parts[0], draft_names), n, costs)
    if kind == "rakv_asd" and not parts:
        return RakvAsdController(n, max(range(n), key=lambda i: expected[i]), costs)
    if kind in ("stacked", "stacked_plus") and not parts:
        return StackedController(n, costs, plus=kind == "stacked_plus")
    raise UserError(f"unknown controller {name!r}: expected one of {NAMES}")


def guard(inner: Controller, drafts: Sequence[DraftSpec], costs: CostModel) -> GuardedController:
    """Watch a controller; RAKV-ASD with the draft that was right most often in training takes over where it is lost."""
    best = max(range(len(drafts)), key=lambda i: drafts[i].expected)
    return GuardedController(inner, RakvAsdController(len(drafts), best, costs), costs)


def _memspec(kind: str, gamma: int, expected: tuple[float, ...]) -> Controller:
    """MemSpec or one of its ablations."""
    if kind == "memspec_no_memory":
        return MemSpecNoMemoryController(len(expected), gamma)
    if kind == "memspec_no_prediction":
        return MemSpecNoPredictionController(expected, gamma)
    return MemSpecController(len(expected), gamma)


def _with_draft(name: str, draft: int, n_drafts: int, costs: CostModel) -> Controller:
    """The controllers that adapt the length of one draft."""
    if name.startswith("hf_dynamic"):
        return HfDynamicController(n_drafts, draft, name=name)
    if name.startswith("adaedl"):
        return AdaEdlController(n_drafts, draft, name=name)
    return RakvAsdController(n_drafts, draft, costs)


def _draft(name: str, draft: str, draft_names: tuple[str, ...]) -> int:
    if draft not in draft_names:
        raise UserError(f"controller {name!r}: no draft {draft!r} in this zoo, it has {', '.join(draft_names)}")
    return draft_names.index(draft)


def _number(name: str, text: str, allowed: tuple[int, ...]) -> int:
    if not text.isdecimal() or int(text) not in allowed:
        raise UserError(f"controller {name!r}: expected one of {allowed}, got {text!r}")
    return int(text)
