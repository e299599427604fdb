"""What only a CUDA device can show."""

from __future__ import annotations

import copy
import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from runtime.engine.draft_file import save_draft
from runtime.engine.graphs.recorder import CudaRecorder, _say
from runtime.engine.graphs.runner import GraphRunner
from runtime.engine.graphs.streams import upload_stream
from runtime.engine.loaded_draft import LoadedDraft, load_draft
from runtime.engine.transformers_model import TransformersModel
from runtime.engine.upload import Upload
from runtime.timing import timed
from tests.engine.families import LONG, NEW_TOKENS, SHORT, decode, drafts, made, reading_network
from tests.tiny import VOCAB, draft_parts, tiny_network

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TOKENS = [int(i) for i in torch.randint(0, VOCAB, (600,), generator=torch.Generator().manual_seed(6))]
CYCLES = 100_000_000
"""Of the device's clock: some tens of milliseconds."""


def moved(network: PreTrainedModel) -> PreTrainedModel:
    network.to(torch.device("cuda"))  # type: ignore[arg-type]
    return network


def on_gpu(graphs: bool | None = None, **changes: Any) -> TransformersModel:
    return TransformersModel(moved(tiny_network(**changes)), graphs=graphs)


def keep_busy() -> None:
    torch.cuda._sleep(20 * CYCLES)  # type: ignore[no-untyped-call]


def drafts_on_gpu(family: str) -> tuple[LoadedDraft, ...]:
    return tuple(replace(draft, net=copy.deepcopy(draft.net).cuda()) for draft in drafts(family))


def write_draft(folder: Path) -> Path:
    parts, path = draft_parts("always"), folder / "always.draft.safetensors"
    save_draft(path, parts.header, parts.vocab, parts.tensors)
    return path


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2", "gemma2"])
@pytest.mark.parametrize("gamma", [0, 4, 8])
def test_graphs_write_what_plain_forwards_write(family: str, gamma: int) -> None:
    texts = [
        decode(TransformersModel(moved(made(family)), graphs=graphs), drafts_on_gpu(family), LONG, gamma, NEW_TOKENS)[0]
        for graphs in (None, False)
    ]
    assert texts[0] == texts[1]


def test_narrow_forwards_are_recorded() -> None:
    model = on_gpu()
    assert isinstance(model._runner, GraphRunner)
    model.forward(TOKENS[:20], "last")
    for width in (1, 2, 5, 9):
        for _ in range(6):
            model.forward(TOKENS[20 : 20 + width], "all")
            model.crop(20)
    assert model._runner.recorded == 4
    assert not model._runner._gave_up


def test_replays_say_what_plain_forwards_say_while_buffers_grow() -> None:
    models = [on_gpu(graphs, max_position_embeddings=600) for graphs in (True, False)]
    for at in range(0, 320, 4):
        rows = [model.forward(TOKENS[at : at + 4], "all") for model in models]
        torch.testing.assert_close(rows[0], rows[1], rtol=0, atol=1e-3)


def test_what_cannot_be_recorded_runs_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    _say.cache_clear()
    model, plain = (TransformersModel(moved(reading_network()), graphs=graphs) for graphs in (True, False))
    with caplog.at_level(logging.WARNING):
        for at in range(0, 40, 4):
            rows = [each.forward(TOKENS[at : at + 4], "all") for each in (model, plain)]
            torch.testing.assert_close(rows[0], rows[1], rtol=0, atol=1e-3)
    assert caplog.text.count("not recorded as CUDA graphs") == 1
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_an_unknown_token_leaves_the_device_usable() -> None:
    model = on_gpu()
    model.forward(TOKENS[:5], "last")
    for unknown in (VOCAB, -1):
        with pytest.raises(IndexError, match="token ids from 0"):
            model.forward([unknown], "last")
    assert model.length == 5
    assert bool(torch.isfinite(model.forward(TOKENS[5:8], "last")).all())


def test_a_load_does_not_wait_for_the_decoding_stream(tmp_path: Path) -> None:
    """And the decoding stream not for the load."""
    path = write_draft(tmp_path)
    device = "cuda:0"
    load_draft(path, device)  # pinned memory and the allocator are warm
    torch.cuda.synchronize()
    busy = torch.cuda.Event()  # type: ignore[no-untyped-call]
    keep_busy()
    busy.record()
    loaded: list[LoadedDraft] = []
    thread = threading.Thread(target=lambda: loaded.append(load_draft(path, device)))
    thread.start()
    thread.join()
    assert not busy.query()  # type: ignore[no-untyped-call]
    expected = load_draft(path).net
    for got, wanted in zip(loaded[0].net.parameters(), expected.parameters(), strict=False):
        assert got.device.type == "cuda"
        torch.testing.assert_close(got.cpu(), wanted)
    torch.cuda.synchronize()


def test_synchronizing_does_not_wait_for_a_load() -> None:
    model = on_gpu()
    model.synchronize()
    stream = upload_stream(torch.device("cuda:0"))
    with torch.cuda.stream(stream):
        keep_busy()
    model.forward(SHORT, "last")
    model.synchronize()
    assert not stream.query()
    torch.cuda.synchronize()


def test_a_draft_is_whole_when_it_is_delivered() -> None:
    upload = Upload("cuda:0")
    with upload.running():
        module = torch.nn.Linear(2048, 2048, bias=False)
        weight = torch.randn(2048, 2048)
        module.weight = torch.nn.Parameter(upload.send(weight, torch.float32), requires_grad=False)
        upload.deliver(module)
    assert upload_stream(torch.device("cuda:0")).query()
    assert torch.equal(module.weight.cpu(), weight)


def test_a_recording_is_made_while_a_load_allocates(tmp_path: Path) -> None:
    path, ended = write_draft(tmp_path), threading.Event()

    def load() -> None:
        while not ended.is_set():
            load_draft(path, "cuda:0")

    thread = threading.Thread(target=load)
    thread.start()
    try:
        for _ in range(10):
            model = on_gpu()
            model.forward(TOKENS[:20], "last")
            for _ in range(6):
                model.forward(TOKENS[20:25], "all")
                model.crop(20)
            assert isinstance(model._runner, GraphRunner)
            assert model._runner.recorded == 1
    finally:
        ended.set()
        thread.join()


def test_events_time_the_work_on_the_device() -> None:
    device = torch.device("cuda:0")
    torch.cuda.synchronize()

    def work() -> None:
        torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]

    by_events = timed({1: work}, 5, torch.cuda.synchronize, device=device)[1].seconds
    by_clock = timed({1: work}, 5, torch.cuda.synchronize)[1].seconds
    assert by_events == pytest.approx(by_clock, rel=0.1)
    assert timed({1: lambda: None}, 5, torch.cuda.synchronize, device=device)[1].seconds < 1e-3


def test_a_recorder_says_that_it_failed(caplog: pytest.LogCaptureFixture) -> None:
    recorder = CudaRecorder(torch.device("cuda:0"))
    number = torch.ones((), device="cuda")
    with caplog.at_level(logging.WARNING):
        assert recorder.record(lambda: number * float(number)) is None
    assert recorder.failed
    assert float(number + 1) == 2.0  # the device goes on
