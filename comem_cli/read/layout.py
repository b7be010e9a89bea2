"""Read variants: at which positions the chunks of a pack stand, and which of its tokens see each other.

Positions. "fresh" (default): 0, 1, 2, ... over the whole pack. "origin" (the paper's 2x2 control, Table 3): BOS at 0,
each chunk where it stands in its own document after a BOS of that document, so chunk number * c + offset (+ 1 with a
BOS); the query follows the largest position. Chunks of several documents keep the positions of their own document, so
positions can repeat; a chunk with several places takes the first in document order. A pack that is one whole document
has the same positions either way.
Attention. "full" (default): causal over the pack. "block" (the paper's Table 17): a chunk sees BOS and itself, query
and answer see everything. Order and sliding windows go by place in the pack, not by position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from comem_cli.errors import ModelError, UsageError
from comem_cli.model.families import require_movable

if TYPE_CHECKING:
    import torch

POSITIONS = ("fresh", "origin")
ATTENTION = ("full", "block")
_FULL, _SLIDING = "full_attention", "sliding_attention"  # layer types as Transformers names them


@dataclass(frozen=True)
class ReadVariant:
    """Choose positions and attention of a Read; raises UsageError (2) for an unknown name."""

    positions: str = "fresh"
    attention: str = "full"

    def __post_init__(self) -> None:
        if self.positions not in POSITIONS:
            raise UsageError(f"unknown positions '{self.positions}'", f"pass --read-positions {' or '.join(POSITIONS)}")
        if self.attention not in ATTENTION:
            raise UsageError(f"unknown attention '{self.attention}'", f"pass --attention {' or '.join(ATTENTION)}")


@dataclass(frozen=True)
class Layout:
    """Place the chunks of one pack: `lengths` in tokens, `starts` the offset of each chunk in its document."""

    variant: ReadVariant = ReadVariant()
    lengths: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()

    def position_ids(self, bos: int, query: int) -> torch.Tensor | None:
        """Return (1, t) int64 for `bos` (0 or 1) sink tokens, the chunks and `query` tokens; None where fresh."""
        if self.variant.positions == "fresh":
            return None
        import torch

        placed = list(range(bos))
        for length, start in zip(self.lengths, self.starts, strict=True):
            placed += range(bos + start, bos + start + length)
        after = max(placed, default=-1) + 1
        return torch.tensor([[*placed, *range(after, after + query)]])

    def attention_mask(self, bos: int, query: int, config: Any) -> torch.Tensor | dict[str, torch.Tensor] | None:
        """Return what the layers of a model with `config` attend to: bool (1, 1, t, t), True attends; None where full.

        A dict by layer type where a model mixes sliding and full layers, as Transformers takes it.
        Raises: ModelError for layers of another kind, and where positions or masks do not reach every layer.
        """
        if self.variant != ReadVariant():
            require_movable(config, "a Read that places or masks chunks")
        if self.variant.attention == "full":
            return None
        import torch

        chunks = [number for number, length in enumerate(self.lengths) for _ in range(length)]
        block = torch.tensor([-1] * bos + chunks + [len(self.lengths)] * query)
        at = torch.arange(len(block))
        sees_all = (block == len(self.lengths))[:, None]
        seen_by_all = (block == -1)[None, :]
        same = block[:, None] == block[None, :]
        return _by_layer_type((at[:, None] >= at[None, :]) & (same | sees_all | seen_by_all), config)


FRESH = Layout()


def _by_layer_type(allowed: torch.Tensor, config: Any) -> torch.Tensor | dict[str, torch.Tensor]:
    """Narrow the mask (t, t) to the window in sliding layers: Transformers uses a given 4-D mask as it is."""
    import torch

    types = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    other = sorted(types - {_FULL, _SLIDING})
    if other:
        raise ModelError(f"block attention does not work with '{other[0]}' layers", "pass --attention full")
    full = allowed[None, None]
    if types == {_FULL} or window is None:
        return full
    at = torch.arange(len(allowed))
    near = full & (at[:, None] - at[None, :] < window)
    return {_FULL: full, _SLIDING: near} if types else near
