"""dev/measure_adapter.py: what it writes into an adapter's record, and what it refuses."""

import json
import random
import sys

import pytest

from comem_cli.model import load
from comem_cli.model.adapter import read_adapter
from comem_cli.model.distill import Distillation
from comem_cli.model.distill_options import DistillOptions
from dev import measure_adapter
from tests.tiny import save_tiny

OPTIONS = DistillOptions(
    split=1, chunk=32, length=300, steps=1, batch=1, rank=2, alpha=4, warmup=1, device="cpu", dtype="fp32",
    eval_packs=1, max_chunks=3, pack_positions=20, parts=3,
)  # fmt: skip


def text(seed):
    rng = random.Random(seed)
    words = ["harbour", "master", "ledger", "vessel", "basin", "dawn", "dusk", "cargo", "draught"]
    return " ".join(" ".join(rng.choices(words, k=8)).capitalize() + "." for _ in range(90))


def test_the_record_gets_what_longer_packs_measure(tmp_path, monkeypatch, capsys):
    model = save_tiny(tmp_path / "tiny", layers=3, initializer_range=0.1)
    for name, seed in (("docs", 0), ("held", 1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(text(seed))
    out = tmp_path / "adapter"
    job = Distillation([tmp_path / "docs"], load.resolve(str(model)), out, OPTIONS, [tmp_path / "held"])
    job.run(lambda event: None, lambda step: None, lambda: None)
    trained = dict(read_adapter(out).record)

    def measure(held):
        given = ["x", str(out), "--held-out", str(tmp_path / held), "--length", "500", "--packs", "1", "--seed", "3"]
        monkeypatch.setattr(sys, "argv", [*given, "--model", str(model)])
        measure_adapter.main()

    measure("held")
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    record = read_adapter(out).record
    assert [*said[0], *said[1]] == ["before", "after"]
    assert record["metrics"]["after"] == {"step": 1, **said[1]["after"]}
    assert record["metrics"]["before"]["positions"] > trained["metrics"]["before"]["positions"]
    assert record["history"] == trained["history"]
    assert {name: record["measured"][name] for name in ("length", "packs", "seed")} == {
        "length": 500,
        "packs": 1,
        "seed": 3,
    }
    assert record["held_out"]["documents"] == trained["held_out"]["documents"]
    with pytest.raises(SystemExit, match=r"was trained on .*a\.txt"):
        measure("docs")
