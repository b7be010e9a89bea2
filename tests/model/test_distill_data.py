"""What a sample of distillation holds: packs, plants, query parts, curriculum."""

import hashlib
import random
import re
from collections import Counter
from itertools import pairwise

import pytest

from comem_cli.errors import UsageError
from comem_cli.model import distill_phrases as phrases
from comem_cli.model.distill_chains import draw_chains
from comem_cli.model.distill_corpus import read_corpus, read_split
from comem_cli.model.distill_data import Sampler
from comem_cli.model.distill_facts import Fact, draw_facts, draw_mixed
from comem_cli.model.distill_plants import draw_planting
from comem_cli.model.distill_sample import KINDS, PARTS_ROOM, QUERY_ROOM, RECIPE, Recipe
from comem_cli.model.distill_weights import BEGINNING, Weighing, gold_places
from tests.tiny import tiny_tokenizer

WORDS = ["harbour", "master", "ledger", "vessel", "basin", "dawn", "cargo", "draught", "berth", "storm", "gate"]
TOKENIZER = tiny_tokenizer()
MIX = dict.fromkeys(KINDS, 1.0)


def text(seed):
    rng = random.Random(seed)
    return " ".join(" ".join(rng.choices(WORDS, k=8)).capitalize() + "." for _ in range(200))


def make(**changed):
    recipe = {"mix": MIX, "chunk": 128, "length": 1400, "max_chunks": 6, "parts": 6, **changed}
    return Sampler([text(0), text(1)], TOKENIZER, Recipe(**recipe))


@pytest.fixture(scope="module")
def samples():
    sampler = make()
    return [sampler.sample(0, number) for number in range(100)]


def answers(part):
    return [TOKENIZER.decode(list(part.ids[first:last])).strip() for first, last in part.answers]


def test_a_sample_is_a_function_of_its_seed_and_number(samples):
    again = make()
    assert [again.sample(0, number) for number in reversed(range(20))] == samples[19::-1]
    assert again.sample(1, 0) != samples[0]


def test_the_number_of_the_recipe_goes_up_when_samples_change(samples):
    """A run that an earlier comem began must not go on with other samples: new ones need a new RECIPE, and its line."""
    digest = hashlib.sha256(repr([(one.pack, one.parts) for one in samples]).encode()).hexdigest()
    assert (RECIPE, digest[:16]) == (2, "7da93007f1da9396")


def test_samples_have_every_kind_and_number_of_chunks_and_keep_to_their_length(samples):
    kinds = Counter(part.kind for sample in samples for part in sample.parts)
    assert kinds.keys() == set(KINDS)
    assert {len(sample.lengths) for sample in samples} == set(range(1, 7))
    for sample in samples:
        assert 1 <= len(sample.parts) <= 6
        assert len(sample.pack) == sum(sample.lengths) <= 1400 - QUERY_ROOM - 1
        assert max(len(part.ids) for part in sample.parts) <= QUERY_ROOM
        assert sum(len(part.ids) for part in sample.parts) <= PARTS_ROOM
        assert all(len(part.ids) <= QUERY_ROOM // 2 for part in sample.parts if part.kind in ("recite", "continue"))
        for kind, most in (("continue", 1), ("question", 1), ("chain", 2)):
            assert sum(part.kind == kind for part in sample.parts) <= most
    gaps = [any(b - a > 1 for a, b in pairwise(s.picked)) for x in samples for s in x.stretches]
    assert any(gaps) and not all(gaps)
    alone = make(parts=1)
    assert all(len(alone.sample(0, number).parts) == 1 for number in range(20))


def test_what_is_asked_for_stands_in_the_pack_and_each_part_asks_for_something_else(samples):
    two_at_once = several = 0
    for sample in samples:
        pack = TOKENIZER.decode(sample.pack)
        said = []
        for part in sample.parts:
            if part.kind in ("fact", "chain", "sentence"):
                found = answers(part)
                assert found and all(value and value in pack for value in found), (part.kind, found)
                said += found if part.kind == "fact" else []
                two_at_once += part.kind == "fact" and len(found) == 2
        assert len(said) == len(set(said))
        several += len(said) >= 3
    assert two_at_once > 2 and several > 3


def test_a_chain_stands_in_order_and_its_names_are_the_answer(samples):
    seen = 0
    for sample in samples:
        for part in (part for part in sample.parts if part.kind == "chain"):
            names = answers(part)
            first, last = part.answers[0][0], part.answers[-1][1]
            assert re.split(r"[ ,]+", TOKENIZER.decode(list(part.ids[first:last])).strip()) == names
            pack = TOKENIZER.decode(sample.pack)
            begins = [pack.index(name) for name in names]
            assert begins == sorted(begins) and len(names) >= 2
            seen += 1
    assert seen > 10


def test_packs_are_full_of_one_form_or_mixed():
    alike = []
    for seed in range(60):
        planting = draw_planting(random.Random(seed), facts=2, chains=0, tokens=2000, held=False)
        facts, chains = planting.standing(range(len(planting.things)))
        assert 2 <= len(facts) <= 12 and not chains
        assert len({fact.key for fact in facts}) == len({fact.value for fact in facts}) == len(facts)
        alike.append(len({fact.noun for fact in facts}) == 1)
    assert 35 < sum(alike) < 60
    assert (
        max(len(draw_planting(random.Random(n), facts=1, chains=0, tokens=100, held=False).things) for n in range(40))
        == 2
    )
    one = draw_planting(random.Random(0), facts=0, chains=1, tokens=2000, held=False)
    assert len(one.things) == 2  # a distractor of another value


def test_phrasings_of_measurement_are_never_trained_on():
    assert len(set(phrases.STATEMENTS)) >= 30
    for name in ("STATEMENTS", "QUESTIONS", "CHAIN_STATEMENTS", "CHAIN_QUESTIONS"):
        assert not set(getattr(phrases, name)) & set(getattr(phrases, f"HELD_{name}"))
    held = make(held=True, chunk=400, length=3000)
    for number in range(5):
        kinds = [part.kind for part in held.sample(0, number, 4).parts]
        assert kinds.count("fact") >= 1
        for part in held.sample(0, number, 4).parts:
            asked = TOKENIZER.decode(list(part.ids))
            if part.kind == "fact":
                assert any(bit in asked for bit in ("special", "Could you look up", "Somebody asks for"))


def test_values_are_of_many_forms():
    values = [fact.value for seed in range(200) for fact in draw_facts(random.Random(seed), 3)]
    assert {len(value) for value in values if value.isdigit()} >= {3, 4, 5, 6, 7, 8}
    forms = (
        r"[A-Z]{2,4}-\d+",
        r"\d+ [A-Z]\w+ \d{4}",
        r"[0-9a-f]{8}-[0-9a-f-]{27}",
        r"[A-Z]\w+ [A-Z]\w+",
        r"[a-z]+ [a-z]+",
    )
    for form in forms:
        assert any(re.fullmatch(form, value) for value in values), form
    mixed = draw_mixed(random.Random(1), 12)
    assert len({fact.key for fact in mixed}) == len({fact.value for fact in mixed}) == 12


def test_spans_are_the_values():
    fact, other = Fact("the old pump", "price", "123"), Fact("Port Royal", "owner", "Ada Brandt")
    asked, spans = fact.ask("Which {noun} has {key}?", "\nQ: {question}\nA: The {noun} is {value}.")
    assert asked == "\nQ: Which price has the old pump?\nA: The price is 123."
    assert [asked[a:b] for a, b in spans] == ["123"]
    asked, spans = fact.ask_with(other, phrases.PAIRS[0], "{question}\n", " and ")
    assert asked == "What is the price of the old pump, and what is the owner of Port Royal?\n123 and Ada Brandt"
    assert [asked[a:b] for a, b in spans] == ["123", "Ada Brandt"]
    chain = draw_chains(random.Random(0), 3, 4)[0]
    assert chain.state("{name} = {value}", "{name} = {other}")[1] == f"{chain.names[1]} = {chain.names[0]}"
    asked, spans = chain.ask("which are {value}?", "{question}\n{names}", ", ")
    assert asked == f"Which are {chain.value}?\n" + ", ".join(chain.names)
    assert tuple(asked[a:b] for a, b in spans) == chain.names


def test_packs_of_one_step_have_room_for_about_as_many_tokens():
    recipe = Recipe({"fact": 1}, length=1500, chunk=1500, max_chunks=1, grow=400, step=4)
    sizes = [recipe.draw_shape(random.Random(number), number)[1] for number in range(400)]
    for first in range(0, 400, 4):
        small, large = sorted(sizes[first : first + 4])[-2:]  # a quarter is drawn short, as short files are
        assert large == small, first
    assert max(sizes) - min(sizes) > 800


def test_packs_grow_with_the_number_of_the_sample_alone():
    grown = make(length=1500, chunk=512, grow=100)
    plain = make(length=1500, chunk=512)
    lengths = [len(grown.sample(0, number).pack) for number in range(100)]
    assert max(lengths[:10]) <= 256 + 10 * (1500 - QUERY_ROOM - 1 - 256) // 100
    assert sum(lengths[:30]) < 0.7 * sum(lengths[70:])
    assert grown.sample(0, 100) == plain.sample(0, 100)


def test_a_tenth_is_held_out_or_what_is_named(tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number:02}.txt").write_text(f"document {number}")
    tenth = read_split([folder])
    assert [one.name for one in tenth.held] == ["09.txt", "19.txt"] and len(tenth.train) == 18
    named = read_split([folder], [folder / "03.txt"])
    assert [one.text for one in named.held] == ["document 3"]
    assert len(named.train) == 19 and "03.txt" not in {one.name for one in named.train}
    with pytest.raises(UsageError, match="held out"):
        read_split([folder / "01.txt"], [folder])
    few = tmp_path / "few"
    few.mkdir()
    (few / "a.txt").write_text("a" * 90 + "b" * 10)
    (few / "b.txt").write_text("cccccccccd")
    assert read_split([few]).texts() == (["a" * 90, "ccccccccc"], ["b" * 10 + "\nd"])
    assert len(read_corpus([few])) == 2


def test_weights_favour_beginnings_of_chunks_and_answers(samples):
    weighing = Weighing(seed=0, pack=0.5, positions=40, answer=4.0)
    for number, sample in enumerate(samples[:20]):
        weights = weighing.of_pack(number, 1, sample.lengths, every=False)
        assert len(weights) == 1 + len(sample.pack) and float(weights[0]) == 0
        assert float(weights.sum()) == pytest.approx(0.5)
        assert int((weights > 0).sum()) == min(40, len(sample.pack))
        begins, at = [], 1
        for length in sample.lengths:
            begins += range(at, at + min(length, BEGINNING))
            at += length
        assert int((weights[begins] > 0).sum()) >= min(20, len(begins))
        assert weights.tolist() == weighing.of_pack(number, 1, sample.lengths, every=False).tolist()
        own = weighing.of_parts(sample.parts)
        gold = gold_places(sample.parts)
        at = 0
        for part in sample.parts:
            mine, size = own[at : at + len(part.ids)], len(part.ids)
            assert float(mine.sum()) == pytest.approx(1 / len(sample.parts), rel=1e-5)
            predicted = {t - 1 for first, last in part.answers for t in range(max(first, 1), last)}
            for place in range(size):
                ratio = 4 if place in predicted else 1
                assert float(mine[place]) == pytest.approx(
                    ratio * float(mine.min()) if predicted != set(range(size)) else float(mine[0])
                )
                known = place in predicted and part.kind in ("fact", "chain", "recite", "sentence")
                assert bool(gold[at + place]) == known
            at += size
    assert float(weighing.of_pack(0, 1, [10, 10], every=True).count_nonzero()) == 20
