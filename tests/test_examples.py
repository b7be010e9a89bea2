"""examples/pipelines.sh runs as it is, with a tiny model, and prints the table that it promises."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.commands.cli import COMEM, World

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(shutil.which("sh") is None or shutil.which("awk") is None, reason="needs a POSIX shell")
def test_the_pipeline_prints_one_row_a_question_and_counts_the_pages(tmp_path: Path) -> None:
    from tests.tiny import save_tiny

    world = World(tmp_path, save_tiny(tmp_path / "wide", layers=2, max_position_embeddings=2048))
    questions = [json.loads(line) for line in (ROOT / "examples/handbook-questions.jsonl").read_text().splitlines()]
    environment = world.environment | {"COMEM": shlex.join(COMEM), "MODEL": str(world.model), "SPLIT": "1"}
    done = subprocess.run(
        ["sh", "examples/pipelines.sh"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    first, header, *lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert first[0] == "ingest"
    assert json.loads(first[4])["type"] == "summary"
    assert header == ["answer_ok", "page_found", "first_source", "answer", "question"]
    table, counts = lines[: len(questions)], lines[len(questions) :]
    assert [row[4] for row in table] == [question["question"] for question in questions]
    assert all(row[0] in "01" and row[1] in "01" for row in table)
    for row in table:
        path, _, span = row[2].rpartition(":")
        assert (ROOT / "examples/handbook" / path).is_file()
        assert int(span.split("-")[0]) >= 1
    assert all(name == "cited_first" for name, *_ in counts)
    assert sum(int(count) for *_, count in counts) == len(questions)
