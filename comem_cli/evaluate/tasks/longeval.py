"""LongEval lines: find the number of one line among hundreds that look alike.

The test cases of LongEval are read where the user supplies them (50 a length); other lengths are generated: keys are
distinct adjective-noun pairs, values uniform in 1 to 50000, the line that is asked for is uniform. The document is the
header and the lines, the prompt is the final question: together they are LongEval's prompt. The three strings below
are LongEval's (Apache-2.0, https://github.com/DachengLi1/LongChat), since scores depend on them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from comem_cli.errors import UsageError
from comem_cli.evaluate.task import Cell, Document, Example, Span, TaskContext
from comem_cli.evaluate.tasks.data_files import Source, read_jsonl, take
from comem_cli.evaluate.tasks.spec import Builder, Options
from comem_cli.evaluate.tasks.words import load_words

HEADER = (
    "Below is a record of lines I want you to remember. Each line begins with 'line <line index>' and contains a "
    "'<REGISTER_CONTENT>' at the end of the line as a numerical value. For each line index, memorize its corresponding "
    "<REGISTER_CONTENT>. At the end of the record, I will ask you to retrieve the corresponding <REGISTER_CONTENT> of "
    "a certain line index. Now the record start:\n\n"
)
LINE = "line {key}: REGISTER_CONTENT is <{value}>\n"
TAIL = (
    "\nNow the record is over. Tell me what is the <REGISTER_CONTENT> in line {key}? I need the number. "  # ends blank
)
LICENCE = "Apache-2.0: keep the notice"
ORIGIN = "https://github.com/DachengLi1/LongChat, branch longeval"
SOURCES = ("auto", "file", "generated")
GENERATED = 50  # where all are asked for: as many as LongEval's files hold
_NEW_TOKENS = 16  # the paper's; LongEval itself allows 100
_VALUES = 50_000
_MOST_LINES = 100_000  # some two million tokens
_DOCUMENT = "record.txt"


@dataclass(frozen=True)
class LongEval:
    """Make examples of `lines` lines; source: "file", "generated", or "auto" (the file where it is there)."""

    lines: int
    source: str = SOURCES[0]

    @property
    def file(self) -> Source:
        """Return where LongEval's cases of this length are and come from."""
        name = f"{self.lines}_lines.jsonl"
        return Source("LongEval lines", (f"longeval/{name}", f"lines/testcases/{name}", name), ORIGIN, LICENCE)

    def cell(self, context: TaskContext) -> Cell:
        """Load or generate; raises UsageError (2) for a missing or wrong file, or where wonderwords is missing."""
        if self.source == "file" or (self.source == "auto" and self.file.find_any(context)):
            examples, cohort, provenance = self._load(context)
        else:
            examples, cohort, provenance = self._generate(context)
        return Cell(
            task="longeval",
            label=str(self.lines),
            cohort=cohort,
            scorer="longeval_last_integer",
            max_new_tokens=_NEW_TOKENS,
            examples=examples,
            provenance=provenance | {"seed": str(context.seed)},
        )

    def _load(self, context: TaskContext) -> tuple[tuple[Example, ...], str, dict[str, str]]:
        path = self.file.find(context)
        examples = []
        for number, given in read_jsonl(path):
            with self.file.reading(path, number):
                examples.append(_loaded(number, given))
        provenance = self.file.provenance(path) | {"questions": str(len(examples))}
        return take(examples, context.n, context.seed), "longeval/longchat", provenance

    def _generate(self, context: TaskContext) -> tuple[tuple[Example, ...], str, dict[str, str]]:
        words = load_words()
        made = []
        for index in range(context.n or GENERATED):
            rng = random.Random(f"longeval {self.lines} {context.seed} {index}")
            keys: dict[str, int] = {}
            while len(keys) < self.lines:
                keys.setdefault(words.pair(rng), rng.randint(1, _VALUES))
            made.append(_example(f"{index:04d}", keys, rng.choice(list(keys))))
        provenance = {
            "generator": "comem-1",
            "words": f"wonderwords {words.version}",
            "strings": f"{ORIGIN}, {LICENCE}",
        }
        return tuple(made), f"longeval/comem-1 words=wonderwords-{words.version}", provenance


def _loaded(number: int, given: dict[str, Any]) -> Example:
    key, value = given["random_idx"][0], given["expected_number"]
    text, prompt, line = given["prompt"], TAIL.format(key=key), LINE.format(key=key, value=value)
    if not text.endswith(prompt):
        raise ValueError("the prompt does not end with the question")
    document = text.removesuffix(prompt)
    if document.count(line) != 1 or document.count(f"line {key}:") != 1:
        raise ValueError(f"line {key} is not there once with {value}")
    return _whole(f"{number - 1:04d}", document, key, line, value)


def _example(name: str, keys: dict[str, int], key: str) -> Example:
    document = HEADER + "".join(LINE.format(key=one, value=value) for one, value in keys.items())
    return _whole(name, document, key, LINE.format(key=key, value=keys[key]), keys[key])


def _whole(name: str, document: str, key: str, line: str, value: int) -> Example:
    prompt = TAIL.format(key=key)
    start = document.index(line)
    return Example(
        name,
        (Document(_DOCUMENT, document),),
        prompt.partition(". ")[2].strip(),
        prompt,
        (str(value),),
        (Span(_DOCUMENT, start, start + len(line) - 1),),
    )


def _build(options: Options) -> LongEval:
    lines = options.whole_size(200)
    if lines > _MOST_LINES:
        raise UsageError(f"longeval has at most {_MOST_LINES} lines", "pass for example longeval:6000")
    return LongEval(lines, options.choice("source", SOURCES))


LONGEVAL_TASKS: dict[str, Builder] = {"longeval": _build}
