from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from comem_cli.evaluate.task import Cell, Document, Example, Span, TaskContext
from comem_cli.evaluate.tasks.cache import cached_cell
from comem_cli.evaluate.tasks.registry import make_task
from tests.evaluate.tasks.ruler_samples import context


@dataclass
class Counted:
    """A task that counts how often its cell is generated."""

    version: str = "1"
    calls: list[TaskContext] = field(default_factory=list)

    def inputs(self, context: TaskContext) -> Mapping[str, str]:
        return {"generator": self.version}

    def cell(self, context: TaskContext) -> Cell:
        self.calls.append(context)
        shared = (Document("a.txt", "naïve text\n"), Document("b.txt", "other"))
        examples = (
            Example("1", shared, "q?", "q? A:", ("x", "y"), (Span("a.txt", 0, 5),), "g", "c"),
            Example("2", shared, "r?", "r? A:", ("z",)),
            Example("3", (Document("a.txt", "own"),), "s?", "s? A:", ("z",)),
        )
        return Cell("counted", "3", "made", "exact_match", 8, examples, ("\n",), {"seed": str(context.seed)})


def kept(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


def test_a_cell_is_generated_once_and_comes_back_equal(tmp_path) -> None:
    task, within = Counted(), context(3)
    first = cached_cell("counted:3", task, within, tmp_path / "cells")
    again = cached_cell("counted:3", task, within, tmp_path / "cells")
    assert len(task.calls) == 1
    assert again == first
    assert again.digest() == first.digest()
    assert again.examples[0].documents is again.examples[1].documents  # one corpus stays one tuple


def test_each_part_of_the_key_counts(tmp_path) -> None:
    task, within = Counted(), context(3)
    cached_cell("counted:3", task, within, tmp_path)
    for spec, changed in (
        ("counted:4", within),
        ("counted:3", replace(within, n=4)),
        ("counted:3", replace(within, seed=43)),
        ("counted:3", replace(within, tokenizer_hash="other")),
    ):
        before = len(task.calls)
        cached_cell(spec, task, changed, tmp_path)
        assert len(task.calls) == before + 1
    newer = Counted("2")
    cached_cell("counted:3", newer, within, tmp_path)
    assert len(newer.calls) == 1
    assert len(list(tmp_path.iterdir())) == 6


def damages() -> dict[str, object]:
    def cut(raw: bytes) -> bytes:
        return raw[: len(raw) // 2]

    def other_answer(raw: bytes) -> bytes:
        return raw.replace(b'"z"', b'"w"')

    def other_provenance(raw: bytes) -> bytes:
        return raw.replace(b'"seed": "42"}', b'"seed": "41"}')

    def other_key(raw: bytes) -> bytes:
        return json.dumps({**json.loads(raw), "key": {}}).encode()

    def rehashed(raw: bytes) -> bytes:
        return json.dumps({**json.loads(raw), "cell": {}}).encode()

    everything = (cut, other_answer, other_provenance, other_key, rehashed)
    texts = {"empty": b"", "list": b"[]", "number": b"1", "no UTF-8": b"\xff", "deep": b"[" * 100_000}
    return {**{one.__name__: one for one in everything}, **{name: lambda _, t=t: t for name, t in texts.items()}}


@pytest.mark.parametrize("damage", damages())
def test_a_damaged_or_differing_file_is_generated_again(damage: str, tmp_path) -> None:
    task, within = Counted(), context(3)
    first = cached_cell("counted:3", task, within, tmp_path)
    file = kept(tmp_path)
    raw = file.read_bytes()
    harmed = damages()[damage](raw)
    assert harmed != raw
    file.write_bytes(harmed)
    assert cached_cell("counted:3", task, within, tmp_path) == first
    assert len(task.calls) == 2
    assert kept(tmp_path).read_bytes() == raw  # mended, and nothing left aside
    cached_cell("counted:3", task, within, tmp_path)
    assert len(task.calls) == 2


def test_a_folder_that_cannot_be_written_only_costs_time(tmp_path) -> None:
    (tmp_path / "file").write_bytes(b"")
    task = Counted()
    for _ in range(2):
        assert cached_cell("counted:3", task, context(3), tmp_path / "file" / "below").task == "counted"
    assert len(task.calls) == 2


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("comem_cli.evaluate.tasks.cache.os.fsync", full)
    cached_cell("counted:3", Counted(), context(3), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_task_that_cannot_name_its_inputs_is_not_kept(tmp_path) -> None:
    class Loaded:
        def cell(self, context: TaskContext) -> Cell:
            return Counted().cell(context)

    cached_cell("loaded", Loaded(), context(3), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_ruler_cell_is_kept_in_the_users_cache(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMEM_CACHE", str(tmp_path))
    spec = "vt:4096:hops=2"
    cell = cached_cell(spec, make_task(spec), context(2))
    monkeypatch.setattr("comem_cli.evaluate.tasks.ruler_fit.ruler_cell", lambda *_: pytest.fail("generated again"))
    assert cached_cell(spec, make_task(spec), context(2)) == cell
    assert kept(tmp_path / "cells").name.startswith("vt_4096_hops=2-")
