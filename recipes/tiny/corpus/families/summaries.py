"""Short news stories of a small town, summarised in a fixed form for each kind of event."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from recipes.tiny.corpus.families import Conversation
from recipes.tiny.corpus.families.pools import DAYS, TOWNS, full_name, scaled

FAMILY = "summarization"

Slots = Mapping[str, str]

_REQUESTS = (
    "Summarize: {story}",
    "Summarize this story: {story}",
    "Please summarize the following text: {story}",
    "Give me a short summary of this text: {story}",
    "What is this text about? {story}",
    "{story}\nSummarize the text above.",
)
_FILLERS = (
    "The weather was {weather} that day.",
    "Many people came to {town} to see it.",
    "{other}, who lives nearby, took some photos.",
    "The street was closed for {minutes} minutes.",
    "The local newspaper wrote about it the next morning.",
    "A neighbour made tea for everybody.",
    "Some children watched from the other side of the street.",
    "The shops in the centre of {town} stayed open.",
    "Nothing like this has happened in {town} for years.",
    "{other} said that it was a day to remember.",
    "There was a long talk about it at the town hall.",
    "A dog barked all the time.",
)


@dataclass(frozen=True, slots=True)
class _Event:
    """A kind of story: four key sentences, the summary, and its own slots."""

    key_sentences: tuple[str, str, str, str]
    summary: str
    details: Callable[[random.Random], Slots]


def _fire(rng: random.Random) -> Slots:
    return {
        "place": rng.choice(("bakery", "old mill", "school", "hotel", "barn", "factory")),
        "cause": rng.choice(("a broken lamp", "a hot oven", "an old wire", "a candle")),
    }


def _opening(rng: random.Random) -> Slots:
    return {
        "place": rng.choice(("library", "bridge", "station", "museum", "park", "swimming pool")),
        "cause": rng.choice(("the old one was too small", "the town is growing")),
    }


def _storm(rng: random.Random) -> Slots:
    return {
        "place": rng.choice(("church", "market hall", "school", "station", "town hall")),
        "cause": rng.choice(("strong wind", "heavy rain", "ice and snow")),
    }


def _match(rng: random.Random) -> Slots:
    goals = rng.randint(2, 9)
    return {"place": rng.choice(TOWNS), "goals": str(goals), "fewer": str(rng.randrange(goals))}


def _lost(rng: random.Random) -> Slots:
    return {
        "animal": rng.choice(("cat", "dog", "parrot", "horse", "rabbit", "goat")),
        "place": rng.choice(("a barn", "a tall tree", "the forest", "a garden", "a boat")),
        "cause": rng.choice(("a door was left open", "a storm broke the fence")),
    }


def _theft(rng: random.Random) -> Slots:
    return {
        "thing": rng.choice(("painting", "bicycle", "gold ring", "violin", "silver cup", "clock")),
        "place": rng.choice(("museum", "church", "hotel", "school", "town hall")),
        "cause": rng.choice(("a window was open", "the guard was asleep", "the lock was broken")),
    }


def _sale(rng: random.Random) -> Slots:
    return {
        "thing": rng.choice(("cakes", "flowers", "old books", "toys", "pictures")),
        "place": rng.choice(("hospital", "school", "library", "fire station", "kindergarten")),
        "cause": rng.choice(("a new roof", "new windows", "a new kitchen", "a new car")),
    }


_EVENTS = (
    _Event(
        (
            "On {day} there was a fire in the {place} of {town}.",
            "The fire was caused by {cause}.",
            "{number} people had to leave the building.",
            '"Nobody was hurt," said {person} of the fire station.',
        ),
        "On {day} there was a fire in the {place} of {town}, caused by {cause}. "
        "{number} people had to leave the building. {person} said that nobody was hurt.",
        _fire,
    ),
    _Event(
        (
            "On {day} a new {place} was opened in {town}.",
            "It was needed because {cause}.",
            "The work took {number} months.",
            '"We are proud of it," said {person}, the mayor.',
        ),
        "On {day} a new {place} was opened in {town}, because {cause}. "
        "The work took {number} months. The mayor, {person}, is proud of it.",
        _opening,
    ),
    _Event(
        (
            "On {day} a storm hit {town}.",
            "The {place} was damaged by {cause}.",
            "{number} trees fell on the streets.",
            '"We will repair everything," said {person}, the mayor.',
        ),
        "On {day} a storm hit {town}, and the {place} was damaged by {cause}. "
        "{number} trees fell on the streets. "
        "The mayor, {person}, said that everything will be repaired.",
        _storm,
    ),
    _Event(
        (
            "On {day} the football team of {town} played against {place}.",
            "{town} won the match with {goals} to {fewer}.",
            "{number} fans watched the match.",
            "{person} shot the last goal.",
        ),
        "On {day} the football team of {town} won against {place} with {goals} to {fewer}. "
        "{number} fans watched the match. The last goal was shot by {person}.",
        _match,
    ),
    _Event(
        (
            "On {day} a {animal} was lost in {town}.",
            "It ran away because {cause}.",
            "{number} people helped to look for it.",
            "In the evening {person} found the {animal} in {place}.",
        ),
        "On {day} a {animal} was lost in {town}, because {cause}. "
        "{number} people helped to look for it. {person} found the {animal} in {place}.",
        _lost,
    ),
    _Event(
        (
            "On {day} a {thing} was stolen from the {place} of {town}.",
            "It was easy because {cause}.",
            "The police asked {number} people about it.",
            "{person} saw the thief and called the police.",
        ),
        "On {day} a {thing} was stolen from the {place} of {town}, because {cause}. "
        "The police asked {number} people about it. The thief was seen by {person}.",
        _theft,
    ),
    _Event(
        (
            "On {day} the people of {town} sold {thing} at the market.",
            "The money will help the {place} to pay for {cause}.",
            "{number} families took part.",
            '"Thank you all," said {person}, who had the idea.',
        ),
        "On {day} the people of {town} sold {thing} to help the {place} to pay for {cause}. "
        "{number} families took part. The idea came from {person}.",
        _sale,
    ),
)


def compose(rng: random.Random, size: float) -> Conversation:
    """Draw a story of four sentences at size 0 and up to twelve at size 1."""
    event = rng.choice(_EVENTS)
    slots = _draw_slots(rng, event)
    story = " ".join(_draw_sentences(rng, event, scaled(rng, 4, 12, size))).format_map(slots)
    turn = rng.choice(_REQUESTS).format(story=story)
    return Conversation(FAMILY, (turn,), (event.summary.format_map(slots),))


def _draw_slots(rng: random.Random, event: _Event) -> Slots:
    return {
        "day": rng.choice(DAYS),
        "town": rng.choice(TOWNS),
        "person": full_name(rng),
        "other": full_name(rng),
        "number": str(rng.randint(11, 99)),
        "minutes": str(rng.randint(11, 59)),
        "weather": rng.choice(("sunny", "cold", "windy", "warm", "rainy")),
        **event.details(rng),
    }


def _draw_sentences(rng: random.Random, event: _Event, count: int) -> list[str]:
    """Insert fillers after the first key sentence; key sentences keep their order."""
    sentences = list(event.key_sentences)
    for filler in rng.sample(_FILLERS, count - len(sentences)):
        sentences.insert(rng.randint(1, len(sentences)), filler)
    return sentences
