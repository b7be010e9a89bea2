from __future__ import annotations

import random
import re

import pytest

from comem_cli.errors import UsageError
from comem_cli.evaluate.tasks import ruler_fit, ruler_vt
from comem_cli.evaluate.tasks.registry import make_task
from comem_cli.evaluate.tasks.ruler_haystack import NOISE
from tests.evaluate.tasks.ruler_samples import context, quoted, whole, with_book

FIRST = re.compile(r"VAR ([A-Z]+) = (\d{5})\b")
LINK = re.compile(r"VAR ([A-Z]+) = VAR ([A-Z]+)")


def drawn(spec: str, n: int, tmp_path=None, seed: int = 3):
    return make_task(spec).source(context(data=tmp_path)).draw(0, random.Random(seed), n)


def parts(record) -> tuple[str, str]:
    """Split the document into the solved example and the sample's own text."""
    at = record.document.rindex("Memorize and track")
    return record.document[:at], record.document[at:]


def test_a_sample_reads_as_ruler_writes_it() -> None:
    record = drawn("vt:4096:hops=2", 3)
    _, own = parts(record)
    a, b, c = record.answers
    ((_, value),) = FIRST.findall(own)
    assert [line for line in own.split("\n") if line.startswith("VAR")] == [
        f"VAR {a} = {value}",
        f"VAR {b} = VAR {a} ",
        f"VAR {c} = VAR {b} ",
    ]
    rest = "\n".join(line for line in own.split("\n") if not line.startswith("VAR"))
    assert rest + record.prompt == (
        "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
        f"{NOISE}\n{NOISE}\n{NOISE}\n"
        f"Question: Find all variables that are assigned the value {value} in the text above. "
        "Answer: According to the chain(s) of variable assignment in the text above, "
        f"3 variables are assigned the value {value}, they are: "
    )
    assert record.question == f"Find all variables that are assigned the value {value} in the text above."
    assert quoted(record) == [f"VAR {a} = {value}", f"VAR {b} = VAR {a}", f"VAR {c} = VAR {b}"]
    assert all(re.fullmatch("[A-Z]{5}", name) for name in record.answers)


def test_the_example_is_solved_and_within_its_500_tokens() -> None:
    record = drawn("vt:4096", 20)
    example, _ = parts(record)
    names = re.search(r"they are:  ((?:[A-Z]{3} ?)+)\n\n$", example).group(1).split()
    ((first, value),) = FIRST.findall(example)
    assert names == [first, *(name for name, _ in LINK.findall(example))]
    assert [before for _, before in LINK.findall(example)] == names[:-1]
    assert f"5 variables are assigned the value {value}" in example
    assert value not in record.question
    # The fit is made once; other names may take a few tokens more.
    assert len(context().tokenizer.encode(example, add_special_tokens=False).ids) <= 520


def test_examples_share_their_lines_and_differ_in_names() -> None:
    one, other = (parts(drawn("vt:4096", 20, seed=seed))[0] for seed in (1, 2))
    blank = [re.sub(r"[A-Z]{3}\b|\d{5}", "", text) for text in (one, other)]
    assert one != other
    assert blank[0] == blank[1]


@pytest.mark.parametrize("spec", ["vt:8192:hops=11", "vt:8192:hops=31", "vt:8192:chains=3", "vt:8192:hops=3,chains=4"])
def test_chains_follow_from_the_text_alone(spec: str) -> None:
    task = make_task(spec)
    record = drawn(spec, 60)
    _, own = parts(record)
    values = dict(FIRST.findall(own))
    assert len(values) == task.chains == len(set(values.values()))
    for name, before in LINK.findall(own):
        values[name] = values[before]  # a KeyError would be a link that stands before what it refers to
    asked = re.search(r"\d{5}", record.question).group()
    assert {name for name, value in values.items() if value == asked} == set(record.answers)
    assert len(values) == task.chains * (task.hops + 1)
    assert len(quoted(record)) == task.hops + 1
    assert [re.match(r"VAR (\w+)", text).group(1) for text in quoted(record)] == list(record.answers)


def test_statements_in_prose_are_sentences(tmp_path) -> None:
    record = drawn("vt:8192:haystack=books,chains=2,hops=3", 400, with_book(tmp_path))
    _, own = parts(record)
    assert "\n" not in own.split("\n\n", 1)[1].rstrip("\n")
    assert [text[-1] for text in quoted(record)] == ["."] * 4
    values = dict(FIRST.findall(own))
    for name, before in LINK.findall(own):
        values[name] = values[before]
    assert len(values) == 8
    assert whole(record).count("Question:") == 2


def test_the_example_has_fewer_hops_where_it_would_be_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "11 variables" in parts(drawn("vt:8192:hops=30", 40))[0]
    monkeypatch.setattr(ruler_vt, "EXAMPLE_TOKENS", 300)
    assert "8 variables" in parts(drawn("vt:8192:hops=30", 40))[0]
    monkeypatch.setattr(ruler_vt, "EXAMPLE_TOKENS", 150)
    with pytest.raises(UsageError, match="150 tokens cannot hold so many chains: 1"):
        make_task("vt:8192").cell(context())


def test_names_are_distinct_and_never_the_keyword() -> None:
    task = ruler_vt.VariableTracking(4096, hops=99, chains=20)
    names = task._names(random.Random(1), 3)
    assert len(names) == len(set(names)) == 2000
    assert "VAR" not in names


def test_the_example_does_not_depend_on_the_number_of_samples() -> None:
    task, within = make_task("vt:4096"), context(n=2)
    _, records = ruler_fit.ruler_records(task, within)
    assert records == ruler_fit.ruler_records(task, context(n=3))[1][:2]
