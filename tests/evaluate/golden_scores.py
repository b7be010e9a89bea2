"""Golden cases of every scorer, the odd ones of the benchmarks included; expected values are worked out by hand.

python -m tests.evaluate.golden_scores        prints the table: scorer, case, expected, got
"""

from __future__ import annotations

from dataclasses import dataclass

from comem_cli.evaluate.task import Example


@dataclass(frozen=True)
class Golden:
    """One case: what `scorer` gives for the prediction, and whether more text could still change it."""

    scorer: str
    case: str
    prediction: str
    answers: tuple[str, ...]
    expected: float
    settled: bool = False
    question: str = ""
    category: str = ""

    @property
    def example(self) -> Example:
        return Example("golden", (), self.question, self.question, self.answers, category=self.category)


NUMBERS = ("7391425", "2048816")
VARIABLES = ("AAAAA", "BBBBB", "CCCCC", "DDDDD", "EEEEE")
WHERE = "Where is Mary? "
GIVEN = "What did Fred give to Jeff? "
HOBBIES = ("pottery, camping, painting, swimming",)
BOOKSHELF = ("Yes; since she collects children's books",)
TRAP = ("self-care is important",)

RULER = [
    Golden("string_match_all", "the one value", " The number is 7391425.", ("7391425",), 1, settled=True),
    Golden("string_match_all", "half of the values", "7391425 and 204881", NUMBERS, 0.5),
    Golden("string_match_all", "vt: four of five variables", "AAAAA BBBBB CCCCC DDDDD", VARIABLES, 0.8),
    Golden("string_match_all", "case does not count", "aaaaa, bBbBb", ("AAAAA", "BBBBB"), 1, settled=True),
    Golden("string_match_all", "a longer number holds it", "17391425999", ("7391425",), 1, settled=True),
    Golden("string_match_all", "a control character becomes a line feed", "739\x001425", ("7391425",), 0),
    Golden("string_match_all", "so a gold with one matches any", "a\x07b", ("a\nb",), 1, settled=True),
    Golden("string_match_all", "control characters at the ends go", "\x00 7391425\x1f", (" 7391425",), 0),
    Golden("string_match_all", "empty prediction", "", NUMBERS, 0),
    Golden("string_match_all", "final sigma may become another letter", "ΟΔΟΣ", ("οδος",), 1),
    Golden("string_match_all", "final sigma of a finished word", "ΟΔΟΣ δ", ("οδος",), 1, settled=True),
    Golden("string_match_part", "one of two is enough", "it is 2048816", NUMBERS, 1, settled=True),
    Golden("string_match_part", "none", "it is 2048", NUMBERS, 0),
    Golden("string_match_part", "empty prediction", "", NUMBERS, 0),
]

BABILONG = [
    Golden("babilong_qa1", "the target alone", "The most recent location of Mary is kitchen", ("kitchen",), 1),
    Golden("babilong_qa1", "after the full stop nothing counts", "kitchen. Or office", ("kitchen",), 1, True, WHERE),
    Golden("babilong_qa1", "two labels", "the kitchen or the office", ("kitchen",), 0, False, WHERE),
    Golden("babilong_qa1", "another label", "office", ("kitchen",), 0, False, WHERE),
    Golden("babilong_qa1", "no label", "outside", ("kitchen",), 0, False, WHERE),
    Golden("babilong_qa1", "within a word", "in the kitchenette", ("kitchen",), 1, False, WHERE),
    Golden("babilong_qa1", "cut at <context>", "kitchen <CONTEXT> office", ("kitchen",), 1, True, WHERE),
    Golden("babilong_qa1", "cut at <example>", "kitchen\n<example>\noffice", ("kitchen",), 1, True, WHERE),
    Golden("babilong_qa1", "never cut at Question", "kitchen\nQuestion: office?", ("kitchen",), 0, False, WHERE),
    Golden("babilong_qa1", "the first sentence is empty", ". kitchen", ("kitchen",), 0, True, WHERE),
    Golden("babilong_qa1", "empty prediction", "", ("kitchen",), 0, False, WHERE),
    Golden("babilong_qa2", "the target alone", "The milk is in GARDEN.", ("garden",), 1, True, "Where is the milk? "),
    Golden("babilong_qa5", "labels of the question are ignored", "Fred gave Jeff the milk", ("milk",), 1, False, GIVEN),
    Golden("babilong_qa5", "a target that the question names", "Jeff", ("Jeff",), 0, False, GIVEN),
    Golden("babilong_qa5", "a name in capitals", "BILL.", ("Bill",), 1, True, "Who gave the milk to Mary? "),
    Golden("babilong_qa5", "comma target, all parts", "milk and apple", ("apple,milk",), 1, False, GIVEN),
    Golden("babilong_qa5", "comma target, a part is absent", "apple", ("apple,milk",), 0, False, GIVEN),
    Golden("babilong_qa5", "comma target, another label", "apple milk football", ("apple,milk",), 0, False, GIVEN),
    Golden("babilong_qa5", "comma target, one part twice", "apple", ("apple,apple",), 0, False, GIVEN),
]

LONGEVAL = [
    Golden("longeval_last_integer", "in a sentence", "The <REGISTER_CONTENT> is <2416>.", ("2416",), 1),
    Golden("longeval_last_integer", "the last one wins", " 2416\nline pale-cat: 88", ("2416",), 0),
    Golden("longeval_last_integer", "the last one is right", "not 88 but 2416", ("2416",), 1),
    Golden("longeval_last_integer", "run-on digits", "24161", ("2416",), 0),
    Golden("longeval_last_integer", "leading zeros", "002416", ("2416",), 1),
    Golden("longeval_last_integer", "a thousands comma cuts it", "2,416", ("2416",), 0),
    Golden("longeval_last_integer", "digits of another script", "\u0662\u0664\u0661\u0666", ("2416",), 1),
    Golden("longeval_last_integer", "superscripts are no digits", "2416\u00b2", ("2416",), 1),
    Golden("longeval_last_integer", "more digits than int() takes", "9" * 5000, ("2416",), 0),
    Golden("longeval_last_integer", "no number", "I do not know", ("2416",), 0),
    Golden("longeval_last_integer", "empty prediction", "", ("2416",), 0),
]

TEXT = [
    Golden("qa_f1", "articles, case and punctuation go", "The Eiffel Tower!", ("eiffel tower",), 1),
    Golden("qa_f1", "2 of 3 against 2 of 2", "big red dog", ("red dog",), 0.8),
    Golden("qa_f1", "a word twice counts once", "dog dog", ("dog",), 2 / 3),
    Golden("qa_f1", "the best of the golds", "red dog", ("cat", "dog"), 2 / 3),
    Golden("qa_f1", "a hyphen joins", "state-of-the-art", ("stateoftheart",), 1),
    Golden("qa_f1", "typographic quotes stay", "\u201cdog\u201d", ("dog",), 0),
    Golden("qa_f1", "two forms of an accent differ", "cafe\u0301", ("caf\u00e9",), 0),
    Golden("qa_f1", "nothing but articles on both sides", "the", ("a",), 0),
    Golden("qa_f1", "empty prediction", "", ("dog",), 0),
    Golden("exact_match", "after normalisation", "An apple.", ("apple",), 1),
    Golden("exact_match", "one word more", "red apple", ("apple",), 0),
    Golden("exact_match", "any of the golds", "apple", ("pear", "The Apple"), 1),
    Golden("exact_match", "empty prediction", "", ("apple",), 0),
    Golden("answer_contained", "case folds", "IN DER STRASSE", ("stra\u00dfe",), 1, settled=True),
    Golden("answer_contained", "on both sides", "die Stra\u00dfe", ("STRASSE",), 1, settled=True),
    Golden("answer_contained", "within a word", "unlikely", ("like",), 1, settled=True),
    Golden("answer_contained", "punctuation counts", "KV482917", ("KV 482 917",), 0),
    Golden("answer_contained", "a blank gold is in nothing", "text", (" ",), 0),
    Golden("answer_contained", "empty prediction", "", ("x",), 0),
]

LOCOMO = [
    Golden("locomo_f1", "2: stems", "She painted in 2022", ("painting 2022",), 2 / 3, category="2"),
    Golden("locomo_f1", "2: an int as its text", "2022", ("2022",), 1, category="2"),
    Golden("locomo_f1", "2: commas go", "19 January 2023", ("19 January, 2023",), 1, category="2"),
    Golden("locomo_f1", "4: 'and' goes", "cats and dogs", ("the cat, dog",), 1, category="4"),
    Golden("locomo_f1", "4: a comma splits nothing", "pottery", HOBBIES, 0.4, category="4"),
    Golden("locomo_f1", "1: one part of four", "pottery", HOBBIES, 0.25, category="1"),
    Golden("locomo_f1", "1: parts in another order", "camping, swim, painted, pots", HOBBIES, 0.75, category="1"),
    Golden("locomo_f1", "1: without commas", "pottery camping", ("pottery, camping",), 2 / 3, category="1"),
    Golden("locomo_f1", "1: a comma at the end is a part", "Rome", ("Rome,",), 0.5, category="1"),
    Golden("locomo_f1", "3: gold up to the semicolon", "Yes", BOOKSHELF, 1, category="3"),
    Golden("locomo_f1", "4: a semicolon cuts nothing", "Yes", ("Yes; always",), 2 / 3, category="4"),
    Golden("locomo_f1", "5: not mentioned", "Not mentioned in it.", TRAP, 1, settled=True, category="5"),
    Golden("locomo_f1", "5: no information", "NO INFORMATION AVAILABLE", TRAP, 1, settled=True, category="5"),
    Golden("locomo_f1", "5: the trap", "self-care is important", TRAP, 0, category="5"),
    Golden("locomo_f1", "5: empty is no refusal upstream", "", TRAP, 0, category="5"),
    Golden("locomo_f1", "5: other refusals are none upstream", "I don't know", TRAP, 0, category="5"),
    Golden("locomo_f1", "4: empty prediction", "", HOBBIES, 0, category="4"),
    Golden("locomo_f1", "1: empty prediction", "", HOBBIES, 0, category="1"),
    Golden("locomo_f1_paper", "5: empty", " \n", TRAP, 1, category="5"),
    Golden("locomo_f1_paper", "5: a refusal", "I don\u2019t know.", TRAP, 1, settled=True, category="5"),
    Golden("locomo_f1_paper", "5: not mentioned", "It is not mentioned", TRAP, 1, settled=True, category="5"),
    Golden("locomo_f1_paper", "5: unknown alone", "Unknown.", TRAP, 1, category="5"),
    Golden("locomo_f1_paper", "5: unknown in a sentence", "an unknown artist", TRAP, 0, category="5"),
    Golden("locomo_f1_paper", "5: the trap", "self-care is important", TRAP, 0, category="5"),
    Golden("locomo_f1_paper", "1: as upstream", "pottery", HOBBIES, 0.25, category="1"),
    Golden("locomo_contains", "2: a substring", "In 7 May, 2023 she went", ("7 May 2023",), 1, True, category="2"),
    Golden("locomo_contains", "2: the last word may go on", "on 7 May 2023", ("7 May 2023",), 1, category="2"),
    Golden("locomo_contains", "4: within a number", "2022", ("2",), 1, category="4"),
    Golden("locomo_contains", "3: up to the semicolon", "I think yes , ", BOOKSHELF, 1, settled=True, category="3"),
    Golden("locomo_contains", "4: the whole gold is needed", "pottery", HOBBIES, 0, category="4"),
    Golden("locomo_contains", "5: empty", "", TRAP, 1, category="5"),
    Golden("locomo_contains", "4: empty prediction", "", HOBBIES, 0, category="4"),
]

GOLDEN = [*RULER, *BABILONG, *LONGEVAL, *TEXT, *LOCOMO]


def table() -> str:
    """Return the Markdown table of all cases."""
    from comem_cli.evaluate.score import SCORERS

    lines = ["| scorer | case | prediction | gold | expected | got |", "|---|---|---|---|---|---|"]
    for one in GOLDEN:
        got = SCORERS[one.scorer].score(one.prediction, one.example)
        shown = one.prediction if len(one.prediction) < 60 else f"{one.prediction[:8]}... ({len(one.prediction)})"
        cells = [one.scorer, one.case, repr(shown), " / ".join(one.answers).replace("\n", "\\n"), f"{one.expected:.4g}"]
        lines.append("| " + " | ".join([*cells, f"{got:.4g}"]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
