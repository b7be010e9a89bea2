from __future__ import annotations

from pathlib import Path

import pytest
import torch

from comem_cli.errors import UsageError
from comem_cli.model import device


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make torch report two CUDA devices: one of capability 7.5, one of 9.0."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda d: [(7, 5), (9, 0)][d.index])
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.fixture
def only_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


def test_auto_prefers_cuda_then_mps_then_cpu(monkeypatch: pytest.MonkeyPatch, only_cpu: None) -> None:
    assert device.available() == ["cpu"]
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert device.available() == ["mps", "cpu"]
    assert device.pick("auto", "fp32")[0] == torch.device("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert device.available() == ["cuda:0", "mps", "cpu"]
    assert device.pick("auto", "fp32")[0] == torch.device("cuda:0")


def test_auto_takes_bf16_where_the_gpu_computes_it_natively(two_gpus: None) -> None:
    assert device.pick("cuda", "auto") == (torch.device("cuda:0"), torch.float32)
    assert device.pick("cuda:1", "auto") == (torch.device("cuda:1"), torch.bfloat16)


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ({"avx512_bf16": True}, torch.bfloat16),
        ({"amx_bf16": True, "avx512_bf16": False}, torch.bfloat16),
        ({"bf16": True, "neon": True}, torch.bfloat16),
        ({"avx2": True, "avx512_bf16": False}, torch.float32),
    ],
)
def test_auto_takes_bf16_where_the_cpu_computes_it_natively(
    monkeypatch: pytest.MonkeyPatch, only_cpu: None, features: dict[str, bool], expected: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features, raising=False)
    assert device.pick() == (torch.device("cpu"), expected)


@pytest.mark.parametrize(
    ("name", "number"), [("bf16", torch.bfloat16), ("fp32", torch.float32), ("fp16", torch.float16)]
)
def test_a_dtype_asked_for_is_taken_on_any_device(only_cpu: None, name: str, number: torch.dtype) -> None:
    assert device.pick("cpu", name) == (torch.device("cpu"), number)


@pytest.mark.parametrize("absent", ["cuda:2", "mps", "tpu", ""])
def test_an_unavailable_device_is_refused_with_the_list_of_those_there(two_gpus: None, absent: str) -> None:
    with pytest.raises(UsageError) as caught:
        device.pick(absent)
    assert absent in caught.value.message
    assert "cuda:0, cuda:1, cpu" in caught.value.hint


def test_an_unknown_dtype_is_refused(only_cpu: None) -> None:
    with pytest.raises(UsageError, match="int4"):
        device.pick("cpu", "int4")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("flags : fpu avx512_bf16 sse", True),
        ("Features : fp asimd bf16", True),
        ("flags : fpu sse", False),
        (None, False),
    ],
)
def test_without_the_capability_list_of_torch_linux_tells(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, expected: bool
) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    monkeypatch.setattr(device, "_CPUINFO", tmp_path / "cpuinfo")
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert device.native_bf16(torch.device("cpu")) is expected
