"""Word problems solved in steps, with integers up to 40."""

import random
from dataclasses import dataclass

from recipes.tiny.corpus.families import Conversation
from recipes.tiny.corpus.families.pools import Person, people, scaled, words

FAMILY = "math_reasoning"

_MAX_VALUE = 40
_MAX_OPERAND = 9
_THINGS = words(
    "apples pears plums eggs nuts books pens cards stamps coins stones shells balls "
    "cakes cups plates boxes flowers tickets photos buttons marbles candles toys"
)
_OPENINGS = (
    "{name} has {start} {things}.",
    "{name} starts with {start} {things}.",
    "{name} owns {start} {things}.",
)
_QUESTIONS = (
    "How many {things} does {name} have now?",
    "How many {things} does {name} have in the end?",
    "How many {things} are left with {name}?",
    "What is the number of {things} that {name} has now?",
)
_REQUESTS = (
    "{story} {question}",
    "Solve this step by step. {story} {question}",
    "{story} {question} Show your steps.",
    "Please help me with this problem: {story} {question}",
)


@dataclass(frozen=True, slots=True)
class _Step:
    """One event of a story, as told by the question and by the answer."""

    told: str
    sign: str
    operand: int

    def applied_to(self, value: int) -> int:
        """The count after this event."""
        if self.sign == "+":
            return value + self.operand
        if self.sign == "-":
            return value - self.operand
        return value * self.operand


def compose(rng: random.Random, size: float) -> Conversation:
    """Draw a problem of two steps at size 0 and up to three at size 1."""
    hero, *others = people(rng, 4)
    things = rng.choice(_THINGS)
    start = rng.randint(3, 10 + round(20 * size))
    opening = rng.choice(_OPENINGS).format(name=hero.name, start=start, things=things)
    steps = _draw_steps(rng, hero, others, things, start, scaled(rng, 2, 3, size))
    story = " ".join([opening, *(step.told for step in steps)])
    question = rng.choice(_QUESTIONS).format(name=hero.name, things=things)
    turn = rng.choice(_REQUESTS).format(story=story, question=question)
    return Conversation(FAMILY, (turn,), (_worked(hero, things, opening, start, steps),))


def _worked(hero: Person, things: str, opening: str, start: int, steps: list[_Step]) -> str:
    sentences = [opening]
    value = start
    for step in steps:
        after = step.applied_to(value)
        sentences.append(
            f"{step.told[:-1]}, so {hero.subject} has "
            f"{value} {step.sign} {step.operand} = {after} {things}."
        )
        value = after
    sentences.append(f"In the end {hero.name} has {value} {things}. The answer is {value}.")
    return " ".join(sentences)


def _draw_steps(
    rng: random.Random, hero: Person, others: list[Person], things: str, value: int, count: int
) -> list[_Step]:
    steps: list[_Step] = []
    for number in range(count):
        makers = [_gain, _loss]
        if value <= 10 and all(step.sign != "x" for step in steps):
            makers.append(_growth)
        if value < 6:
            makers.remove(_loss)
        if value > 30:
            makers.remove(_gain)
        steps.append(rng.choice(makers)(rng, hero, others[number], things, value))
        value = steps[-1].applied_to(value)
        assert 0 < value <= _MAX_VALUE, value
    return steps


def _gain(rng: random.Random, hero: Person, other: Person, things: str, value: int) -> _Step:
    more = rng.randint(2, min(_MAX_OPERAND, _MAX_VALUE - value))
    told = rng.choice(
        (
            f"{hero.opening} buys {more} more {things}.",
            f"{hero.opening} finds {more} more {things}.",
            f"{hero.opening} gets {more} {things} from {other.name}.",
            f"{other.name} gives {hero.name} {more} {things}.",
        )
    )
    return _Step(told, "+", more)


def _loss(rng: random.Random, hero: Person, other: Person, things: str, value: int) -> _Step:
    fewer = rng.randint(2, min(_MAX_OPERAND, value - 2))
    told = rng.choice(
        (
            f"{hero.opening} gives {fewer} {things} to {other.name}.",
            f"{hero.opening} sells {fewer} {things} to {other.name}.",
            f"{hero.opening} loses {fewer} {things}.",
            f"{other.name} takes {fewer} of the {things}.",
        )
    )
    return _Step(told, "-", fewer)


def _growth(rng: random.Random, hero: Person, other: Person, things: str, value: int) -> _Step:
    factor = rng.randint(2, 4)
    told = rng.choice(
        (
            f"A day later {hero.subject} has {factor} times as many {things}.",
            f"A week later {hero.subject} has {factor} times as many {things}.",
        )
    )
    return _Step(told, "x", factor)
