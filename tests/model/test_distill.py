"""The loss of distillation against closed formulas, what a sample holds, and what a run leaves behind."""

import json
import random
import re
from itertools import pairwise

import numpy as np
import pytest
import torch

from comem_cli.errors import FingerprintError, LockedError, UsageError
from comem_cli.model import distill_facts, load
from comem_cli.model.adapter import read_adapter
from comem_cli.model.distill import Distillation, schedule
from comem_cli.model.distill_checkpoint import RunFolder
from comem_cli.model.distill_data import KINDS, QUERY_ROOM, Recipe, Sampler, hold_out
from comem_cli.model.distill_held import compare, score
from comem_cli.model.distill_lesson import Lesson
from comem_cli.model.distill_options import DistillOptions
from comem_cli.model.distill_step import divergence, student_logits, target_of, teacher_logits, weights_of
from tests.tiny import save_tiny, tiny_tokenizer

PROSE = "harbour master ledger vessel basin dawn dusk cargo draught berth storm warning officer cones gate"
WORDS = PROSE.split()
SMALL = DistillOptions(
    split=2, chunk=32, length=300, steps=4, batch=2, rank=2, alpha=4, lr=0.01, warmup=1, device="cpu", dtype="fp32",
    eval_every=4, eval_packs=2, checkpoint_every=1, max_chunks=3, pack_positions=20,
)  # fmt: skip


def text(seed: int) -> str:
    rng = random.Random(seed)
    return " ".join(" ".join(rng.choices(WORDS, k=8)).capitalize() + "." for _ in range(60))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return load.resolve(str(save_tiny(tmp_path_factory.mktemp("m") / "tiny", layers=4, initializer_range=0.1)))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(3):
        (folder / f"{number}.txt").write_text(text(number))
    return folder


@pytest.fixture(scope="module")
def sampler():
    return Sampler([text(0), text(1)], tiny_tokenizer(), Recipe(dict.fromkeys(KINDS, 1.0), 32, 400, 6))


@pytest.fixture(scope="module", params=["chunk", "overlap", "document"])
def lesson(request, files):
    overlap = 8 if request.param == "overlap" else 0
    identity = load.identity(files)
    options = DistillOptions(**{**SMALL.to_dict(), "mode": request.param, "overlap": overlap}).checked(identity)
    return Lesson(load.load(files, torch.device("cpu"), torch.float32), identity, options)


def nothing(*args):
    """Hear nothing."""


def run(files, corpus, out, **changed):
    options = DistillOptions(**{**SMALL.to_dict(), **changed})
    return Distillation([corpus], files, out, options)


# samples


def test_a_sample_is_a_function_of_its_seed_and_number(sampler):
    again = Sampler([text(0), text(1)], tiny_tokenizer(), Recipe(dict.fromkeys(KINDS, 1.0), 32, 400, 6))
    assert [sampler.sample(1, n) for n in range(20)] == [again.sample(1, n) for n in range(20)]
    assert sampler.sample(1, 0) != sampler.sample(2, 0)


def test_samples_keep_to_their_length_and_have_every_kind_and_number_of_chunks(sampler):
    samples = [sampler.sample(0, n) for n in range(300)]
    assert {sample.kind for sample in samples} == set(KINDS)
    assert {sum(len(s.picked) for s in sample.stretches) for sample in samples} == set(range(1, 7))
    assert max(len(sample.pack) + len(sample.query) + 1 for sample in samples) <= 400
    assert max(len(sample.query) for sample in samples) <= QUERY_ROOM
    gaps = [any(b - a > 1 for a, b in pairwise(s.picked)) for x in samples for s in x.stretches]
    assert any(gaps) and not all(gaps)


def test_an_asked_fact_is_wholly_in_the_pack(sampler):
    tokenizer = tiny_tokenizer()
    facts = [s for s in (sampler.sample(0, n) for n in range(300)) if s.kind == "fact"]
    assert len(facts) > 10
    for sample in facts:
        value = tokenizer.decode(list(sample.query[slice(*sample.answer)])).strip()
        assert value and value in tokenizer.decode(sample.pack), value


def test_there_are_thirty_phrasings_and_the_held_out_ones_are_others():
    assert len(set(distill_facts.STATEMENTS)) >= 30
    for name in ("STATEMENTS", "QUESTIONS"):
        assert not set(getattr(distill_facts, name)) & set(getattr(distill_facts, f"HELD_{name}"))
    values = [fact.value for seed in range(200) for fact in distill_facts.draw_facts(random.Random(seed), 3)]
    digits = {len(value) for value in values if value.isdigit()}
    assert digits >= {3, 4, 5, 6, 7, 8}
    for form in (r"[A-Z]{2,4}-\d+", r"\d+ [A-Z]\w+ \d{4}", r"[0-9a-f]{8}-[0-9a-f-]{27}", r"[A-Z]\w+ [A-Z]\w+"):
        assert any(re.fullmatch(form, value) for value in values), form


def test_facts_of_one_draw_differ_in_key_and_value():
    facts = distill_facts.draw_facts(random.Random(3), 12)
    assert len({fact.key for fact in facts}) == len({fact.value for fact in facts}) == 12
    assert len({fact.noun for fact in facts}) == 1


def test_a_tenth_is_held_out():
    texts = [str(n) for n in range(20)]
    kept, held = hold_out(texts)
    assert held == ["9", "19"] and len(kept) == 18
    assert hold_out(["a" * 90 + "b" * 10, "cccccccccd"]) == (["a" * 90, "ccccccccc"], ["b" * 10 + "\nd"])


# loss


def test_the_divergence_is_the_closed_formula():
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=(5, 40)), generator.normal(size=(5, 40))
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (a, b))
    wanted = (p * np.log(p / q)).sum(-1)
    got = divergence(target_of(torch.tensor(a), 0), torch.tensor(b))
    assert np.allclose(got.numpy(), wanted, atol=1e-6)
    best = np.argsort(-p, -1)[:, :6]
    pk, qk = np.take_along_axis(p, best, -1), np.take_along_axis(q, best, -1)
    rest = (1 - pk.sum(-1)) * np.log((1 - pk.sum(-1)) / (1 - qk.sum(-1)))
    bounded = divergence(target_of(torch.tensor(a), 6), torch.tensor(b)).numpy()
    assert np.allclose(bounded, (pk * np.log(pk / qk)).sum(-1) + rest, atol=1e-5)
    assert (bounded <= wanted + 1e-6).all()


def test_the_schedule_warms_up_and_ends_near_zero():
    rates = [schedule(step, 4, 20) for step in range(20)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0 and rates[12] == pytest.approx(0.5) and rates[19] < 0.01
    assert all(a >= b for a, b in pairwise(rates[4:]))


def samples_of(lesson, files, count=4):
    chosen = lesson.options.recipe()
    texts = Sampler([text(0)], load.tokenizer(files), chosen)
    return [(n, texts.sample(0, n)) for n in range(count)]


def test_a_pack_holds_what_the_serving_writer_stores(lesson, files):
    """Compare with residuals that each document's chunks get from one forward with their left context."""
    for (_, sample), pack in zip(samples_of(lesson, files), lesson.maker.make(samples_of(lesson, files)), strict=True):
        assert pack.ids[1 : pack.query].tolist() == sample.pack
        at, left = 1, {"chunk": 0, "overlap": 8, "document": 10**6}[lesson.options.mode]
        for stretch in sample.stretches:
            for number in stretch.picked:
                own = len(stretch.chunks[number])
                before = [token for chunk in stretch.chunks[:number] for token in chunk][-left:] if left else []
                ids = torch.tensor([[*before, *stretch.chunks[number]]])
                with torch.no_grad():
                    wanted = lesson.frozen.lower(ids)[0, len(before) :]
                assert torch.allclose(pack.rows[at : at + own], wanted, rtol=2**-8, atol=1e-4)
                at += own
        assert at == pack.query


def test_the_teacher_reads_the_pack_as_the_stock_model(lesson, files):
    packs = lesson.maker.make(samples_of(lesson, files))
    rows = teacher_logits(lesson.teacher, packs)
    at = 0
    for pack in packs:
        places = pack.weights > 0
        with torch.no_grad():
            wanted = lesson.teacher.model(pack.ids[None]).logits[0][places]
        assert torch.allclose(rows[at : at + len(wanted)], wanted, atol=1e-5)
        at += len(wanted)
    assert at == len(rows) == len(weights_of(packs))


def test_weights_of_query_and_pack_sum_to_one_each_and_answers_weigh_more(lesson, files):
    for pack in lesson.maker.make(samples_of(lesson, files, 8)):
        assert float(pack.weights[pack.query :].sum()) == pytest.approx(1)
        assert float(pack.weights[: pack.query].sum()) == pytest.approx(lesson.options.pack_loss)
        assert int((pack.weights[: pack.query] > 0).sum()) <= lesson.options.pack_positions
        first, last = pack.answer
        if last > first > pack.query:
            ratio = float(pack.weights[first - 1] / pack.weights[pack.query :].min())
            assert ratio == pytest.approx(lesson.options.answer_weight) or first == pack.query + 1


def test_gradients_reach_the_adapter_and_nothing_else(lesson, files):
    loss, parts = lesson.loss(samples_of(lesson, files))
    loss.backward()
    grown = [name for name, weight in lesson.parameters if weight.grad is not None and weight.grad.abs().sum() > 0]
    assert grown and all(".lora_B." in name for name in grown)  # A has none while B is zero
    assert all(parameter.grad is None for parameter in lesson.teacher.model.parameters())
    assert float(loss.detach()) > 0 and set(parts) == {"kl_pack", "kl_query"}


def test_several_samples_in_one_forward_give_the_sum_of_their_losses(lesson, files):
    samples = samples_of(lesson, files)
    together = float(lesson.loss(samples)[0])
    assert together == pytest.approx(sum(float(lesson.loss([sample])[0]) for sample in samples), rel=1e-4)


def test_held_out_figures_are_those_of_stock_logits(lesson, files):
    packs = lesson.maker.make(samples_of(lesson, files, 2), all_positions=True)
    ours, theirs, taxes = [], [], []
    for pack in packs:
        with torch.no_grad():
            a, b = student_logits(lesson.student, [pack]), teacher_logits(lesson.teacher, [pack])
        ours.append(score(pack, a))
        theirs.append(score(pack, b))
        n = pack.query - 2  # every pack token but the first, which the BOS predicts, and none of the query
        stock = lesson.teacher.model(pack.ids[None]).logits[0]
        wanted = pack.ids[2 : pack.query]
        log_p = torch.log_softmax(stock[1 : pack.query - 1], -1).gather(-1, wanted[:, None])
        assert theirs[-1].positions == n
        assert theirs[-1].nll == pytest.approx(-float(log_p.sum()), rel=1e-4)
        taxes.append(ours[-1].nll - theirs[-1].nll)
    found = compare(ours, theirs)
    assert found["lm_tax"] == pytest.approx(np.exp(sum(taxes) / found["positions"]))
    assert compare(theirs, theirs)["agreement"] == 1.0


# runs


def test_training_brings_the_student_nearer_and_leaves_a_whole_adapter(files, corpus, tmp_path):
    job = run(files, corpus, tmp_path / "a", steps=12, eval_every=6)
    events = []
    record = job.run(events.append, nothing, nothing)
    losses = [event["loss"] for event in events if event["event"] == "step"]
    assert len(losses) == 12
    assert sum(losses[-4:]) < sum(losses[:4])
    adapter = read_adapter(tmp_path / "a")
    assert adapter.interface.split == 2 and adapter.rank == 2 and adapter.kind == "suffix"
    assert adapter.record == json.loads(json.dumps(record))
    assert [entry["step"] for entry in record["history"]] == [0, 6, 12]
    assert {text["name"] for text in record["data"]} == {"0.txt", "1.txt", "2.txt"}
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == [
        *(".lock", "adapter_config.json", "adapter_model.safetensors", "comem.json", "run.json")
    ]
    assert run(files, corpus, tmp_path / "a", steps=12, eval_every=6).done


def test_another_run_in_the_same_directory_is_refused_by_field(files, corpus, tmp_path):
    run(files, corpus, tmp_path / "a", steps=1).run(nothing, nothing, nothing)
    with pytest.raises(FingerprintError, match=r"lr 0\.01, not 0\.02; steps 1, not 2"):
        _ = run(files, corpus, tmp_path / "a", steps=2, lr=0.02).done


def test_two_processes_do_not_train_into_one_directory(files, corpus, tmp_path):
    with RunFolder(tmp_path / "a").locked(), pytest.raises(LockedError):
        run(files, corpus, tmp_path / "a").run(nothing, nothing, nothing)


def test_a_write_adapter_brings_chunks_nearer_to_document_context(files, corpus, tmp_path):
    options = DistillOptions(**{**SMALL.to_dict(), "kind": "write"}).checked(load.identity(files))
    lesson = Lesson(load.load(files, torch.device("cpu"), torch.float32), load.identity(files), options)
    assert not any(".layers.2." in name for name, _ in lesson.parameters)
    samples = samples_of(lesson, files, 3)
    optimiser = torch.optim.AdamW([weight for _, weight in lesson.parameters], lr=0.01)
    errors = []
    for _ in range(12):
        optimiser.zero_grad()
        loss, parts = lesson.loss(samples)
        loss.backward()
        optimiser.step()
        errors.append(parts["error"])
    assert errors[-1] < 0.8 * errors[0]
    run(files, corpus, tmp_path / "w", kind="write", steps=1).run(nothing, nothing, nothing)
    assert read_adapter(tmp_path / "w").kind == "write"


@pytest.mark.parametrize(
    "wrong",
    [
        *({"split": 4}, {"kind": "odd"}, {"kind": "write", "split": 0}, {"steps": 0}, {"lr": 0.0}, {"length": 9999}),
        *({"mix": "odd=1"}, {"mix": "fact"}, {"mix": "fact=0"}, {"length": 100}, {"mode": "odd"}, {"overlap": -1}),
    ],
)
def test_options_out_of_range_are_refused(files, corpus, tmp_path, wrong):
    with pytest.raises(UsageError):
        run(files, corpus, tmp_path / "a", **wrong)
