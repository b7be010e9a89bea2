from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from comem_cli.errors import UsageError
from comem_cli.evaluate.tasks.registry import make_task
from tests.evaluate.tasks.benchmark_files import user_data
from tests.evaluate.tasks.ruler_samples import context, quoted, whole


def squad(folder: Path) -> Path:
    """Write three articles of four paragraphs, a question each, and one question without an answer."""
    articles = []
    for article in range(3):
        paragraphs = []
        for number in range(4):
            text = f"Article {article} tells in paragraph {number} of the mayor M{article}{number} and the old bridge."
            answers = [{"text": f"M{article}{number}", "answer_start": 0}] * 2
            qas = [
                {"id": f"q{article}{number}", "question": f"Who is mayor in {article}/{number}?", "answers": answers}
            ]
            if number == 0:
                qas.append({"id": f"x{article}", "question": "Who?", "answers": [], "is_impossible": True})
            paragraphs.append({"context": text, "qas": qas})
        articles.append({"title": f"A{article}", "paragraphs": paragraphs})
    (folder / "qa").mkdir()
    (folder / "qa" / "xquad.en.json").write_text(json.dumps({"data": articles, "version": "1.1"}), encoding="utf-8")
    return folder


def hotpot(folder: Path) -> Path:
    """Write three questions, two gold paragraphs and two others each, in the official layout."""
    asked = [
        {
            "_id": f"h{number}",
            "question": f"Which town of {number} is older?",
            "answer": f"Town {number}",
            "supporting_facts": [[f"Gold {number}a", 0], [f"Gold {number}b", 1]],
            "context": [
                [f"{kind} {number}{letter}", [f"First of {kind} {number}{letter}.", " Second."]]
                for kind in ("Other", "Gold")
                for letter in "ab"
            ],
        }
        for number in range(3)
    ]
    (folder / "hotpot_dev_distractor_v1.json").write_text(json.dumps(asked), encoding="utf-8")
    return folder


def test_a_sample_reads_as_ruler_writes_it(tmp_path) -> None:
    cell = make_task("qa_1:2048").cell(context(n=0, data=squad(tmp_path)))
    assert len(cell.examples) == 12  # those with an answer
    assert (cell.scorer, cell.max_new_tokens) == ("string_match_part", 32)
    for one in cell.examples:
        order = (
            "Answer the question based on the given documents. "
            "Only give me the answer and do not output any other words.\n\n"
        )
        article, number = re.search(r"(\d)/(\d)", one.question).groups()
        gold = f"Article {article} tells in paragraph {number} of the mayor M{article}{number} and the old bridge."
        assert one.prompt == f"{order}Question: {one.question} Answer:"
        head = f"{order}The following are given documents.\n\n"
        assert one.documents[0].text.startswith(head)
        texts = one.documents[0].text.removeprefix(head).removesuffix("\n\n").split("\n\n")
        labels, paragraphs = zip(*(text.split(":\n") for text in texts), strict=True)
        assert list(labels) == [f"Document {place}" for place in range(1, len(texts) + 1)]
        assert len(set(paragraphs)) == len(paragraphs)
        assert quoted(one) == [gold]
        assert one.answers == (f"M{article}{number}",)
        assert one.group == f"A{article}"
        tokens = context().tokenizer.encode(whole(one), add_special_tokens=False).ids
        assert len(tokens) <= 2048 - 32


def test_the_own_article_comes_before_others(tmp_path) -> None:
    task, within = make_task("qa_1:4096"), context(data=squad(tmp_path))
    source = task.source(within)
    for n, own, other in ((1, 1, 0), (3, 3, 0), (4, 4, 0), (6, 4, 2), (12, 4, 8), (99, 4, 8)):
        record = source.draw(0, random.Random(n), n)
        article = re.search(r"(\d)/", record.question).group(1)
        found = re.findall(r"Article (\d) tells", record.document)
        assert (found.count(article), len(found) - found.count(article)) == (own, other)
        assert len(quoted(record)) == 1


def test_gold_paragraphs_of_hotpotqa_are_the_evidence(tmp_path) -> None:
    cell = make_task("qa_2:2048").cell(context(n=0, data=hotpot(tmp_path)))
    assert sorted(one.answers[0] for one in cell.examples) == ["Town 0", "Town 1", "Town 2"]
    for one in cell.examples:
        number = one.answers[0][-1]
        assert quoted(one) == [f"Gold {number}{letter}\nFirst of Gold {number}{letter}. Second." for letter in "ab"]
        assert f"Other {number}a\nFirst" in one.documents[0].text


def test_missing_and_foreign_files_are_refused(tmp_path) -> None:
    for data in (None, tmp_path):
        with pytest.raises(UsageError, match=r"qa_1 needs .*dev-v2\.0\.json"):
            make_task("qa_1:4096").cell(context(data=data))
    (tmp_path / "dev-v2.0.json").write_text('{"data": [{"paragraphs": [{"context": "a"}]}]}', encoding="utf-8")
    with pytest.raises(UsageError, match=r"dev-v2\.0\.json"):
        make_task("qa_1:4096").cell(context(data=tmp_path))
    (tmp_path / "dev-v2.0.json").write_text('{"data": []}', encoding="utf-8")
    with pytest.raises(UsageError, match="no question"):
        make_task("qa_1:4096").cell(context(data=tmp_path))


@pytest.mark.parametrize(("spec", "questions"), [("qa_1:4096", 1190), ("qa_2:4096", 100)])
def test_real_files_hold_their_gold_documents(spec: str, questions: int) -> None:
    data = user_data("qa/xquad.en.json", "qa/hotpotqa_sample100.json")
    task = make_task(spec)
    assert task.source(context(data=data)).count == questions
    for one in task.cell(context(n=10, data=data)).examples:
        assert len(quoted(one)) == (1 if spec.startswith("qa_1") else 2)
        text = " ".join(quoted(one)).lower()
        yes_no = {"yes", "no"} & set(one.answers)
        assert yes_no or any(answer.lower() in text for answer in one.answers), one.id
