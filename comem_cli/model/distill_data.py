"""Draw what a distillation step reads: packs of chunks cut as at ingest, and query parts, both from a corpus.

A sample is a function of (texts, recipe, seed, number) alone, so a resumed run goes on with the data that an
undisturbed one sees. Its pack holds 1 to `max_chunks` chunks of one to three stretches of text, contiguous or not.
More chunks than fit at full length are shorter ones, as short files give. Importing this loads no torch.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from comem_cli.model.distill_parts import PartMaker
from comem_cli.model.distill_plants import Planting, draw_planting
from comem_cli.model.distill_sample import Recipe, Sample, Stretch, fitting
from comem_cli.model.distill_stretch import Cutter

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Sampler:
    """Draw samples from texts."""

    def __init__(self, texts: Sequence[str], tokenizer: Tokenizer, recipe: Recipe) -> None:
        """Keep what is long enough; raises UsageError (2) where nothing is."""
        self._cutter = Cutter(texts, tokenizer)
        self._tokenizer = tokenizer
        self._recipe = recipe

    def sample(self, seed: int, number: int, chunks: int | None = None) -> Sample:
        """Draw sample `number` of a run with this seed; `chunks`: with a pack of that many chunks, if they fit."""
        rng = random.Random(f"{seed}/{number}")
        recipe = self._recipe
        kinds = recipe.draw_kinds(rng)
        count, size = recipe.draw_shape(rng, number, chunks)
        planting = draw_planting(
            rng, facts=kinds.count("fact"), chains=kinds.count("chain"), tokens=count * size, held=recipe.held
        )
        stretches, standing = self._stretches(rng, count, size, planting)
        maker = PartMaker(self._tokenizer, stretches, planting.standing(standing), recipe.passage, recipe.held)
        parts = [part for part in (maker.make(rng, kind) for kind in kinds) if part is not None and part.ids]
        return Sample(tuple(stretches), fitting(parts or [maker.recite(rng)]))

    def _stretches(
        self, rng: random.Random, count: int, size: int, planting: Planting
    ) -> tuple[list[Stretch], set[int]]:
        """Cut the stretches of a pack; return them and the numbers of the plants wholly in the pack."""
        shares = _shares(rng, count)
        homes = rng.choices(range(len(shares)), shares, k=len(planting.lines))  # the stretch of each plant
        stretches, standing = [], set()
        for place, wanted in enumerate(shares):
            here = [number for number, home in enumerate(homes) if home == place]
            stretch, within = self._cutter.cut(rng, wanted, size, [planting.lines[number] for number in here])
            stretches.append(stretch)
            standing |= {here[at] for at in within}
        return stretches, standing


def _shares(rng: random.Random, count: int) -> list[int]:
    """Share `count` chunks out among one to three stretches."""
    cuts = sorted(rng.sample(range(1, count), min(count - 1, rng.randint(0, 2))))
    return [b - a for a, b in zip([0, *cuts], [*cuts, count], strict=True)]
