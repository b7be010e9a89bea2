"""Preparing files ahead against preparing each in its turn: same results, bounded, and no thread is left."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from comem_cli.corpus import ahead
from comem_cli.corpus.walk import SourceFile

WAIT = 20.0  # seconds until a test gives up


def files(*sizes: int) -> list[SourceFile]:
    return [SourceFile(Path("/root"), f"{number}", size, 0) for number, size in enumerate(sizes)]


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("comem-read")]


def drained(sources, prepare):
    with closing(ahead.in_order(sources, prepare)) as found:
        return [(source, get()) for source, get in found]


@pytest.mark.parametrize("bounds", [(256, 4 << 20, 1 << 20), (1, 10, 5), (3, 40, 20), (256, 0, -1)])
def test_results_are_those_of_each_file_in_its_turn(monkeypatch, bounds):
    for name, value in zip(("AHEAD_FILES", "AHEAD_BYTES", "LARGEST"), bounds, strict=True):
        monkeypatch.setattr(ahead, name, value)
    sources = files(3, 50, 0, 7, 21, 19, 20, 1, 1, 1, 90, 2)
    assert drained(sources, lambda source: source.size**2) == [(source, source.size**2) for source in sources]
    assert not readers()


def test_the_next_file_is_prepared_while_the_caller_works_on_this_one():
    ready = {source.path: threading.Event() for source in files(1, 1, 1, 1)}
    with closing(ahead.in_order(files(1, 1, 1, 1), lambda source: ready[source.path].set())) as found:
        for source, get in found:
            get()
            following = ready.get(str(int(source.path) + 1))
            assert following is None or following.wait(WAIT)


@pytest.mark.parametrize(("bound", "value", "begun"), [("AHEAD_FILES", 3, 3), ("AHEAD_BYTES", 50, 5)])
def test_a_slow_caller_finds_no_more_than_the_bound_begun(monkeypatch, bound, value, begun):
    monkeypatch.setattr(ahead, bound, value)
    sources, prepared = files(*[10] * 40), []
    with closing(ahead.in_order(sources, lambda source: prepared.append(source.path))) as found:
        for number, (_, get) in enumerate(found):
            get()
            expected = min(number + begun, len(sources))
            deadline = time.monotonic() + WAIT
            while len(prepared) < expected and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(0.002)
            assert len(prepared) == expected  # the one in work is among them


def test_a_large_file_is_prepared_in_its_turn_by_the_caller(monkeypatch):
    monkeypatch.setattr(ahead, "LARGEST", 10)
    turns, where = [], {}

    def prepare(source):
        where[source.path] = (threading.current_thread(), len(turns))

    with closing(ahead.in_order(files(1, 11, 10, 11), prepare)) as found:
        for source, get in found:
            turns.append(source.path)
            get()
    main = threading.current_thread()
    assert {name for name, (thread, _) in where.items() if thread is main} == {"1", "3"}
    assert [where[name][1] for name in ("1", "3")] == [2, 4]


def test_what_a_preparation_raises_comes_in_its_turn():
    def prepare(source):
        if source.path in "35":
            raise MemoryError(source.path)
        return source.path

    got = []
    with pytest.raises(MemoryError, match="3"), closing(ahead.in_order(files(*[1] * 8), prepare)) as found:
        got.extend(get() for _, get in found)
    assert got == ["0", "1", "2"]
    assert not readers()


def test_closing_waits_for_the_file_in_the_thread_and_begins_no_other():
    entered, leave, begun, ended = threading.Event(), threading.Event(), [], []

    def prepare(source):
        begun.append(source.path)
        if source.path == "1":
            entered.set()
            assert leave.wait(WAIT)
            ended.append(source.path)

    with pytest.raises(KeyboardInterrupt), closing(ahead.in_order(files(*[1] * 50), prepare)) as found:
        for _, get in found:
            get()
            assert entered.wait(WAIT)
            threading.Timer(0.05, leave.set).start()
            raise KeyboardInterrupt
    assert (begun, ended) == (["0", "1"], ["1"])
    assert not readers()


def test_without_files_there_is_no_thread():
    assert drained([], lambda source: source) == []
    assert not readers()
