"""Choose where and in which number format a model runs. Imports torch inside its functions only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from comem_cli.errors import UsageError

if TYPE_CHECKING:
    import torch

DTYPES = {"bf16": "bfloat16", "fp32": "float32", "fp16": "float16"}
# Names of native bf16 arithmetic: in torch.cpu.get_capabilities() and, on Linux, in /proc/cpuinfo (x86 flags, Arm
# features). Without it the CPU emulates bf16, slower than fp32.
_BF16_FEATURES = {"avx512_bf16", "amx_bf16", "bf16", "sve_bf16", "svebf16"}
_CPUINFO = Path("/proc/cpuinfo")


def available() -> list[str]:
    """List the devices that torch can use here, best first: cuda:0, cuda:1, ..., mps, cpu."""
    import torch

    found = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    if torch.backends.mps.is_available():
        found.append("mps")
    return [*found, "cpu"]


def pick(device: str = "auto", dtype: str = "auto") -> tuple[torch.device, torch.dtype]:
    """Turn `--device` and `--dtype` into torch's own values.

    device: auto (the best there is), cpu, mps, cuda or cuda:N. dtype: auto (bf16 where the device computes it natively,
    else fp32), bf16, fp32 or fp16. Raises UsageError for a device that is not there and for an unknown dtype.
    """
    import torch

    if dtype != "auto" and dtype not in DTYPES:
        raise UsageError(f"unknown dtype '{dtype}'", f"pass --dtype auto, {', '.join(DTYPES)}")
    there = available()
    wanted = {"auto": there[0], "cuda": "cuda:0"}.get(device, device)
    if wanted not in there:
        raise UsageError(f"device '{device}' is not available", f"pass --device auto, {', '.join(there)}")
    chosen = torch.device(wanted)
    name = dtype if dtype != "auto" else ("bf16" if native_bf16(chosen) else "fp32")
    number: torch.dtype = getattr(torch, DTYPES[name])
    return chosen, number


def fits(weights: float, device: torch.device) -> bool:
    """Tell whether `weights` bytes leave a GPU a tenth of its free memory; elsewhere that is not asked."""
    import torch

    return device.type != "cuda" or weights < 0.9 * torch.cuda.mem_get_info(device)[0]


def native_bf16(device: torch.device) -> bool:
    """Tell whether a device computes in bf16 itself: CUDA capability 8 and up, Metal when it can, a CPU with bf16."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type == "mps":
        return _metal_computes_bf16()
    return _cpu_has_bf16()


def _metal_computes_bf16() -> bool:
    """Try one product: whether Metal knows bf16 depends on the chip and on the macOS release."""
    import torch

    try:
        ones = torch.ones((2, 2), dtype=torch.bfloat16, device="mps")
        return bool((ones @ ones).float().cpu().eq(2).all())
    except (RuntimeError, TypeError):
        return False


def _cpu_has_bf16() -> bool:
    import torch

    read = getattr(torch.cpu, "get_capabilities", None)  # newer than the oldest torch that comem accepts
    if read is not None:
        return any(read().get(feature) for feature in _BF16_FEATURES)
    if not _CPUINFO.exists():  # not Linux
        return False
    return not _BF16_FEATURES.isdisjoint(_CPUINFO.read_text(encoding="utf-8", errors="replace").split())
