"""Models that accelerate spreads over several places: here main memory and disk, where no GPU is."""

import pytest
import torch

from comem_cli.measure import contracts
from comem_cli.model import load
from comem_cli.model.modes import DocumentMode
from comem_cli.model.pretrained import read_model
from comem_cli.model.shapes import Shape
from comem_cli.model.split import SplitModel
from tests.tiny import BOS_ID, save_tiny

LAYERS = 6
IDS = [(7 * i * i + 11 * i) % 500 + 3 for i in range(60)]


@pytest.fixture(scope="module", params=["llama", "gemma3_text", "qwen3_moe"])
def directory(request, tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("spread") / "model", request.param, layers=LAYERS)


@pytest.fixture(scope="module")
def spread(directory, tmp_path_factory):
    """Every second layer, and the final norm, on disk."""
    plain = read_model(directory, torch.float32)
    places = {name: "cpu" for name, _ in plain.named_children() if name != "model"}
    places |= {f"model.{name}": "cpu" for name, _ in plain.model.named_children() if name != "layers"}
    places |= {f"model.layers.{i}": "disk" if i % 2 else "cpu" for i in range(LAYERS)} | {"model.norm": "disk"}
    return read_model(directory, torch.float32, device_map=places, offload_folder=tmp_path_factory.mktemp("offload"))


def test_the_halves_are_exact_wherever_layers_lie(spread):
    assert {str(parameter.device) for parameter in spread.parameters()} == {"cpu", "meta"}
    assert contracts.partition_error(spread, IDS) == 0.0
    assert contracts.oracle_error(spread, BOS_ID, IDS, 3) == 0.0
    assert contracts.replay_mismatches(spread, BOS_ID, IDS[:40], IDS[40:], new_tokens=6) == 0
    worst, flips = contracts.decode_error(spread, BOS_ID, IDS[:40], IDS[40:], 3, new_tokens=4)
    assert worst <= 1e-4
    assert flips == 0


def test_write_gives_the_bits_of_the_model_in_one_place(directory, spread):
    batch = torch.tensor([IDS, IDS[::-1]])
    whole = read_model(directory, torch.float32)
    with torch.inference_mode():
        found, wanted = (SplitModel(model, 4).lower(batch) for model in (spread, whole))
    assert torch.equal(found, wanted)
    assert SplitModel(spread, 4).device == torch.device("cpu")
    mode = DocumentMode(window=256)
    document = [torch.tensor(IDS[at : at + 16], dtype=torch.int32).numpy().tobytes() for at in (0, 16, 32)]
    rows = []
    for model in (spread, whole):
        writer = mode.writer(SplitModel(model, 4), (Shape(1, 16),))
        pending = mode.pending(document, lambda left, ids: (left + ids).hex())
        done = [one for chunk in pending for one in writer.add(chunk)] + list(writer.flush())
        rows.append([bytes(data) for _, data in done])
    assert rows[0] == rows[1]


@pytest.mark.parametrize(("free", "spreads"), [(10**12, False), (1000, True)])
def test_a_model_is_spread_where_it_does_not_fit_the_gpu(directory, monkeypatch, free, spreads):
    given = []

    class Model:
        def to(self, device):
            given.append(str(device))
            return self

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, free))
    monkeypatch.setattr("comem_cli.model.pretrained.read_model", lambda *args, **more: given.append(more) or Model())
    load.load(load.resolve(str(directory)), torch.device("cuda:0"), torch.bfloat16)
    assert given == (
        [{"device_map": "auto", "offload_folder": given[0].get("offload_folder")}] if spreads else [{}, "cuda:0"]
    )
