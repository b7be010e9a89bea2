"""What BABILong's tasks say to the model, in our own words: instruction, two examples, form of the answer.

The parts and their order are BABILong's; the wording is not, so that scores compare the arms of one run and not with
published tables. BABILong puts all this before the context. Here it stands after it, with the question: what comes
before the documents would have to be stored with them, and a selected pack would not hold it. The example stories use
no sentence of the data.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wording:
    """Hold the texts of one task."""

    instruction: str
    examples: tuple[tuple[str, str, str], ...]  # facts, question, answer
    form: str

    def prompt(self, question: str) -> str:
        """Return what the model reads after the context."""
        examples = "\n\n".join(
            f"<example>\n{facts}\nQuestion: {asked}\nAnswer: {answer}\n</example>"
            for facts, asked, answer in self.examples
        )
        return f"\n\n{self.instruction}\n\n{examples}\n\n{self.form}\n\nQuestion: {question}\nAnswer:"


_AMONG = "Short factual sentences are hidden in the text above, among sentences of books that do not matter. "
WORDINGS = {
    "qa1": Wording(
        _AMONG
        + "They say where people went. Tell where the person is now: the last place named for that person counts.",
        (
            (
                "Peter journeyed to the office. Lucy went to the kitchen. Peter went to the garden.",
                "Where is Peter?",
                "The most recent location of Peter is garden.",
            ),
            (
                "Lucy moved to the bedroom. Peter moved to the hallway.",
                "Where is Lucy?",
                "The most recent location of Lucy is bedroom.",
            ),
        ),
        "Answer with one sentence: The most recent location of PERSON is PLACE.",
    ),
    "qa2": Wording(
        _AMONG + "They say where people went and which things they took or left. Tell where the thing is now: with the "
        "person who holds it, or where it was left.",
        (
            (
                "Peter went to the kitchen. Peter took the key. Peter went to the garden.",
                "Where is the key?",
                "The key is in garden.",
            ),
            (
                "Lucy took the lamp. Lucy went to the office. Lucy left the lamp. Lucy went to the hallway.",
                "Where is the lamp?",
                "The lamp is in office.",
            ),
        ),
        "Answer with one sentence: The THING is in PLACE.",
    ),
    "qa5": Wording(
        _AMONG
        + "They say who gave which thing to whom. Answer the question about the giver, the thing or the receiver; "
        "where it happened more than once, the last time counts.",
        (
            ("Lucy took the lamp. Lucy gave the lamp to Peter.", "Who gave the lamp to Peter?", "Lucy."),
            ("Peter took the key. Peter gave the key to Lucy.", "What did Peter give to Lucy?", "key."),
        ),
        "Answer with one word: a name or a thing.",
    ),
}
