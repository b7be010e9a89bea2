"""`python -m dev.bench` on a tiny model: every figure is measured, and what it says follows from its times."""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from dev.bench.interleave import interleaved, ratio
from tests.tiny import save_tiny

ROOT = Path(__file__).parents[1]


def test_arms_take_turns_and_a_ratio_is_the_median_of_pairs():
    order = []
    arms = {"a": lambda: order.append("a"), "b": lambda: order.append("b"), "own": lambda: 3.0}
    times = interleaved(arms, 4, warm=1)
    assert [len(some) for some in times.values()] == [4, 4, 4]
    assert times["own"] == [3.0] * 4
    assert sorted(order) == ["a"] * 5 + ["b"] * 5
    assert all(set(order[at : at + 2]) == {"a", "b"} for at in range(0, 10, 2))
    figure = ratio("f", [2.0, 9.0, 4.0], [1.0, 3.0, 1.0], bar=3.5)
    assert figure.value == 3.0
    assert figure.met is False
    assert ratio("f", [2.0], [1.0], bar=2.5, better="lower").met is True
    assert ratio("f", [2.0], [1.0]).met is None


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("bench") / "model", layers=6, max_position_embeddings=2048)


def test_every_figure_is_measured(model, tmp_path):
    out = tmp_path / "bench.json"
    line = [sys.executable, "-m", "dev.bench", "read", "decode", "memory", "write", "fetch"]
    line += ["--splits", "2,3", "--split", "3", "--repeat", "2", "--chunks", "4", "--packs", "1"]
    line += ["--widths", "64", "--model", str(model), "--dtype", "fp32", "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    figures = {one["name"]: one for one in json.loads(out.read_text())["figures"]}
    table = done.stdout.splitlines()
    assert len(table) == 1 + len(figures)
    assert {name.split()[0] for name in figures} == {"read", "decode", "first", "peak", "ingest", "verified"}
    for figure in figures.values():
        pairs = zip(figure["facts"]["first_runs_s"], figure["facts"]["second_runs_s"], strict=True)
        assert figure["value"] == pytest.approx(median(a / b for a, b in pairs), rel=0.05, abs=1e-3)
