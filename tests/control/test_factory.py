"""Controllers by name."""

from __future__ import annotations

import pytest

from runtime.control.adaedl import AdaEdlController
from runtime.control.base import Controller
from runtime.control.dynamic import HfDynamicController
from runtime.control.factory import NAMES as CHOICES
from runtime.control.factory import make_controller
from runtime.control.memspec import MemSpecController
from runtime.control.memspec_ablations import MemSpecNoMemoryController, MemSpecNoPredictionController
from runtime.control.rakv_asd import RakvAsdController
from runtime.control.stacked import StackedController
from runtime.control.static import StaticController
from runtime.errors import UserError
from tests.control.observing import see
from tests.factories import NAMES, make_costs

KINDS: dict[str, type[Controller]] = {
    "plain": StaticController,
    "plain_reuse": StaticController,
    "static:math:4:1": StaticController,
    "hf_dynamic:math": HfDynamicController,
    "adaedl:math": AdaEdlController,
    "memspec": MemSpecController,
    "memspec:4": MemSpecController,
    "memspec_no_memory": MemSpecNoMemoryController,
    "memspec_no_memory:4": MemSpecNoMemoryController,
    "memspec_no_prediction": MemSpecNoPredictionController,
    "memspec_no_prediction:4": MemSpecNoPredictionController,
    "rakv_asd": RakvAsdController,
    "rakv_asd:math": RakvAsdController,
    "stacked": StackedController,
    "stacked_plus": StackedController,
}


def make(name: str) -> Controller:
    return make_controller(name, NAMES, make_costs(), (0.2, 0.5, 0.4))


@pytest.mark.parametrize("name", KINDS)
def test_every_name_builds_its_controller(name: str) -> None:
    controller = make(name)
    assert type(controller) is KINDS[name]
    assert controller.name == name or controller.name == name.split(":")[0]
    assert name.split(":")[0] in CHOICES
    seen = see(drafts={"predicted": (0.1, 0.9, 0.1), "acceptance": (0.1, 0.9, 0.1)})
    decision = controller.decide(seen)
    assert decision.draft == (None if name.startswith("plain") else 1)
    if name.endswith(":4"):
        assert decision.gamma == 4


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf_dynamic", "unknown controller 'hf_dynamic': expected one of policy, plain, .*hf_dynamic:<draft>"),
        ("adaedl:greek", "controller 'adaedl:greek': no draft 'greek' in this zoo, it has code, math, lookup"),
        ("memspec_no_memory:5", r"controller 'memspec_no_memory:5': expected one of \(1, 2, 4, 8\), got '5'"),
        ("stacked:4", "unknown controller 'stacked:4': expected one of policy, plain, .*stacked_plus$"),
        ("hf_dynamic:math:2", "unknown controller 'hf_dynamic:math:2'"),
    ],
)
def test_a_name_that_is_not_known_is_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make(name)
