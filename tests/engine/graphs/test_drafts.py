"""Drafts guess the same on fixed buffers, and a draft's weights go to its device."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from runtime.decoding.drafters.model import ModelDrafter
from runtime.engine.draft_sequence import TorchSequence
from runtime.engine.graphs.eager import EagerRunner
from runtime.engine.graphs.runner import GraphRunner
from runtime.engine.upload import Upload
from tests.engine.families import FAMILIES, LONG, draft_of, made
from tests.engine.graphs.tape import Tape
from tests.tiny import VOCAB

EOS: tuple[int, ...] = ()


def sequence_on_tape(sequence: TorchSequence) -> Tape:
    tape = Tape()
    assert isinstance(sequence._runner, GraphRunner)
    sequence._runner._recorder = tape
    return tape


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["good", "random"])
def test_guesses_are_the_same(family: str, kind: str) -> None:
    network = made(family)
    draft, table = draft_of(network, kind), network.get_input_embeddings()

    def embed(tokens: object) -> torch.Tensor:
        rows: torch.Tensor = table(torch.tensor([tokens]))
        return rows

    plain, recorded = ModelDrafter(draft, embed, VOCAB), ModelDrafter(draft, embed, VOCAB)
    assert isinstance(plain._sequence._runner, EagerRunner)  # type: ignore[attr-defined]
    recorded._sequence = TorchSequence(draft.net, graphs=True)
    tape = sequence_on_tape(recorded._sequence)
    text = list(LONG[:12])
    for number in range(12):
        expected, got = (drafter.propose(text, 0, 4, 0.0, EOS) for drafter in (plain, recorded))
        assert got.tokens == expected.tokens
        assert got.scored == expected.scored
        assert got.confidence == pytest.approx(expected.confidence, abs=1e-4)
        text += [*expected.tokens[: number % 5], LONG[number]]  # some are accepted, the rest is taken back
        for drafter in (plain, recorded):
            drafter.settle(len(text) - 1)
    assert tape.replays > 12
    assert not tape.failed


def test_on_cpu_a_weight_is_taken_as_it_is() -> None:
    upload, weight = Upload("cpu"), torch.randn(3, 4)
    with upload.running():
        assert upload.send(weight, torch.float32) is weight
        assert upload.send(weight, torch.bfloat16).dtype == torch.bfloat16
    upload.deliver(nn.Linear(3, 4))
