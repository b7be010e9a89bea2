"""The questions that a measurement asks: from a JSONL file, or made from the store itself.

A made question is a span of a stored chunk, drawn with a seed. It meets the evidence of a real question's size; what it
asks for means nothing.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

from comem_cli.errors import UsageError
from comem_cli.read.text import question_object
from comem_cli.select.selector import decode_ids
from comem_cli.store.reader import StoreReader

if TYPE_CHECKING:
    import tokenizers

SPAN = 24  # tokens of a made question


def read_cases(path: Path) -> list[str]:
    """Read {"question": ...} from each line; raises UsageError (2) naming the line that has none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", "pass --cases with a JSONL file of questions") from error
    found = [_question(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise UsageError(f"{path} holds no question", 'write one {"question": "..."} a line into it')
    return found


def _question(path: Path, number: int, line: str) -> str:
    given = question_object(line)
    question = given["question"] if given else ""
    if not question.strip():
        raise UsageError(f'{path}, line {number}: no {{"question": "..."}}', "mend that line and run it again")
    return str(question)


def made_questions(reader: StoreReader, tokenizer: tokenizers.Tokenizer, count: int, seed: int) -> list[str]:
    """Make up to `count` questions, each from another chunk; raises UsageError (2) where no chunk has words."""
    draw = random.Random(seed)
    chunk_ids = reader.chunk_ids_in_order()
    found: list[str] = []
    for chunk_id in draw.sample(chunk_ids, len(chunk_ids)):
        ids = decode_ids(reader.token_ids(chunk_id))
        start = draw.randrange(max(1, len(ids) - SPAN + 1))
        text = " ".join(tokenizer.decode(ids[start : start + SPAN]).split())
        if any(character.isalnum() for character in text):
            found.append(text)
        if len(found) == count:
            break
    if not found:
        raise UsageError(f"{reader.path} holds no text to make questions from", "pass --cases FILE.jsonl")
    return found
