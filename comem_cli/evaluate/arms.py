"""The arms of an evaluation: what stands between the same pack and its answer.

    replay                        every layer over the pack's token ids: the matched j = 0 endpoint
    comem:j=12                    residuals of layer 12, written chunk by chunk
    comem:j=12,overlap=32         after the 32 tokens before a chunk
    comem:j=6,mode=document       after the document so far
    comem:j=12,adapter=DIR        read through an adapter
    comem:j=12,write_adapter=DIR  chunks written through an adapter of layers [0:j)
    comem:j=12,residual=int8      residuals kept as int8 records
    replay:adapter=DIR            replay with an adapter on

An arm's spec is its name in records and tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from comem_cli.errors import UsageError
from comem_cli.model.modes import make_mode
from comem_cli.store.row_layout import BF16, DTYPES

_EXAMPLE = "pass --arm replay or --arm comem:j=12,mode=chunk"


@dataclass(frozen=True)
class Arm:
    """Hold one arm; split 0 is replay."""

    split: int = 0
    mode: str = "chunk"
    overlap: int = 0
    adapter: Path | None = None
    write_adapter: Path | None = None
    residual_dtype: str = BF16  # as in a store's fingerprint

    @property
    def spec(self) -> str:
        """Return the canonical spec."""
        parts = [f"j={self.split}"] if self.split else []
        if self.split:
            parts.append(f"overlap={self.overlap}" if self.overlap else f"mode={self.mode}")
        if self.adapter is not None:
            parts.append(f"adapter={self.adapter}")
        if self.write_adapter is not None:
            parts.append(f"write_adapter={self.write_adapter}")
        head = "comem" if self.split else "replay"
        if self.residual_dtype != BF16:  # left out of others, whose records are known by their spec
            parts.append(f"residual={self.residual_dtype}")
        return f"{head}:{','.join(parts)}" if parts else head


REPLAY = Arm()


def parse_arm(spec: str) -> Arm:
    """Read a spec; raises UsageError (2) for one that is none."""
    head, _, rest = spec.partition(":")
    given: dict[str, str] = {}
    for part in filter(None, rest.split(",")):
        name, equals, value = part.partition("=")
        if not equals or name in given:
            raise UsageError(f"arm '{spec}': cannot read '{part}'", _EXAMPLE)
        given[name] = value
    adapter = Path(given.pop("adapter")) if "adapter" in given else None
    if head == "replay" and not given:
        return Arm(adapter=adapter)
    if head != "comem" or "j" not in given:
        raise UsageError(f"arm '{spec}' is neither replay nor comem with a split j", _EXAMPLE)
    write_adapter = Path(given.pop("write_adapter")) if "write_adapter" in given else None
    split, overlap = _number(spec, given.pop("j")), _number(spec, given.pop("overlap", "0"))
    mode = given.pop("mode", "overlap" if overlap else "chunk")
    residual = given.pop("residual", "bf16")
    if residual not in DTYPES:
        raise UsageError(f"arm '{spec}': residual is one of {', '.join(DTYPES)}", "pass residual=int8")
    if given:
        raise UsageError(f"arm '{spec}': unknown part '{next(iter(given))}'", _EXAMPLE)
    if split < 1:
        raise UsageError(f"arm '{spec}': a split below 1 is replay", _EXAMPLE)
    make_mode(mode, overlap, window=1)
    return Arm(split, mode, overlap, adapter, write_adapter, DTYPES[residual])


def parse_arms(specs: list[str]) -> tuple[Arm, ...]:
    """Read several specs, in their order, each once."""
    return tuple(dict.fromkeys(parse_arm(spec) for spec in specs))


def _number(spec: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UsageError(f"arm '{spec}': '{text}' is no number", _EXAMPLE)
    return int(text)
