from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comem_cli.errors import UsageError
from comem_cli.evaluate.scorers.babilong import GIVING, PLACES
from comem_cli.evaluate.task import Cell
from comem_cli.evaluate.tasks import babi, babilong
from comem_cli.evaluate.tasks.babilong import BABILONG_TASKS, BabiLong, mix
from comem_cli.evaluate.tasks.book_noise import Library, load_library
from comem_cli.evaluate.tasks.cache import Generated
from comem_cli.evaluate.tasks.spec import Options
from tests.evaluate.tasks.benchmark_files import context, evidence_texts, user_data, write_json
from tests.tiny import tiny_tokenizer

ROOT = Path(__file__).parents[3]
PEOPLE = ("Mary", "John", "Sandra", "Daniel")
ROOMS = ("garden", "office", "kitchen")


def small(folder: Path, stories: int = 6) -> Path:
    """Write a qa1 file of three questions a story, a choice of some, and two books."""
    lines = []
    for story in range(stories):
        for number in range(3):
            person, place = PEOPLE[(story + number) % 4], ROOMS[(story * number) % 3]
            lines.append(f"{2 * number + 1} {person} went to the {place}.")
            lines.append(f"{2 * number + 2} Where is {person}? \t{place}\t{2 * number + 1}")
    target = folder / babi.source("qa1").names[0]
    target.parent.mkdir(parents=True)
    target.write_text("\n".join(lines) + "\n")
    write_json(folder / "babilong" / "test_100_idxs.json", {"qa1": [1, 2, 5]})
    (folder / "books").mkdir()
    for book in range(2):
        text = " ".join(
            f"Sentence {n} of book {book} tells of rain, of wind\nand of the long way home." for n in range(400)
        )
        (folder / "books" / f"{book}.txt").write_text(text)
    return folder


def make(folder: Path, tokens: int, samples: str = "official", n: int = 0) -> Cell:
    return BabiLong("qa1", tokens, samples).cell(context(folder, n))


def count(text: str) -> int:
    return len(tiny_tokenizer().encode(text, add_special_tokens=False))


def test_facts_alone_at_length_zero(tmp_path: Path) -> None:
    cell = make(small(tmp_path), 0)
    assert [one.id for one in cell.examples] == ["0001", "0002", "0005"]
    first = cell.examples[0]
    assert first.documents[0].text == "Mary went to the garden. John went to the garden."
    assert evidence_texts(first) == ["John went to the garden."]
    assert (first.question, first.answers) == ("Where is John?", ("garden",))
    assert "noise" not in cell.provenance
    assert (cell.name, cell.scorer, cell.max_new_tokens) == ("babilong_qa1:0", "babilong_qa1", 20)


def test_facts_stand_in_order_among_noise_and_fill_the_budget(tmp_path: Path) -> None:
    folder = small(tmp_path)
    facts = {one.id: one.documents[0].text.split(". ") for one in make(folder, 0, "all").examples}
    for one in make(folder, 900, "all").examples:
        text = one.documents[0].text
        places = [text.index(fact.rstrip(".") + ".") for fact in facts[one.id]]
        assert places == sorted(places)
        assert all(found.endswith(f"{one.answers[0]}.") for found in evidence_texts(one))
        assert 598 <= count(f" {text}") <= 602, "the sum over sentences is 600; joined, a token may fall either way"


def test_the_noise_is_of_whole_long_sentences_but_for_the_last() -> None:
    tokenizer = tiny_tokenizer()
    book = "Yes. " + " ".join(f"The {n} winds blew over the hills, and over the sea. No." for n in range(300))
    noise = Library((book,), "").noise(random.Random(1), 400, tokenizer)
    assert sum(count(f" {sentence}") for sentence in noise) in (399, 400)
    assert all(sentence.endswith("the sea.") and sentence.startswith("The ") for sentence in noise[:-1])
    assert "No." not in noise
    assert Library((book,), "").noise(random.Random(1), 0, tokenizer) == []


def test_books_without_sentences_are_refused() -> None:
    with pytest.raises(UsageError, match="no sentences"):
        Library(("Ten. Nine. " * 20,), "").noise(random.Random(1), 50, tiny_tokenizer())


@given(st.lists(st.text("ab", min_size=1), max_size=6), st.lists(st.text("xy", min_size=1), max_size=6), st.integers())
def test_mixing_keeps_both_orders_and_finds_every_fact(facts: list[str], noise: list[str], seed: int) -> None:
    text, places = mix(facts, noise, random.Random(seed))
    assert [text[start:end] for start, end in places] == facts
    pieces = text.split(" ") if text else []
    assert [piece for piece in pieces if piece[0] in "xy"] == noise
    assert [piece for piece in pieces if piece[0] in "ab"] == facts


def test_each_gap_is_as_likely_as_any_other() -> None:
    rng = random.Random(3)
    gaps = [mix(["F"], ["n"] * 3, rng)[0].split(" ").index("F") for _ in range(4000)]
    # chi-square with 3 degrees of freedom: 16.3 is the 0.1 % quantile, for a seed that is fixed
    assert sum((gaps.count(gap) - 1000) ** 2 / 1000 for gap in range(4)) < 16.3


def test_samples_with_too_many_facts_are_left_out_and_counted(tmp_path: Path) -> None:
    cell = make(small(tmp_path), babilong.RESERVED + 2 * 8 + 7, "all")  # two facts fit, three do not
    assert len(cell.examples) == 12
    assert cell.provenance["samples with too many facts left out"] == "6"


def test_a_sample_does_not_depend_on_how_many_are_drawn(tmp_path: Path) -> None:
    folder = small(tmp_path)
    whole = {one.id: one for one in make(folder, 500, "all").examples}
    some = make(folder, 500, "all", n=4).examples
    assert len(some) == 4
    assert all(whole[one.id] == one for one in some)


def test_another_process_mixes_the_same_bytes(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tokenizers import Tokenizer;"
        "from comem_cli.evaluate.task import TaskContext; from comem_cli.evaluate.tasks.babilong import BabiLong;"
        "folder = Path(sys.argv[1]); tokenizer = Tokenizer.from_file(str(folder / 'tokenizer.json'));"
        "print(BabiLong('qa1', 500).cell(TaskContext(tokenizer, 'tiny', folder, 0)).digest())"
    )
    folder = small(tmp_path)
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == make(folder, 500).digest()


def test_other_books_and_other_choices_are_other_inputs(tmp_path: Path) -> None:
    folder = small(tmp_path)
    task, where = BabiLong("qa1", 500), context(folder)
    before = task.inputs(where)
    assert isinstance(task, Generated)
    assert before == task.inputs(where)
    assert before.items() <= task.cell(where).provenance.items()
    (folder / "books" / "2.txt").write_text("Another one, with a sentence. And with another.")
    more = task.inputs(where)
    assert {name for name in before if before[name] != more[name]} == {"noise"}
    write_json(folder / "babilong" / "test_100_idxs.json", {"qa1": [0]})
    assert {name for name in more if more[name] != task.inputs(where)[name]} == {"sha256 test_100_idxs.json"}


def test_missing_books_questions_and_choices_are_named(tmp_path: Path) -> None:
    folder = small(tmp_path)
    for path in list((folder / "books").iterdir()):
        path.unlink()
    with pytest.raises(UsageError, match=r"books/\*\.txt"):
        make(folder, 500)
    (folder / "babilong" / "test_100_idxs.json").unlink()
    with pytest.raises(UsageError, match="test_100_idxs"):
        make(folder, 0)
    assert len(make(folder, 0, "all").examples) == 18
    with pytest.raises(UsageError, match=r"qa2_two-supporting-facts_test\.txt"):
        BabiLong("qa2", 0).cell(context(folder))
    with pytest.raises(UsageError, match=r"books/\*\.txt"):
        load_library(None)


@pytest.mark.parametrize("task", ["qa1", "qa2", "qa5"])
def test_the_examples_in_the_prompt_are_answered_as_the_scorer_wants(task: str) -> None:
    wording = babilong.WORDINGS[task]
    prompt = wording.prompt("Where is it?")
    assert prompt.startswith("\n\n")
    assert prompt.endswith("\n\nQuestion: Where is it?\nAnswer:")
    for facts, question, answer in wording.examples:
        assert answer.endswith("."), "the scorer reads up to the first one"
        assert f"{facts}\nQuestion: {question}\nAnswer: {answer}\n" in prompt
        assert task == "qa5" or sum(label in answer for label in PLACES) == 1


def test_a_length_that_the_prompt_would_fill_is_refused() -> None:
    assert BABILONG_TASKS["babilong_qa2"](Options("babilong_qa2:0:samples=all")) == BabiLong("qa2", 0, "all")
    with pytest.raises(UsageError, match="300"):
        BABILONG_TASKS["babilong_qa2"](Options("babilong_qa2:300"))


@pytest.mark.parametrize("task", ["qa1", "qa2", "qa5"])
def test_the_official_hundred_are_the_questions_of_those_numbers(task: str) -> None:
    name = f"babi/en-10k/{task}_{babi.TASKS[task]}_test.txt"
    data = user_data(name, "babilong/test_100_idxs.json", "books")
    whole = {one.id: one for one in BabiLong(task, 0, "all").cell(context(data)).examples}
    official = BabiLong(task, 0).cell(context(data))
    assert len(official.examples) == 100
    assert all(whole[one.id] == one for one in official.examples)
    labels = GIVING if task == "qa5" else PLACES
    assert {one.answers[0].lower() for one in official.examples} <= labels
    long = BabiLong(task, 2048).cell(context(data, n=3))
    for one in long.examples:
        assert evidence_texts(one) == evidence_texts(whole[one.id])
        assert one.answers == whole[one.id].answers
        assert 1700 <= count(one.documents[0].text) <= 1800
