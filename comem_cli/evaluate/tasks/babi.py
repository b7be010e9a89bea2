"""Read the bAbI tasks: numbered sentences and, among them, questions with answer and supporting lines.

A line is `n sentence` or `n question<TAB>answer<TAB>numbers of the supporting lines`; n = 1 begins a story. Each
question gives one sample: all sentences of the story before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from comem_cli.evaluate.tasks.data_files import Source

TASKS = {"qa1": "single-supporting-fact", "qa2": "two-supporting-facts", "qa5": "three-arg-relations"}
LICENCE = "CC BY 3.0: name the source (the generator is BSD)"


@dataclass(frozen=True)
class Sample:
    """Hold one question; supporting: indices into facts."""

    facts: tuple[str, ...]
    question: str
    answer: str
    supporting: tuple[int, ...]


def source(task: str) -> Source:
    """Return where the test file of "qa1", "qa2" or "qa5" is and comes from."""
    name = f"{task}_{TASKS[task]}_test.txt"
    folders = ("babi/en-10k", "babi/tasks_1-20_v1-2/en-10k", "tasks_1-20_v1-2/en-10k", "en-10k")
    origin = "the archive tasks_1-20_v1-2 of https://github.com/facebookarchive/bAbI-tasks"
    return Source("bAbI (en-10k, test)", tuple(f"{folder}/{name}" for folder in folders), origin, LICENCE)


def parse(text: str) -> list[Sample]:
    """Return the samples in the order of the file; raises ValueError naming a line that is of neither kind."""
    samples = []
    facts: dict[int, str] = {}  # by line number in the story
    for at, line in enumerate(text.splitlines(), 1):
        number, _, rest = line.partition(" ")
        if not number.isdecimal() or not rest:
            raise ValueError(f"line {at} has no number")
        if int(number) == 1:
            facts = {}
        question, *answer = rest.split("\t")
        if not answer:
            facts[int(number)] = rest.strip()
            continue
        order = list(facts)
        if len(answer) != 2 or not all(one.isdecimal() and int(one) in facts for one in answer[1].split()):
            raise ValueError(f"line {at} is no question with answer and supporting lines")
        supporting = tuple(order.index(int(one)) for one in answer[1].split())
        samples.append(Sample(tuple(facts.values()), question.strip(), answer[0], supporting))
    return samples
