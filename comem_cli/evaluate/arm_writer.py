"""Write chunks in memory as a store keeps them, in one arm's mode.

Residuals are rounded to bf16, in an arm of int8 residuals turned into records and back, and come from the same batch
shapes as those of `ingest`: they have the bits that a fetch gives from a store that was written in the arm's mode.
Those that several packs share are kept, up to a bound.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from comem_cli.evaluate.arm_adapters import ArmAdapters, Forks
from comem_cli.evaluate.arms import Arm
from comem_cli.model.load import ModelIdentity
from comem_cli.model.modes import make_mode
from comem_cli.model.shapes import TOKENS_PER_BATCH, Pending, shapes_to_json
from comem_cli.model.split import SplitModel
from comem_cli.store.fingerprint import Fingerprint, chunk_key
from comem_cli.store.identify import fingerprint_for
from comem_cli.store.row_layout import RowLayout

KEPT_BYTES = 1 << 27  # residuals of one arm in memory


class ArmWriter:
    """Write packs for one arm of a loaded model; chunk: tokens, keep: bytes of residuals in memory."""

    def __init__(
        self,
        arm: Arm,
        forks: Forks,
        identity: ModelIdentity,
        chunk: int,
        adapters: ArmAdapters,
        keep: int = KEPT_BYTES,
    ) -> None:
        self._split = SplitModel(forks.of(adapters.write), arm.split)
        self._mode = make_mode(arm.mode, arm.overlap, identity.window)
        tokens = TOKENS_PER_BATCH[self._split.device.type]
        shapes = self._mode.shapes(chunk, tokens, routed=identity.routed)
        listed = shapes_to_json(shapes) if arm.split else "[]"
        self.fingerprint: Fingerprint = fingerprint_for(
            identity,
            split=arm.split,
            chunk=chunk,
            overlap=arm.overlap,
            mode=arm.mode,
            shapes=listed,
            residual_dtype=arm.residual_dtype,
        )
        self._layout = RowLayout.of(self.fingerprint, self._split.width)
        if adapters.write is not None:
            self.fingerprint = replace(self.fingerprint, write_adapter=adapters.write.digest)
        self._key = partial(chunk_key, self.fingerprint.digest())
        self._writer = self._mode.writer(self._split, shapes)
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._size, self._bound = 0, keep

    def rows(self, documents: Sequence[Sequence[bytes]]) -> torch.Tensor:
        """Return the rows (n, d) of a pack: embedded at j = 0, else written in the arm's mode, as a fetch gives them.

        documents: for each chunk of the pack, in its order, the chunks of its document from the first through itself,
        ids as uint32 LE bytes.
        """
        if not self._split.split:
            ids = np.frombuffer(b"".join(document[-1] for document in documents), dtype="<u4").astype(np.int64)
            with torch.inference_mode():
                return self._split.lower(torch.from_numpy(ids)[None].to(self._split.device))[0]
        pending = [self._mode.pending(document, self._key)[-1] for document in documents]
        missing = {one.key: one for one in pending if one.key not in self._kept}
        for one in missing.values():
            self._keep(self._writer.add(one))
        self._keep(self._writer.flush())
        data = bytearray(b"".join(self._kept[one.key] for one in pending))
        self._forget({one.key for one in pending})
        return torch.frombuffer(data, dtype=torch.bfloat16).view(-1, self._split.width)

    def _keep(self, written: Iterable[tuple[Pending, bytes]]) -> None:
        for chunk, rows in written:
            rows = self._layout.round_trip(rows)
            self._kept[chunk.key] = rows
            self._size += len(rows)

    def _forget(self, wanted: set[str]) -> None:
        """Drop the residuals that were not used for longest, those of the present pack last."""
        for key in wanted:
            self._kept.move_to_end(key)
        while self._size > self._bound and len(self._kept) > len(wanted):
            self._size -= len(self._kept.popitem(last=False)[1])
