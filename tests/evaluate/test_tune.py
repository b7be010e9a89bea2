"""A tuning of tiny documents: every figure against one worked out another way."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from comem_cli.errors import FingerprintError, UsageError
from comem_cli.evaluate.arms import Arm
from comem_cli.evaluate.tune import Tuner, Tuning
from comem_cli.evaluate.tune_options import TuneOptions
from comem_cli.evaluate.tune_report import markdown, svg
from comem_cli.evaluate.tune_source import open_source
from comem_cli.evaluate.tune_tsv import tsv
from comem_cli.model import load
from comem_cli.model.flops import lower_flops
from tests.commands.cli import write_documents
from tests.evaluate.test_arm_adapters import make_adapter
from tests.tiny import BOS_ID, save_tiny
from tests.tiny_store import make_store

CHUNK = 96
OPTIONS = TuneOptions(
    splits=(2, 4),
    modes=("chunk", "overlap=16", "document"),
    packs=3,
    chunks=2,
    needles=3,
    generate=2,
    repeat=3,
    chunk=CHUNK,
    adapters=("none",),
    device="cpu",
    dtype="fp32",
)


def silent(*args: object) -> None:
    """Ignore a note or a step."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> load.ModelFiles:
    return load.resolve(str(save_tiny(tmp_path_factory.mktemp("model"), initializer_range=0.2)))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_documents(tmp_path_factory.mktemp("docs"), 3, lines=24)


def tune(files: load.ModelFiles, source: Path, options: TuneOptions = OPTIONS, progress: Any = silent) -> Tuning:
    with open_source([source], files, options.chunk, pytest.fail) as reader:
        return Tuner(reader, files, options, silent, progress).run()


@pytest.fixture(scope="module")
def tuned(files: load.ModelFiles, sources: Path) -> Tuning:
    steps: list[tuple[int, int]] = []
    found = tune(files, sources, progress=lambda done, total: steps.append((done, total)))
    assert steps == [(n + 1, len(steps)) for n in range(len(steps))]  # all that was announced, once
    return found


def test_every_split_and_mode_has_a_row_with_its_n(tuned: Tuning) -> None:
    names = [f"comem:j={j},{part}" for j in (2, 4) for part in ("mode=chunk", "overlap=16", "mode=document")]
    assert [row.arm.spec for row in tuned.rows] == names
    for row in tuned.rows:
        assert (row.lm_tax.n, row.agreement.n, row.kl.n, row.speedup.n) == (3, 3, 3, 3)
        assert row.first_kl is not None and row.first_kl.n == 3
        assert row.copying is not None and row.copying.n == 3
        assert row.positions == 3 * 2 * CHUNK or row.positions < 3 * 2 * CHUNK  # last chunks are shorter
        assert row.lm_tax.low is not None and row.lm_tax.low <= row.lm_tax.value <= row.lm_tax.high
        assert row.token_bytes == 128
        assert (row.kl.value > 0) and (row.first_kl.value > 0)
    assert tuned.facts["full_kv_bytes_per_token"] == 2 * 6 * 2 * 16 * 2


def test_int8_residuals_are_an_arm_of_their_own_with_fewer_bytes(files: load.ModelFiles, sources: Path) -> None:
    few = {"splits": (2,), "modes": ("chunk",), "packs": 2, "needles": 0, "repeat": 1}
    plain, int8 = tune(files, sources, replace(OPTIONS, **few, residual_dtypes=("bf16", "int8"))).rows
    assert [row.arm.spec for row in (plain, int8)] == ["comem:j=2,mode=chunk", "comem:j=2,mode=chunk,residual=int8"]
    assert (plain.name, int8.name) == ("j=2 chunk", "j=2 chunk int8")
    assert (plain.token_bytes, int8.token_bytes) == (128, 64 + 36)
    assert plain.lm_tax.value != int8.lm_tax.value == pytest.approx(plain.lm_tax.value, rel=0.02)
    assert plain.write == int8.write and plain.question_s == int8.question_s
    for odd in ((), ("bf16", "int4")):
        with pytest.raises(UsageError, match="residual-dtype"):
            replace(OPTIONS, residual_dtypes=odd).checked()


def test_tax_and_agreement_of_chunk_mode_equal_plain_forwards(
    tuned: Tuning, files: load.ModelFiles, sources: Path
) -> None:
    """Work them out with the stock model: chunks through layers [0:2) by hand, the pack through the rest."""
    from comem_cli.model.split import SplitModel

    model = load.load(files, torch.device("cpu"), torch.float32)
    halves = SplitModel(model, 2)
    taxes, agreements = [], []
    with open_source([sources], files, CHUNK, pytest.fail) as reader, torch.no_grad():
        tuner = Tuner(reader, files, OPTIONS, silent, silent)
        for pack in tuner.packs:
            chunks = [
                torch.from_numpy(
                    np.frombuffer(reader.document_chunks(spot.document)[spot.number].ids, "<u4").astype(int)
                )
                for spot in pack
            ]
            ids = torch.cat([torch.tensor([BOS_ID]), *chunks])
            stock = model(ids[None]).logits[0, :-1].log_softmax(-1)
            rows = [halves.lower(torch.tensor([[BOS_ID]]))[0]]
            rows += [halves.lower(chunk[None])[0].bfloat16().float() for chunk in chunks]
            mine = halves.upper(torch.cat(rows)[None], keep=0)[0, :-1].log_softmax(-1)
            picked = [logits[range(len(ids) - 1), ids[1:]].mean().item() for logits in (stock, mine)]
            taxes.append(picked[0] - picked[1])
            agreements.append((stock.argmax(-1) == mine.argmax(-1)).double().mean().item())
    row = tuned.rows[0]
    assert row.arm == Arm(2)
    assert row.lm_tax.value == pytest.approx(math.exp(np.mean(taxes)), rel=2e-3)
    assert row.agreement.value == pytest.approx(np.mean(agreements), abs=0.02)


def test_write_is_held_against_chunk_mode_and_flops_follow_the_formula(tuned: Tuning, files: load.ModelFiles) -> None:
    for row in tuned.rows:
        if row.arm.mode == "chunk":
            assert (row.write.ratio.value, row.write.flops_ratio) == (1.0, 1.0)
        assert row.write.token_s > 0
    flops = lower_flops(files.directory, 2)
    overlap, chunk = flops.forward(0, 16 + CHUNK), flops.forward(0, CHUNK)
    assert 1 < tuned.rows[1].write.flops_ratio < overlap / chunk  # each document's first chunk has no overlap


def test_arms_of_one_split_share_their_read(tuned: Tuning) -> None:
    for split in (2, 4):
        mine = [row for row in tuned.rows if row.arm.split == split]
        assert len({(row.question_s, row.speedup.value) for row in mine}) == 1
    for row in tuned.rows:
        saved = tuned.budget.replay_s - row.question_s
        if row.crossing.verdict == "finite":
            wanted = tuned.budget.tokens * row.write.token_s / saved
            assert row.crossing.queries == pytest.approx(wanted)


def test_quality_follows_from_the_seed(tuned: Tuning, files: load.ModelFiles, sources: Path) -> None:
    def quality(found: Tuning) -> list[tuple[Any, ...]]:
        return [(row.lm_tax, row.agreement, row.kl, row.first_kl, row.copying) for row in found.rows]

    again = tune(files, sources, replace(OPTIONS, splits=(2,), modes=("document",), repeat=1, generate=1))
    assert quality(again) == [quality(tuned)[2]]  # whatever else is measured
    other = tune(files, sources, replace(OPTIONS, splits=(2,), modes=("document",), repeat=1, generate=1, seed=7))
    assert quality(other) != quality(again)


def test_a_store_of_another_split_gives_what_its_sources_give(files: load.ModelFiles, tmp_path: Path) -> None:
    store = make_store(tmp_path, model=files.directory, chunk=48, split=3)
    options = replace(OPTIONS, splits=(2,), modes=("chunk",), chunk=None, chunks=2, packs=1, needles=0, repeat=1)
    of_files = tune(files, store.sources, replace(options, chunk=48))
    (store.sources / "doc0.txt").unlink()  # the sources are not needed
    of_store = tune(files, store.path, options)
    assert [row.lm_tax for row in of_store.rows] == [row.lm_tax for row in of_files.rows]
    assert of_store.rows[0].copying is None and of_store.rows[0].first_kl is None
    with pytest.raises(UsageError, match="chunks of 48 tokens, not 64"):
        tune(files, store.path, replace(options, chunk=64))


def test_an_adapter_is_measured_beside_its_frozen_arm(files: load.ModelFiles, sources: Path, tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path / "mine", files, chunk=CHUNK)
    options = replace(OPTIONS, modes=("chunk",), repeat=1, generate=1, adapters=(str(adapter),))
    found = tune(files, sources, options)
    assert [(row.arm.split, row.adapter) for row in found.rows] == [(2, None), (2, "mine"), (4, None)]
    assert found.rows[0].lm_tax != found.rows[1].lm_tax
    other = make_adapter(tmp_path / "other", files, chunk=CHUNK, mode="document")
    with pytest.raises(FingerprintError, match="mode document, not chunk"):
        tune(files, sources, replace(options, adapters=(str(other),)))


def test_installed_adapters_are_found(files: load.ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMEM_CACHE", str(tmp_path))
    make_adapter(tmp_path / "adapters" / "mine", files, chunk=CHUNK)
    identity = load.identity(files)
    options = replace(OPTIONS, adapters=())
    found = options.with_adapters(options.arms(identity), identity, CHUNK)
    assert [arm.spec for arm in found if arm.adapter] == [
        f"comem:j=2,mode=chunk,adapter={tmp_path / 'adapters' / 'mine'}"
    ]
    without = replace(options, adapters=("none",))
    assert not any(arm.adapter for arm in without.with_adapters(options.arms(identity), identity, CHUNK))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"packs": 0}, "--packs 0"),
        ({"repeat": 0}, "--repeat 0"),
        ({"questions": 0}, "--questions 0"),
        ({"loss": -0.1}, "loss budget"),
        ({"copy_loss": 1.5}, "loss budget"),
        ({"modes": ()}, "no mode"),
        ({"modes": ("odd",)}, "unknown mode"),
        ({"modes": ("overlap=x",)}, "no number"),
        ({"splits": (7,)}, "outside 1..6"),
        ({"chunks": 40}, "no 40 chunks"),
        ({"chunks": 6, "needles": 0}, "do not fit"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    files: load.ModelFiles, sources: Path, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        options = replace(OPTIONS, **change).checked()
        with open_source([sources], files, options.chunk, pytest.fail) as reader:
            Tuner(reader, files, options, silent, silent)


def test_default_splits_are_shares_of_the_model(files: load.ModelFiles) -> None:
    identity = replace(load.identity(files), n_layers=36)
    assert [arm.split for arm in TuneOptions(modes=("chunk",)).arms(identity)] == [6, 9, 12]


def test_reports_hold_every_arm(tuned: Tuning) -> None:
    text = markdown(tuned, "docs")
    lines = [line for line in text.splitlines() if line.startswith("| j=")]
    assert len(lines) == 6 and all(line.count("|") == 17 for line in lines)
    assert f"{tuned.rows[0].lm_tax.value:.3f}" in lines[0]
    drawn = ElementTree.fromstring(svg(tuned))
    texts = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    panels = 3 if any(row.kept for row in tuned.rows) else 2  # a random model copies nothing that could be kept
    assert all(texts.count(row.name) == panels for row in tuned.rows)
    header, rows = tsv(tuned.rows)
    assert len(rows) == 6 and all(len(row) == len(header) for row in rows)
    assert dict(zip(header, rows[0], strict=True))["lm_tax"] == f"{tuned.rows[0].lm_tax.value:.9g}"
