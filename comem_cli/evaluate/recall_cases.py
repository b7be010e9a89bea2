"""Read the cases of `comem recall` from a file: a question a line, with its evidence in a store or its answers.

A line that is no case stops the reading; a case whose evidence the store does not hold is left out and counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comem_cli.errors import NoEvidenceError, UsageError
from comem_cli.evaluate.recall import Case, Corpus

if TYPE_CHECKING:
    import tokenizers

_EXAMPLE = '{"question": "...", "evidence": [{"path": "...", "start": 0, "end": 9}]}, or "answers": ["..."]'
_HINT = "give paths and bytes as `comem ask --json` does"
_NAMED = 5  # lines that a message lists


@dataclass(frozen=True)
class CaseFile:
    """Hold what a file gave: cases, at least one, and the numbers of the lines whose evidence is not in the store."""

    path: Path
    cases: tuple[Case, ...]
    skipped: tuple[int, ...]

    def told(self) -> tuple[str, str]:
        """Say which cases were left out: message and hint of an error."""
        first = ", ".join(map(str, self.skipped[:_NAMED])) + (" ..." if len(self.skipped) > _NAMED else "")
        total = len(self.cases) + len(self.skipped)
        return (
            f"{len(self.skipped)} of {total} cases skipped, no such evidence in the store: {self.path}, line {first}",
            _HINT,
        )


def read_cases(path: Path, corpus: Corpus, tokenizer: tokenizers.Tokenizer) -> CaseFile:
    """Read cases of a store from JSON lines: a question, and evidence as byte spans of its files, or answers.

    Raises: UsageError (2) naming the line that is no case; NoEvidenceError (4) where it lacks all evidence.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # a JSON string may hold other line ends
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "check the path and its permissions") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text", f"write lines of {_EXAMPLE}") from error
    cases, skipped = [], []
    for number, line in enumerate(lines, 1):
        if line.strip():
            case = _case(line, f"{path}, line {number}", corpus, tokenizer)
            if all(case.needs):
                cases.append(case)
            else:
                skipped.append(number)
    found = CaseFile(path, tuple(cases), tuple(skipped))
    if not cases and not skipped:
        raise UsageError(f"{path} holds no case", f"write lines of {_EXAMPLE}")
    if not cases:
        raise NoEvidenceError(*found.told())
    return found


def _case(line: str, where: str, corpus: Corpus, tokenizer: tokenizers.Tokenizer) -> Case:
    """Read a line; a need that the store cannot meet has no alternatives."""
    bad = UsageError(f"{where}: no question with evidence or answers", f"write {_EXAMPLE}")
    try:
        given: Any = json.loads(line)
        question, spans, answers = given["question"], given.get("evidence", []), given.get("answers", [])
        needs = [corpus.need(span["path"], span["start"], span["end"]) for span in spans if _is_span(span)]
        question.encode()  # no half of a surrogate pair: tokenizers refuse it
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise bad from error
    if not isinstance(question, str) or not question.strip() or len(needs) < len(spans):
        raise bad
    if not needs:
        if not isinstance(answers, list) or not all(isinstance(one, str) and one.strip() for one in answers):
            raise bad
        needs = [corpus.holding(answers, tokenizer)] if answers else []
    if not needs:
        raise bad
    return Case(question, tuple(needs))


def _is_span(given: Mapping[str, Any]) -> bool:
    start, end = given["start"], given["end"]
    return type(start) is int and type(end) is int and 0 <= start < end
