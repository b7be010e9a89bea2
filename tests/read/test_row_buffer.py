"""The buffer of a fetch: reused on a CPU, and for CUDA pinned and never written before its last copy is done."""

import numpy as np
import pytest
import torch

from comem_cli.read.buffer import RowBuffer

WIDTH = 8


def rows(tokens: int, seed: int) -> torch.Tensor:
    return torch.randn(tokens, WIDTH, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(seed))


def writes(wanted: torch.Tensor):
    def fetch(out: memoryview) -> None:
        np.asarray(out)[:] = wanted.view(torch.uint16).numpy()

    return fetch


def test_on_a_cpu_rows_are_the_buffer_itself_which_grows_and_is_reused():
    buffer = RowBuffer(WIDTH, torch.device("cpu"))
    first = buffer.fill(5, writes(rows(5, 0)))
    assert torch.equal(first, rows(5, 0))
    shorter = buffer.fill(3, writes(rows(3, 1)))
    assert torch.equal(shorter, rows(3, 1))
    assert shorter.data_ptr() == first.data_ptr()
    assert torch.equal(buffer.fill(9, writes(rows(9, 2))), rows(9, 2))


class Stream:
    """A CUDA stream whose copies happen when somebody waits for them, and no sooner."""

    def __init__(self) -> None:
        self.waiting: list[tuple[torch.Tensor, torch.Tensor]] = []

    def run(self) -> None:
        while self.waiting:
            target, source = self.waiting.pop()
            target.copy_(source)


@pytest.fixture
def stream(monkeypatch):
    """Let tensors "move" to cuda:1 through a `Stream`; pinned memory is plain memory that is counted."""
    stream, empty = Stream(), torch.empty
    stream.pinned = []

    class Event:
        def record(self, on):
            assert on is stream

        def synchronize(self):
            stream.run()

    def move(source, device, non_blocking=False):
        assert (device, non_blocking) == (torch.device("cuda:1"), True)
        stream.waiting.append((torch.zeros_like(source), source))
        return stream.waiting[-1][0]

    def allocate(*size, dtype, pin_memory=False):
        stream.pinned += [size] if pin_memory else []
        return empty(*size, dtype=dtype)

    monkeypatch.setattr(torch, "empty", allocate)
    monkeypatch.setattr(torch.Tensor, "to", move)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    return stream


def test_for_cuda_the_buffer_is_pinned_and_written_only_when_its_last_copy_is_done(stream):
    wanted = [rows(5, 0), rows(5, 1), rows(9, 2)]
    buffer = RowBuffer(WIDTH, torch.device("cuda:1"))
    moved = []
    for one in wanted:
        moved.append(buffer.fill(len(one), writes(one)))
        assert len(stream.waiting) == 1  # nobody waited for the copy of these rows
    stream.run()
    assert all(torch.equal(found, one) for found, one in zip(moved, wanted, strict=True))
    assert stream.pinned == [(5, WIDTH), (9, WIDTH)]


def test_a_fetch_that_fails_leaves_the_next_one_to_wait_as_well(stream):
    first, last = rows(5, 0), rows(5, 1)
    buffer = RowBuffer(WIDTH, torch.device("cuda:1"))
    moved = buffer.fill(5, writes(first))

    def broken(out: memoryview) -> None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        buffer.fill(5, broken)
    buffer.fill(5, writes(last))
    assert torch.equal(moved, first)
