"""What every engine promises (``runtime/engine/base.py``), tried on every engine there is.

The reference is the engine itself without any cache of its own: the whole sequence forwarded at once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from runtime.core import BLOCK_TOKENS
from runtime.engine.base import TargetModel
from runtime.engine.kv_state import KVState
from runtime.engine.llamacpp.library import is_installed
from runtime.engine.llamacpp.model import LlamaCppModel
from runtime.engine.transformers_model import TransformersModel
from runtime.kv_folder import KVFolder
from runtime.memory.kv_tree import KVTree
from tests.engine.graphs.tape import Tape, recorded_model
from tests.tiny import VOCAB, tiny_network
from tests.tiny_gguf import write_gguf_and_folder

LIMIT = 160
"""Context of the tiny model, tokens."""
TOKENS = [int(i) for i in torch.randint(0, VOCAB, (LIMIT,), generator=torch.Generator().manual_seed(2))]
FIXED, RECORDED = "transformers, fixed", "transformers, recorded"
"""With narrow forwards on fixed buffers, and with those replayed from a tape as a CUDA graph would be."""
TOLERANCE = {"transformers": 1e-4, FIXED: 1e-4, RECORDED: 1e-4, "llamacpp": 0.02}
"""Of logits that spread over about 10: fp32, and keys and values in fp16."""
needs_llamacpp = pytest.mark.skipif(not is_installed(), reason="llama-cpp-python is not installed")

Make = Callable[[], TargetModel]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_gguf_and_folder(tmp_path_factory.mktemp("gguf"))


@pytest.fixture(
    scope="module", params=["transformers", FIXED, RECORDED, pytest.param("llamacpp", marks=needs_llamacpp)]
)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def make(engine: str, request: pytest.FixtureRequest) -> Make:
    """Opens the same random weights in the engine."""
    if engine == "transformers":
        return lambda: TransformersModel(tiny_network())
    if engine == FIXED:
        return lambda: TransformersModel(tiny_network(), graphs=True)
    if engine == RECORDED:
        return lambda: recorded_model(tiny_network(), Tape())
    path, folder = request.getfixturevalue("files")
    return lambda: LlamaCppModel.load(path, folder, threads=1)


@pytest.fixture
def model(make: Make) -> TargetModel:
    return make()


@pytest.fixture
def close(engine: str) -> Callable[[torch.Tensor, torch.Tensor], None]:
    tolerance = TOLERANCE[engine]
    return lambda got, expected: torch.testing.assert_close(got, expected, rtol=0, atol=tolerance)


Close = Callable[[torch.Tensor, torch.Tensor], None]


def whole(make: Make, tokens: list[int]) -> torch.Tensor:
    """Logits behind every token, by one forward of a fresh model."""
    return make().forward(tokens, "all")


def blocks(model: TargetModel, tokens: int) -> list[KVState]:
    """The KV of the first tokens, block by block."""
    return [model.export_kv(at, min(at + BLOCK_TOKENS, tokens)) for at in range(0, tokens, BLOCK_TOKENS)]


# -- forwards ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 2, 3, 5, 9, 40])
def test_any_width_gives_the_same_logits(make: Make, model: TargetModel, close: Close, width: int) -> None:
    count = 80
    expected = whole(make, TOKENS[:count])
    parts = [model.forward(TOKENS[at : min(at + width, count)], "all") for at in range(0, count, width)]
    assert model.length == count
    close(torch.cat(parts), expected)
    assert expected.std() > 50 * TOLERANCE["llamacpp"]  # else anything would be close


def test_last_is_the_last_of_all(make: Make, model: TargetModel, close: Close) -> None:
    expected = whole(make, TOKENS[:70])
    last = model.forward(TOKENS[:70], "last")
    assert last.shape == (1, VOCAB)
    assert last.dtype == torch.float32
    close(last[0], expected[-1])


def test_logits_stay_when_more_is_forwarded(model: TargetModel) -> None:
    first = model.forward(TOKENS[:5], "all")
    before = first.clone()
    model.forward(TOKENS[5:10], "all")
    assert torch.equal(first, before)


def test_the_same_forward_gives_the_same_bits(model: TargetModel) -> None:
    model.forward(TOKENS[:30], "last")
    once = model.forward(TOKENS[30:35], "all")
    model.crop(30)
    assert torch.equal(model.forward(TOKENS[30:35], "all"), once)


# -- roll-back ---------------------------------------------------------------------------------------------------


def test_rejected_guesses_leave_no_trace(make: Make, model: TargetModel, close: Close) -> None:
    expected = whole(make, TOKENS[:60])
    got = [model.forward(TOKENS[:20], "all")]
    for at in range(20, 60, 4):
        model.forward(TOKENS[90 : 90 + at % 7 + 1], "all")  # guesses
        model.crop(at)
        got.append(model.forward(TOKENS[at : at + 4], "all"))
    close(torch.cat(got), expected)


def test_cropping_less_than_there_is_does_nothing(model: TargetModel) -> None:
    model.forward(TOKENS[:8], "last")
    model.crop(20)
    assert model.length == 8
    with pytest.raises(ValueError, match="at least 0"):
        model.crop(-1)
    model.reset()
    assert model.length == 0


# -- stored KV ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 31, 32, 33, 64, 75, 96])
def test_blocks_compose_to_any_prefix(make: Make, model: TargetModel, close: Close, length: int) -> None:
    expected = whole(make, TOKENS[:110])
    model.forward(TOKENS[:100], "last")
    states = blocks(model, 96)
    assert [state.length for state in states] == [BLOCK_TOKENS] * 3
    other = make()
    other.forward(TOKENS[70:110], "last")  # something else is forgotten
    other.import_kv(states, length)
    assert other.length == length
    close(other.forward(TOKENS[length:110], "all"), expected[length:])


def test_blocks_of_two_texts_share_their_beginning(make: Make, model: TargetModel, close: Close) -> None:
    fork = TOKENS[:64] + TOKENS[100:140]
    model.forward(TOKENS[:64], "last")
    shared = blocks(model, 64)
    model.forward(TOKENS[64:100], "last")
    own = blocks(model, 96)[2:]
    model.import_kv(shared, 64)
    model.forward(fork[64:], "last")
    theirs = blocks(model, 96)[2:]
    for tokens, behind in ((TOKENS[:100], own), (fork[:100], theirs)):
        model.import_kv([*shared, *behind], 96)
        close(model.forward(tokens[96:], "all"), whole(make, tokens)[96:])


def test_copying_out_changes_nothing(make: Make, model: TargetModel) -> None:
    control = make()
    for each in (model, control):
        each.forward(TOKENS[:50], "last")
    model.export_kv(10, 40)
    model.export_kv(0, 50)
    assert model.length == 50
    assert torch.equal(model.forward(TOKENS[50:55], "all"), control.forward(TOKENS[50:55], "all"))


def test_a_state_is_never_changed(model: TargetModel) -> None:
    model.forward(TOKENS[:40], "last")
    state = model.export_kv(0, 32)
    before = state.buffer.clone()
    model.crop(3)
    model.forward(TOKENS[60:90], "last")
    model.import_kv([state], 20)
    model.forward(TOKENS[60:70], "last")
    assert torch.equal(state.buffer, before)


def test_a_block_weighs_what_is_said(model: TargetModel) -> None:
    model.forward(TOKENS[:70], "last")
    weight = model.kv_bytes_per_token * BLOCK_TOKENS
    assert weight - BLOCK_TOKENS <= model.export_kv(32, 64).bytes <= weight


def test_blocks_come_back_from_disk(make: Make, model: TargetModel, close: Close, tmp_path: Path) -> None:
    model.forward(TOKENS[:70], "last")
    tree = KVTree()
    node, nodes = tree.root, []
    for at, state in zip((0, 32), blocks(model, 64), strict=True):
        node = tree.add(node, tuple(TOKENS[at : at + BLOCK_TOKENS]))
        node.payload = state
        nodes.append(node)
    disk = KVFolder(tmp_path, model.kv_name)
    disk.write(nodes)
    states = disk.read(nodes)
    assert [state.shapes for state in states] == [node.payload.shapes for node in nodes]
    model.import_kv(states, 64)
    close(model.forward(TOKENS[64:70], "all"), whole(make, TOKENS[:70])[64:])


def test_wrong_ranges_are_refused(model: TargetModel) -> None:
    model.forward(TOKENS[:40], "last")
    for start, end in ((0, 41), (5, 5), (-1, 4)):
        with pytest.raises(ValueError, match="within 0 to 40"):
            model.export_kv(start, end)
    states = [model.export_kv(0, 32)]
    for length in (0, 33):
        with pytest.raises(ValueError, match="1 to 32"):
            model.import_kv(states, length)
    assert model.length == 40


# -- limits and failures -----------------------------------------------------------------------------------------


def test_a_failed_forward_leaves_the_sequence(make: Make, model: TargetModel, close: Close) -> None:
    model.forward(TOKENS[:50], "last")
    with pytest.raises(ValueError, match=f"at most {LIMIT} tokens"):
        model.forward(TOKENS[:120], "last")
    with pytest.raises(ValueError, match="at least one token"):
        model.forward([], "last")
    for unknown in (VOCAB, VOCAB + 1000, -VOCAB - 1):
        with pytest.raises(IndexError):
            model.forward([3, unknown], "all")
    assert model.length == 50
    close(model.forward(TOKENS[50:60], "all"), whole(make, TOKENS[:60])[50:])


def test_an_interrupted_forward_leaves_the_sequence(
    make: Make, model: TargetModel, engine: str, close: Close, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.forward(TOKENS[:20], "last")
    part, name = (model._native, "decode") if engine == "llamacpp" else (model.model, "forward")  # type: ignore[attr-defined]
    plain = getattr(part, name)

    def interrupted(*arguments: object, **named: object) -> None:
        plain(*arguments, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(part, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.forward(TOKENS[60:90], "all")
    monkeypatch.undo()
    assert model.length == 20
    close(model.forward(TOKENS[20:30], "all"), whole(make, TOKENS[:30])[20:])


def test_the_whole_context_can_be_used(make: Make, model: TargetModel, close: Close) -> None:
    assert model.context_limit == LIMIT
    expected = whole(make, TOKENS)[-1]
    model.forward(TOKENS[:-1], "last")
    close(model.forward(TOKENS[-1:], "last")[0], expected)
    states = blocks(model, LIMIT)
    model.import_kv(states, LIMIT - 1)
    close(model.forward(TOKENS[-1:], "last")[0], expected)
    with pytest.raises(ValueError, match="at most"):
        model.forward([1], "last")


# -- what it says of itself --------------------------------------------------------------------------------------


def test_every_engine_has_the_same_table_and_fingerprint(model: TargetModel) -> None:
    reference = TransformersModel(tiny_network())
    rows = model.embed(TOKENS[:7])
    assert rows.shape == (1, 7, 32)
    assert torch.equal(rows.float(), reference.embed(TOKENS[:7]))
    assert model.fingerprint == reference.fingerprint


def test_sizes(model: TargetModel, engine: str) -> None:
    assert model.vocab_size == VOCAB
    assert model.device.type == "cpu"
    assert model.engine == engine.split(",")[0]
    assert model.weight_bytes >= 4 * VOCAB * 32
    assert model.fingerprint in model.kv_name
    assert model.guard_margin is None or model.guard_margin > 0
    model.synchronize()
