"""Every loader through `make_task`, and what any cell has to keep to, whatever its benchmark."""

from __future__ import annotations

from pathlib import Path

import pytest

from comem_cli.errors import UsageError
from comem_cli.evaluate.score import SCORERS
from comem_cli.evaluate.task import Task
from comem_cli.evaluate.tasks.babilong import BabiLong
from comem_cli.evaluate.tasks.hotpotqa import HotpotQA
from comem_cli.evaluate.tasks.jsonl import Jsonl
from comem_cli.evaluate.tasks.locomo import Locomo
from comem_cli.evaluate.tasks.longbench import LongBench
from comem_cli.evaluate.tasks.longeval import LongEval
from comem_cli.evaluate.tasks.musique import Musique
from comem_cli.evaluate.tasks.registry import make_task
from comem_cli.evaluate.tasks.squad import SQUAD, XQUAD, Squad
from tests.evaluate.tasks.benchmark_files import context, evidence_texts, user_data

SPECS: dict[str, Task] = {
    "longeval:200": LongEval(200),
    "longeval:5:source=generated": LongEval(5, "generated"),
    "babilong_qa1:0": BabiLong("qa1", 0),
    "babilong_qa5:1024:samples=all": BabiLong("qa5", 1024, "all"),
    "xquad": Squad("xquad", XQUAD),
    "xquad:documents=paragraph": Squad("xquad", XQUAD, "paragraph"),
    "squad": Squad("squad", SQUAD),
    "hotpotqa:documents=own": HotpotQA("own"),
    "musique:documents=all": Musique("all"),
    "longbench_qasper": LongBench("qasper"),
    "locomo": Locomo(),
    "locomo:scorer=locomo_f1_paper": Locomo("locomo_f1_paper"),
    "jsonl:my/questions.jsonl": Jsonl(Path("my/questions.jsonl")),
}
WITH_DATA = ("longeval:200", "longeval:5:source=generated", "babilong_qa1:0", "babilong_qa5:1024:samples=all")
WITH_DATA += (
    "xquad",
    "xquad:documents=paragraph",
    "hotpotqa:documents=own",
    "musique:documents=all",
    "locomo",
    "locomo:scorer=locomo_f1_paper",
)


@pytest.mark.parametrize("spec", SPECS)
def test_a_spec_makes_its_task(spec: str) -> None:
    assert make_task(spec) == SPECS[spec]


@pytest.mark.parametrize(
    "spec",
    [
        *(
            "longeval",
            "longeval:0",
            "longeval:100001",
            "longeval:200:source=web",
            "babilong_qa3:0",
            "babilong_qa1",
            "babilong_qa1:100",
        ),
        *(
            "xquad:7",
            "xquad:documents=own",
            "hotpotqa:documents=article",
            "locomo:x=y",
            "locomo:scorer=qa_f1",
            "longbench_trec",
            "jsonl",
        ),
        "jsonl:a.jsonl:scorer=locomo_f1",
    ],
)
def test_a_wrong_spec_is_refused(spec: str) -> None:
    with pytest.raises(UsageError):
        make_task(spec)


@pytest.mark.parametrize("spec", [spec for spec in SPECS if "generated" not in spec and spec != "longeval:200"])
def test_missing_data_is_a_usage_error_with_a_hint(spec: str, tmp_path: Path) -> None:
    for where in (tmp_path, None):
        with pytest.raises(UsageError) as caught:
            make_task(spec).cell(context(where))
        assert caught.value.hint


@pytest.mark.parametrize("spec", WITH_DATA)
def test_a_cell_keeps_the_contract(spec: str) -> None:
    data = user_data("longeval", "babi", "babilong", "books", "qa", "locomo_two_conversations.json")
    cell = make_task(spec).cell(context(data, n=5))
    assert cell.scorer in SCORERS
    assert [one.id for one in cell.examples] == sorted({one.id for one in cell.examples})
    assert len(cell.examples) == 5
    assert cell.digest() == make_task(spec).cell(context(data, n=5)).digest()
    assert cell.digest() != make_task(spec).cell(context(data, n=5, seed=1)).digest()
    assert str(data) not in str(cell.provenance)
    assert any("Apache-2.0" in value or "CC BY" in value for value in cell.provenance.values())
    for one in cell.examples:
        names = [document.name for document in one.documents]
        assert names == sorted(set(names), key=str.encode)
        assert all(document.text.strip() for document in one.documents)
        assert all(evidence_texts(one))
        assert one.question in one.prompt
        assert one.answers
