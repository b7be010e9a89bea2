from __future__ import annotations

import pytest

from comem_cli.errors import UsageError
from comem_cli.evaluate.tasks.registry import TASKS, make_task
from comem_cli.evaluate.tasks.spec import Options

RULER = {
    *("niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3"),
    *("niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_1", "qa_2"),
}


def test_all_thirteen_tasks_of_ruler_are_there() -> None:
    assert set(TASKS) >= RULER
    for name in RULER:
        task = make_task(f"{name}:8192")
        assert (task.name, task.size) == (name, 8192)


@pytest.mark.parametrize("spec", ["", "nothing", "niah:4096", ":4096"])
def test_an_unknown_name_is_refused_with_the_names_there_are(spec: str) -> None:
    with pytest.raises(UsageError, match="no task is called") as refused:
        make_task(spec)
    assert refused.value.exit_code == 2
    assert all(name in refused.value.hint for name in RULER)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("vt", "needs a size"),
        ("vt:", "needs a size"),
        ("vt:4k", "needs a size"),
        ("vt:²", "needs a size"),
        ("vt:-1", "needs a size"),
        ("vt:100", "at least 512"),
        ("vt:4096:hops=0", "hops is a whole number from 1 to 100"),
        ("vt:4096:hops=two", "hops is a whole number"),
        ("vt:4096:hops=2,hops=3", "given twice"),
        ("vt:4096:links=2", "has no option links"),
        ("vt:4096:haystack=needle", "haystack is one of noise, essay, books"),
        ("vt:4096:haystack=essay,hops=40", "at most 40"),
        ("niah_single_1:4096:haystack=books", "has no option haystack"),
        ("niah_multivalue:4096:keys=11", "at most 40 needles"),
        ("cwe:4096:words=3", "has no option words"),
    ],
)
def test_a_size_or_option_that_a_task_does_not_take_is_refused(spec: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        make_task(spec)
    assert refused.value.hint


def test_options_are_part_of_the_label_only_where_they_change_something() -> None:
    assert make_task("vt:4096:hops=4,chains=1").options == ""
    assert make_task("vt:4096:chains=2,hops=8").options == "hops=8,chains=2"
    assert make_task("niah_multiquery:4096:queries=5").options == "keys=5,queries=5"
    assert make_task("niah_multiquery:4096:keys=6").options == "keys=6"


def test_a_size_may_be_a_path_with_colons() -> None:
    options = Options("jsonl:data/a:b.jsonl")
    assert (options.name, options.size()) == ("jsonl", "data/a:b.jsonl")
    options.finish()
    options = Options("jsonl:data/a=1/b.jsonl:key=x")
    assert options.size() == "data/a=1/b.jsonl"
    assert options.choice("key", ("y", "x")) == "x"
    options.finish()
    assert Options("xquad:documents=paragraph").choice("documents", ("article", "paragraph")) == "paragraph"
    assert Options("xquad").choice("documents", ("article", "paragraph")) == "article"


def test_a_size_that_nobody_took_is_refused() -> None:
    with pytest.raises(UsageError, match="takes no size"):
        Options("xquad:100").finish()
