"""Shipped adapters: what packing keeps, what a model card says, how large the embedded model's is."""

import json

import pytest
import torch
from safetensors.torch import load_file

from comem_cli.errors import UsageError
from comem_cli.evaluate.records import Record, RecordFile
from comem_cli.model import lora
from comem_cli.model.adapter import CONFIG, RECORD, WEIGHTS, Interface, read_adapter, record_of
from comem_cli.model.distill_corpus import Text
from dev.ship_adapter import answered, audited, card, ship
from tests.tiny import tiny_model

HELD = {"how": "named", "documents": [{"name": "held.txt"}]}
FIGURES = {"lm_tax": 1.25, "agreement": 0.9, "facts_copied": 0.5, "facts_copied_by_teacher": 0.75, "recited": 0.25}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    model = tiny_model("llama", 3)
    forked, config = lora.fork(model), lora.lora_config(model, 1, 3, 4, 8)
    for number, (_, weight) in enumerate(lora.inject(forked, config)):
        weight.data.normal_(std=0.1, generator=torch.Generator().manual_seed(number))
    lora.save_weights(folder, forked, config, "tiny")
    facts = {
        "model": "tiny",
        "steps": 3,
        "seed": 0,
        "options": {"batch": 2},
        "data": [{"name": "a.txt", "sha256": "aa", "tokens": 7}],
        "held_out": HELD,
        "metrics": {"before": {"step": 0, "packs": {"4": FIGURES}}, "after": {"step": 3, "packs": {"4": FIGURES}}},
    }
    record = record_of("suffix", Interface("aa", "bb", 1, 48, "chunk", 0), 4, 8, **facts)
    (folder / RECORD).write_text(json.dumps(record))
    return folder


def test_the_record_and_the_card_say_how_it_answers_beside_replay(trained, tmp_path):
    right = {
        "replay": (1, 1, 1, 0),
        "comem:j=1,mode=chunk,adapter=x": (1, 0, 1, 1),
        "comem:j=1,mode=chunk": (0, 0, 0, 0),
    }
    with RecordFile(tmp_path / "a.jsonl") as file:
        for arm, scores in right.items():
            for number, score in enumerate(scores):
                file.add(Record("needles", "d", "c", str(number), "", "", arm, arm, "", float(score), None, None))
        file.add(Record("alone", "e", "c", "0", "", "", "replay", "replay", "", 1.0, None, None))
    (found,) = answered([tmp_path / "a.jsonl"], "comem:j=1,mode=chunk,adapter=x")
    low, high = found["difference"][1:]
    assert low <= 0 <= high
    assert found | {"difference": 0} == {
        "cell": "needles", "n": 4, "replay": 0.75, "adapted": 0.75, "difference": 0, "kept": 2 / 3, "kept_n": 3,
        "gained": 1, "lost": 1, "p": 1.0,
    }  # fmt: skip
    record = ship(trained, tmp_path / "a", {"answers": [found]})
    assert read_adapter(tmp_path / "a").record["answers"] == record["answers"] == [found]
    assert "| needles | 4 | 0.750 | 0.750 | +0.000 [" in card("a", record, "Apache-2.0", None)
    with pytest.raises(SystemExit, match="by nobody"):
        answered([tmp_path / "a.jsonl"], "nobody")


def test_weights_are_rounded_to_bf16_and_the_rest_is_kept(trained, tmp_path):
    record = ship(trained, tmp_path / "a")
    before, after = load_file(trained / WEIGHTS), load_file(tmp_path / "a" / WEIGHTS)
    assert before.keys() == after.keys()
    for name, weight in after.items():
        assert torch.equal(weight, before[name].to(torch.bfloat16)), name
    assert (tmp_path / "a" / CONFIG).read_bytes() == (trained / CONFIG).read_bytes()
    shipped = read_adapter(tmp_path / "a")
    assert shipped.record == record == {**read_adapter(trained).record, "weights_dtype": "bfloat16"}
    model = tiny_model("llama", 3)
    read = lora.adapted(model, shipped, merge=False)
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        gap = (read(ids).logits - lora.adapted(model, read_adapter(trained))(ids).logits).abs().max()
        assert gap < 0.01 * (read(ids).logits - model(ids).logits).abs().max()
    with pytest.raises(FileExistsError):
        ship(trained, tmp_path / "a")
    with pytest.raises(UsageError):
        ship(tmp_path, tmp_path / "b")


def test_the_card_says_what_the_record_and_the_audit_say(trained):
    record = dict(read_adapter(trained).record)
    words = [f"word{number}" for number in range(40)]
    corpus = [Text("a.txt", "aa", " ".join(words)), Text("b.txt", "bb", "never trained on")]
    found = audited(record, corpus, [Text("e.txt", "ee", " ".join(words[10:30] + ["other"] * 20))])
    assert found.documents[0].contained == 8 and found.training_texts == 1
    text = card("mine", record, "MIT", found)
    for bit in (
        "# mine",
        "split 1",
        "MIT",
        "| 4 chunks | 3 | 1.2500 | 90.0% | 50% | 75% |  |  | 25% |  |",
        "held.txt",
        "| a.txt | 7 | aa |",
    ):
        assert bit in text, bit
    assert "| e.txt | 40 | 28 | 8 | 0.2857 |" in text
    assert "Not made" in card("mine", record, "MIT", None)
    assert "\n## On needles\n\n## Data" in card("mine", record, "MIT", None, "## On needles\n")
    with pytest.raises(SystemExit):
        audited(record, corpus[1:], [])


def test_the_adapter_of_the_embedded_model_at_split_12_is_below_12_mb():
    """Rank 32 on all 7 linear layers of layers [12:30), counted from the shapes of SmolLM2-135M, in bf16."""
    d, kv, wide = 576, 192, 1536
    shapes = [(d, d), (d, kv), (d, kv), (d, d), (d, wide), (d, wide), (wide, d)]
    assert 2 * 32 * sum(a + b for a, b in shapes) * (30 - 12) <= 12e6
