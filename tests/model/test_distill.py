"""The loss of distillation against closed formulas, what a sample holds, and what a run leaves behind."""

import json
import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from comem_cli.errors import FingerprintError, LockedError, UsageError
from comem_cli.model import distill_lesson, distill_options, load
from comem_cli.model.adapter import read_adapter
from comem_cli.model.distill import Distillation, schedule
from comem_cli.model.distill_checkpoint import RunFolder
from comem_cli.model.distill_data import Sampler
from comem_cli.model.distill_held import HeldOut, compare, score
from comem_cli.model.distill_lesson import Lesson
from comem_cli.model.distill_options import DistillOptions
from comem_cli.model.distill_sample import KINDS, QueryPart, Sample
from comem_cli.model.distill_step import divergence, target_of, true_tokens, weights_of, with_gold
from tests.tiny import save_tiny

PROSE = "harbour master ledger vessel basin dawn dusk cargo draught berth storm warning officer cones gate"
WORDS = PROSE.split()
SMALL = DistillOptions(
    split=2, chunk=32, length=300, steps=4, batch=2, rank=2, alpha=4, lr=0.01, warmup=1, device="cpu", dtype="fp32",
    eval_every=4, eval_packs=2, checkpoint_every=1, max_chunks=3, pack_positions=20,
    mix=",".join(f"{kind}=1" for kind in KINDS),
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


@pytest.fixture(scope="module", params=["chunk", "overlap", "document"])
def lesson(request, files):
    overlap = 8 if request.param == "overlap" else 0
    identity = load.identity(files)
    options = DistillOptions(**{**SMALL.to_dict(), "mode": request.param, "overlap": overlap}).checked(identity)
    return Lesson(load.load(files, torch.device("cpu"), torch.float32), identity, options)


def nothing(*args):
    """Hear nothing."""


def run(files, corpus, out, held_out=(), init=None, **changed):
    options = DistillOptions(**{**SMALL.to_dict(), **changed})
    return Distillation([corpus], files, out, options, held_out, init)


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


def test_gold_mixes_the_cross_entropy_of_the_true_token_in():
    generator = torch.Generator().manual_seed(0)
    logits, each = torch.randn(4, 9, generator=generator), torch.rand(4, generator=generator)
    tokens = torch.tensor([-1, 3, -1, 0])
    mixed = with_gold(each, logits, tokens, 0.25)
    entropy = [-float(logits[row].softmax(-1)[token].log()) for row, token in ((1, 3), (3, 0))]
    assert mixed.tolist() == pytest.approx(
        [
            float(each[0]),
            0.75 * float(each[1]) + 0.25 * entropy[0],
            float(each[2]),
            0.75 * float(each[3]) + 0.25 * entropy[1],
        ]
    )
    assert with_gold(each, logits, tokens, 0.0) is each


def samples_of(lesson, files, count=4):
    texts = Sampler([text(0), text(1), text(2)], load.tokenizer(files), lesson.options.recipe())
    return [(n, texts.sample(0, n)) for n in range(count)]


def test_a_pack_holds_what_the_serving_writer_stores(lesson, files):
    """Compare with residuals that each document's chunks get from one forward with their left context."""
    samples = samples_of(lesson, files)
    for (_, sample), pack in zip(samples, lesson.maker.packs(samples), strict=True):
        assert pack.ids[pack.begin :].tolist() == sample.pack and pack.begin == 1
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
        assert at == len(pack.ids) == len(pack.rows)


def test_each_part_is_written_alone_at_positions_from_0(lesson, files):
    packs = lesson.maker.packs(samples_of(lesson, files))
    for one in lesson.taught(packs)[1]:
        at = 0
        for part in one.parts:
            with torch.no_grad():
                wanted = lesson.frozen.lower(torch.tensor([part.ids]))[0]
            assert torch.allclose(one.rows[at : at + len(part.ids)], wanted, atol=1e-5)
            assert one.ids[at : at + len(part.ids)].tolist() == list(part.ids)
            at += len(part.ids)
        assert at == len(one.ids) == len(one.weights) == len(one.gold)


def test_the_teacher_reads_packs_and_parts_as_the_stock_model(lesson, files):
    packs = lesson.maker.packs(samples_of(lesson, files))
    seen, parts, said = lesson.taught(packs)
    stock = lesson.teacher.model
    of_packs, of_parts = [], []
    for pack, own in zip(packs, parts, strict=True):
        with torch.no_grad():
            of_packs.append(stock(pack.ids[None]).logits[0][pack.weights > 0])
            for part in own.parts:
                ids = torch.cat([pack.ids, torch.tensor(part.ids)])
                of_parts.append(stock(ids[None]).logits[0][len(pack.ids) :])
                if part.kind == "question":
                    first, last = (len(pack.ids) + at for at in part.answers[0])
                    assert ids[first:last].equal(stock(ids[None]).logits[0].argmax(-1)[first - 1 : last - 1])
    assert torch.allclose(seen, torch.cat(of_packs), atol=1e-5)
    assert torch.allclose(said, torch.cat(of_parts), atol=1e-5)
    assert len(weights_of(packs)) == len(seen) and len(weights_of(parts)) == len(true_tokens(parts)) == len(said)


def test_the_true_tokens_are_those_that_follow(lesson, files):
    parts = lesson.taught(lesson.maker.packs(samples_of(lesson, files, 8)))[1]
    known = iter(true_tokens(parts).tolist())
    found = 0
    for part in (part for one in parts for part in one.parts):
        answered = {at for first, last in part.answers for at in range(first, last)}
        for at in range(len(part.ids)):
            token = next(known)
            if token >= 0:
                assert token == part.ids[at + 1] and at + 1 in answered and part.kind != "question"
                found += 1
    assert found > 20


def test_gradients_reach_the_adapter_and_nothing_else(lesson, files):
    loss, figures = lesson.loss(samples_of(lesson, files))
    loss.backward()
    grown = [name for name, weight in lesson.parameters if weight.grad is not None and weight.grad.abs().sum() > 0]
    assert grown and all(".lora_B." in name for name in grown)  # A has none while B is zero
    assert all(parameter.grad is None for parameter in lesson.teacher.model.parameters())
    assert float(loss.detach()) > 0 and set(figures) == {"kl_pack", "kl_query", "kl_copied"}
    assert all(value > 0 and count > 0 for value, count in figures.values())


def test_several_samples_in_one_forward_give_the_sum_of_their_losses(lesson, files):
    samples = samples_of(lesson, files)
    with torch.no_grad():
        together = float(lesson.loss(samples)[0])
        assert together == pytest.approx(sum(float(lesson.loss([sample])[0]) for sample in samples), rel=1e-4)


def test_samples_are_visited_again_before_the_next_block(monkeypatch):
    monkeypatch.setattr(distill_options, "POOL", 3)
    assert [DistillOptions(split=2).sample_at(place) for place in range(7)] == [0, 1, 2, 3, 4, 5, 6]
    twice = DistillOptions(split=2, visits=2)
    assert [twice.sample_at(place) for place in range(14)] == [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7]
    assert (twice.outcomes, DistillOptions(split=2).outcomes) == (distill_options.KEPT, 0)


def test_the_teacher_reads_a_sample_once_for_all_visits(files, monkeypatch):
    monkeypatch.setattr(distill_lesson, "POOL", 2)
    identity = load.identity(files)
    model = load.load(files, torch.device("cpu"), torch.float32)
    once, twice = (
        Lesson(model, identity, DistillOptions(**{**SMALL.to_dict(), "top_k": 16, "visits": visits}).checked(identity))
        for visits in (1, 2)
    )
    taught: list[int] = []
    read = twice.taught
    monkeypatch.setattr(twice, "taught", lambda packs: taught.append(len(packs)) or read(packs))
    samples = samples_of(twice, files, 4)
    losses = [float(twice.loss([samples[at]])[0].detach()) for at in (0, 1, 0, 1, 2, 3, 2)]
    assert taught == [1, 1, 1, 1]
    assert losses == [float(once.loss([samples[at]])[0].detach()) for at in (0, 1, 0, 1, 2, 3, 2)]


def test_held_out_figures_are_those_of_stock_logits(lesson, files):
    packs = lesson.maker.packs(samples_of(lesson, files, 2), every=True)
    ours, theirs, taxes = [], [], []
    for pack in packs:
        seen, parts, said = lesson.taught([pack])
        ours.append(score(pack, parts[0], *lesson.read([pack], parts)))
        theirs.append(score(pack, parts[0], seen, said))
        n = len(pack.ids) - 2  # every pack token but the first, which the BOS predicts
        stock = lesson.teacher.model(pack.ids[None]).logits[0]
        log_p = torch.log_softmax(stock[1:-1], -1).gather(-1, pack.ids[2:, None])
        assert theirs[-1].positions == n
        assert theirs[-1].nll == pytest.approx(-float(log_p.sum()), rel=1e-4)
        taxes.append(ours[-1].nll - theirs[-1].nll)
    found = compare(ours, theirs)
    assert found["lm_tax"] == pytest.approx(np.exp(sum(taxes) / found["positions"]))
    assert compare(theirs, theirs)["agreement"] == 1.0


def test_copied_counts_answers_whose_every_token_comes_first(lesson, files):
    asked = (
        QueryPart("fact", (5, 6, 7, 8, 9), ((2, 4),)),
        QueryPart("recite", (10, 11, 12), ((1, 3),)),
        QueryPart("chain", (13, 14, 15, 16), ((1, 2), (3, 4))),
        QueryPart("fact", (17, 18), ((1, 2),)),
    )
    sample = Sample(samples_of(lesson, files, 1)[0][1].stretches, asked)
    pack = lesson.maker.packs([(0, sample)], every=True)[0]
    seen, (parts,), said = lesson.taught([pack])
    right = torch.nn.functional.one_hot(parts.ids.roll(-1), said.shape[-1]).float()
    told = score(pack, parts, seen, right)
    assert told.copied == (("fact", True), ("chain", True), ("fact", True))
    assert (told.recited, told.to_recite) == (2, 2)
    right[[2, 6, 9]] = 0  # what says 8 of the first fact, 12 of the passage, and 15, which is no answer
    wrong = score(pack, parts, seen, right)
    assert wrong.copied == (("fact", False), ("chain", True), ("fact", True))
    assert (wrong.recited, wrong.to_recite) == (1, 2)
    found = compare([wrong], [told])
    assert (found["facts"], found["facts_copied"], found["facts_copied_by_teacher"]) == (2, 0.5, 1.0)
    assert (found["chains"], found["chains_copied"], found["recited"]) == (1, 1.0, 0.5)


def test_held_out_packs_come_in_two_sizes(lesson, files):
    recipe = lesson.options.recipe(held=True)
    found = HeldOut(lesson, Sampler([text(0)], load.tokenizer(files), recipe), recipe, 1).measure()
    assert set(found["packs"]) == {"2"}  # no more fit into 107 tokens
    assert found["lm_tax"] == found["packs"]["2"]["lm_tax"] > 0


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
    assert record["held_out"]["how"] == "the last tenth of each document"
    assert run(files, corpus, tmp_path / "a", steps=12, eval_every=6).done


def test_named_documents_are_measured_on_and_not_learned_from(files, corpus, tmp_path):
    kept = [corpus / "1.txt"]
    record = run(files, corpus, tmp_path / "a", kept, steps=1).run(nothing, nothing, nothing)
    assert {text["name"] for text in record["data"]} == {"0.txt", "2.txt"}
    assert [text["name"] for text in record["held_out"]["documents"]] == ["1.txt"]
    with pytest.raises(FingerprintError, match="held_out"):
        _ = run(files, corpus, tmp_path / "a", [corpus / "2.txt"], steps=1).done


def test_another_run_in_the_same_directory_is_refused_by_field(files, corpus, tmp_path):
    run(files, corpus, tmp_path / "a", steps=1).run(nothing, nothing, nothing)
    with pytest.raises(FingerprintError, match=r"lr 0\.01, not 0\.02; steps 1, not 2"):
        _ = run(files, corpus, tmp_path / "a", steps=2, lr=0.02).done


def test_a_run_begins_with_the_weights_of_another_adapter(files, corpus, tmp_path):
    kept = [corpus / "1.txt"]
    first = run(files, corpus, tmp_path / "a", kept, steps=4).run(nothing, nothing, nothing)
    second = run(files, corpus / "0.txt", tmp_path / "b", kept, init=tmp_path / "a", steps=1)
    record = second.run(nothing, nothing, nothing)
    ended, began = ({**record["metrics"][when], "step": 0} for record, when in ((first, "after"), (record, "before")))
    assert began == ended != {**first["metrics"]["before"], "step": 0}
    assert record["init"]["sha256"] == read_adapter(tmp_path / "a").digest
    assert record["init"]["steps"] == 4
    assert [text["name"] for text in record["data"]] == ["0.txt", "2.txt"]  # what either has learned from
    with pytest.raises(FingerprintError, match="init"):
        _ = run(files, corpus / "0.txt", tmp_path / "b", kept, steps=1).done
    with pytest.raises(UsageError, match="rank 2"):
        run(files, corpus, tmp_path / "c", init=tmp_path / "a", rank=4)
    with pytest.raises(FingerprintError, match="split 2, not 1"):
        run(files, corpus, tmp_path / "c", init=tmp_path / "a", split=1)


def test_two_processes_do_not_train_into_one_directory(files, corpus, tmp_path):
    with RunFolder(tmp_path / "a").locked(), pytest.raises(LockedError):
        run(files, corpus, tmp_path / "a").run(nothing, nothing, nothing)


@pytest.mark.parametrize("kind", ["suffix", "write"])
def test_weights_of_16_bits_are_trained_on_as_well(files, corpus, tmp_path, kind):
    """LoRA stays in fp32 there; found when a Write adapter was first trained in bf16."""
    record = run(files, corpus, tmp_path / kind, kind=kind, dtype="bf16", steps=1, lr=0.01).run(
        nothing, nothing, nothing
    )
    assert record["computed"]["dtype"] == "bfloat16"
    weights = load_file(str(tmp_path / kind / "adapter_model.safetensors"))
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    assert any(weight.abs().max() > 0 for name, weight in weights.items() if ".lora_B." in name)


def test_a_write_adapter_brings_chunks_nearer_to_document_context(files, corpus, tmp_path):
    options = DistillOptions(**{**SMALL.to_dict(), "kind": "write"}).checked(load.identity(files))
    lesson = Lesson(load.load(files, torch.device("cpu"), torch.float32), load.identity(files), options)
    assert not any(".layers.2." in name for name, _ in lesson.parameters)
    drawn = samples_of(lesson, files, 20)
    samples = [one for one in drawn if any(min(stretch.picked) > 0 for stretch in one[1].stretches)][:3]  # not a start
    optimiser = torch.optim.AdamW([weight for _, weight in lesson.parameters], lr=0.01)
    errors = []
    for _ in range(12):
        optimiser.zero_grad()
        loss, parts = lesson.loss(samples)
        loss.backward()
        optimiser.step()
        errors.append(parts["error"][0])
    assert errors[-1] < 0.8 * errors[0]
    run(files, corpus, tmp_path / "w", kind="write", steps=1).run(nothing, nothing, nothing)
    assert read_adapter(tmp_path / "w").kind == "write"


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            {"split": 4},
            {"kind": "odd"},
            {"kind": "write", "split": 0},
            {"steps": 0},
            {"visits": 0},
            {"lr": 0.0},
            {"length": 9999},
        ),
        *({"mix": "odd=1"}, {"mix": "fact"}, {"mix": "fact=0"}, {"length": 100}, {"mode": "odd"}, {"overlap": -1}),
        *({"visits": 0}, {"parts": 0}, {"grow": -1}, {"gold": 1.5}),
    ],
)
def test_options_out_of_range_are_refused(files, corpus, tmp_path, wrong):
    with pytest.raises(UsageError):
        run(files, corpus, tmp_path / "a", **wrong)
