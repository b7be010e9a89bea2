"""The scan finds what is there, wherever it lies, and reports nothing that is not."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from comem_cli.store import traces
from comem_cli.store.traces import Needle, files_below, scan


def found(store: Path, needles: list[bytes], **options) -> set[tuple[str, int, bytes]]:
    wanted = [Needle(raw, "it", str(number)) for number, raw in enumerate(needles)]
    result = scan(store, files_below(store), wanted, lambda *find: False, **options)
    return {(trace.file, trace.offset, needles[int(trace.document)]) for trace in result.traces}


def everywhere(raw: bytes, needle: bytes) -> set[int]:
    """Find every place of a needle the slow way."""
    return {at for at in range(len(raw)) if raw.startswith(needle, at)}


@pytest.mark.parametrize("block", [64, 1000, 2**20])
def test_every_needle_is_found_at_every_alignment_and_over_the_borders_of_blocks(tmp_path, monkeypatch, block):
    monkeypatch.setattr(traces, "BLOCK_BYTES", block)
    monkeypatch.setattr(traces, "MARGIN_BYTES", 128)
    rng = random.Random(block)
    needles = [rng.randbytes(size) for size in (4, 5, 7, 8, 9, 15, 16, 33, 64, 128) for _ in range(3)]
    raw = bytearray(rng.randbytes(6000))
    for number, needle in enumerate(needles[:-3]):
        at = 190 * number + number % 9
        raw[at : at + len(needle)] = needle
    raw[-64:] = needles[-5][-64:].rjust(64, b"!")
    (tmp_path / "a").write_bytes(raw)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c").write_bytes(needles[0] + needles[1])
    expected = {("a", at, needle) for needle in needles for at in everywhere(bytes(raw), needle)}
    assert len(expected) >= len(needles) - 3
    assert found(tmp_path, needles) == expected | {("b/c", 0, needles[0]), ("b/c", 4, needles[1])}


def test_short_needles_are_not_looked_for_among_numbers(tmp_path):
    for folder in ("residuals", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "f").write_bytes(b"abcdefg abcdefgh ab")
    assert found(tmp_path, [b"abcdefgh"], numbers=("residuals",)) == {
        ("other/f", 8, b"abcdefgh"),
        ("residuals/f", 8, b"abcdefgh"),
    }
    assert {at[0] for at in found(tmp_path, [b"abcd"], numbers=("residuals",))} == {"other/f"}
    assert found(tmp_path, [b"abc"]) == set()


def test_a_find_that_is_explained_is_no_trace_and_links_are_not_followed(tmp_path):
    (tmp_path / "f").write_bytes(b"x" * 100 + b"a needle" + b"y" * 100)
    os.symlink(tmp_path / "f", tmp_path / "link")
    needle, seen = Needle(b"a needle", "it", "d"), []

    def explain(path, offset, found, block, at):
        seen.append((path.name, offset, found, block[at : at + 8]))
        return True

    result = scan(tmp_path, files_below(tmp_path), [needle], explain)
    assert (result.files, result.bytes, result.traces) == (1, 208, ())
    assert seen == [("f", 100, needle, b"a needle")]
    assert scan(tmp_path, [], [needle], explain).files == 0
    assert scan(tmp_path, files_below(tmp_path), [], explain).bytes == 208
