"""Comparing two modes answers from exactly what a rewrite would store, and writes nothing."""

from __future__ import annotations

import shutil

import pytest

from comem_cli.errors import UsageError
from comem_cli.model import load
from comem_cli.read.compare import Compared, Comparison, Question, read_questions, summarise
from comem_cli.select.store_index import IndexFolder
from comem_cli.select.terms import DEFAULT_TERMS, term_scheme
from comem_cli.store.rewrite_run import RewriteRun
from comem_cli.store.setup import WriteOptions
from tests.commands.cli import state
from tests.tiny_store import make_store

QUESTIONS = [
    Question("Which entry does the harbour keep about the gate?", ("entry",)),
    Question("What does the ledger keep at dusk?"),
    Question("Where are the pilots?", ("basin", "gate")),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("compare"))


def weigh(path, store, **options) -> RewriteRun:
    return RewriteRun(path, lambda: store.files, WriteOptions(device="cpu", **options))


def answers(run, **options):
    chosen = {"top_k": 3, "max_new_tokens": 6, **options}
    with Comparison(run, note=lambda text: None, **chosen) as comparison:
        return [comparison.ask(question) for question in QUESTIONS]


@pytest.mark.parametrize("options", [{"overlap": 8}, {"overlap": 100}, {"mode": "document"}], ids=str)
def test_the_new_arm_answers_as_the_store_does_after_the_rewrite(tmp_path, store, options):
    path = tmp_path / "s"
    shutil.copytree(store.path, path)
    before = state(path)
    compared = answers(weigh(path, store, **options))
    assert state(path) == before
    hooks = {name: lambda *args: None for name in ("on_event", "on_tokens", "on_load", "on_index")}
    scheme = term_scheme(DEFAULT_TERMS, load.tokenizer(store.files))
    weigh(path, store, **options).run(IndexFolder(path, scheme), **hooks)
    after = answers(weigh(path, store, mode="chunk"))
    for one, other in zip(compared, after, strict=True):
        assert one.ids["new"] == other.ids["stored"]
        assert one.ids["stored"] == other.ids["new"]
        assert one.ids["replay"] == other.ids["replay"]
        assert one.texts["new"] == other.texts["stored"]


def test_a_question_without_evidence_is_reported_and_the_rest_goes_on(store):
    with Comparison(weigh(store.path, store, overlap=8), top_k=2, max_new_tokens=2, note=lambda text: None) as compare:
        assert "error" in compare.ask(Question("中")).to_json()
        assert "error" not in compare.ask(QUESTIONS[0]).to_json()


def test_comparing_a_mode_with_itself_is_a_usage_error(store):
    with pytest.raises(UsageError, match="in this mode already"):
        Comparison(weigh(store.path, store, mode="chunk"), top_k=2, max_new_tokens=2, note=lambda text: None)


def compared(stored: str, new: str, replay: str, *wanted: str) -> Compared:
    texts = {"stored": stored, "new": new, "replay": replay}
    return Compared(Question("q", wanted), texts, {arm: tuple(map(ord, text)) for arm, text in texts.items()})


def test_shares_are_those_counted_by_hand():
    some = [
        compared("abc", "abd", "abd", "D"),
        compared("xyz", "ayz", "abz", "z", "nowhere"),
        compared("a", "b", "c"),
        Compared(Question("q", ("a",)), error="no chunk"),
    ]
    found = summarise(some)
    assert (found["questions"], found["without_evidence"], found["with_answers"]) == (4, 1, 2)
    assert found["first_token_equal"] == {"stored": 1 / 3, "new": 2 / 3}
    assert found["identical"] == {"stored": 0.0, "new": 1 / 3}
    assert found["answer_contained"] == {"stored": 0.5, "new": 1.0, "replay": 1.0}
    assert (found["new_better"], found["new_worse"]) == (1, 0)
    assert summarise([])["identical"] == {}


def test_questions_are_read_line_by_line(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "a?", "answers": ["x", ""], "id": 7}\n\n{"question": "b?"}\n')
    assert read_questions(path) == [Question("a?", ("x",)), Question("b?")]


@pytest.mark.parametrize(
    "text", ["", "\n", "what?\n", '["a?"]\n', '{"question": 1}\n', '{"question": "a?", "answers": "x"}\n']
)
def test_a_questions_file_that_is_none_is_a_usage_error(tmp_path, text):
    path = tmp_path / "q.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError):
        read_questions(path)
    with pytest.raises(UsageError, match="no questions file"):
        read_questions(tmp_path / "none.jsonl")
