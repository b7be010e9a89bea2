"""Plan what is planted in one pack: facts and chains, how they are stated, and in which stretch each stands."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

from comem_cli.model import distill_phrases as phrases
from comem_cli.model.distill_chains import Chain, draw_chains
from comem_cli.model.distill_facts import Fact, draw_facts, draw_mixed
from comem_cli.model.distill_stretch import Plant

_FACT_TOKENS = 40  # about what a planted line and its share of text need
MOST_FACTS = 12
_ALIKE = 0.75  # share of packs whose facts have all one form and one noun, so that each distracts from the others


@dataclass(frozen=True)
class Planting:
    """Hold the planted things of one pack in the order of `lines`: those that are asked for first."""

    things: tuple[Fact | Chain, ...] = ()
    lines: tuple[Plant, ...] = ()

    def standing(self, numbers: Collection[int]) -> tuple[list[Fact], list[Chain]]:
        """Return the facts and the chains with these numbers, in order."""
        found = [self.things[number] for number in sorted(numbers)]
        return [one for one in found if isinstance(one, Fact)], [one for one in found if isinstance(one, Chain)]


def draw_planting(rng: random.Random, *, facts: int, chains: int, tokens: int, held: bool) -> Planting:
    """Draw what a pack of `tokens` tokens that is asked for `facts` facts and `chains` chains holds.

    With facts there are 2 to 12 of them, fewer in a short pack; in most packs all have one form and one noun, so that
    each is a distractor of the others. With chains there is at least one more, of another value.
    """
    things: list[Fact | Chain] = []
    lines: list[Plant] = []
    if chains:
        styles = phrases.HELD_CHAIN_STATEMENTS if held else phrases.CHAIN_STATEMENTS
        style = rng.choice(styles)
        for chain in draw_chains(rng, chains + 1, 4 if tokens >= 8 * _FACT_TOKENS else 2):
            things.append(chain)
            lines.append(chain.state(*style))
    if facts:
        most = max(facts, 2, min(MOST_FACTS, tokens // _FACT_TOKENS))
        count = rng.randint(max(facts, 2), most)
        statements = phrases.HELD_STATEMENTS if held else phrases.STATEMENTS
        alike = rng.random() < _ALIKE
        drawn = draw_facts(rng, count) if alike else draw_mixed(rng, count)
        statement = rng.choice(statements)
        for fact in drawn:
            things.append(fact)
            lines.append((fact.state(statement if alike else rng.choice(statements)),))
    return Planting(tuple(things), tuple(lines))
