"""True facts of school knowledge, each asked in several ways.

The answer does not depend on the phrasing, so a held-out question asks for a known fact in a new
way.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from recipes.tiny.corpus.families import Conversation
from recipes.tiny.corpus.families.fact_tables import (
    ANIMALS,
    BOOKS,
    COUNTRIES,
    ELEMENTS,
    INVENTIONS,
    OPPOSITES,
    ORDINALS,
    PLANETS,
)
from recipes.tiny.corpus.families.pools import DAYS, MONTHS, with_article

FAMILY = "qa"

_FRAMES = ("{question}", "{question}", "I have a question. {question}")


@dataclass(frozen=True, slots=True)
class _Kind:
    """Facts of one form: rows of slots, phrasings of the question, and the answer."""

    rows: tuple[Mapping[str, str], ...]
    questions: tuple[str, ...]
    answer: str


def compose(rng: random.Random, size: float) -> Conversation:
    """Draw a fact and a phrasing. `size` has no effect."""
    kind = rng.choice(_kinds_by_share())
    row = rng.choice(kind.rows)
    question = rng.choice(kind.questions).format_map(row)
    turn = rng.choice(_FRAMES).format(question=question)
    return Conversation(FAMILY, (turn,), (kind.answer.format_map(row),))


@cache
def _kinds_by_share() -> tuple[_Kind, ...]:
    """Return each kind once per fact, so that facts are drawn evenly."""
    return tuple(kind for kind in _kinds() for _ in kind.rows)


def _kinds() -> Iterator[_Kind]:
    yield from _country_kinds()
    yield from _animal_kinds()
    yield from _order_kinds()
    yield from _word_kinds()
    yield from _people_kinds()


def _country_kinds() -> Iterator[_Kind]:
    about = "{country} is a country in {continent}, and its main language is {language}."
    yield _Kind(
        COUNTRIES,
        (
            "What is the capital of {country}?",
            "Which city is the capital of {country}?",
            "Name the capital of {country}.",
            "Tell me the capital city of {country}.",
            "Do you know the capital of {country}?",
        ),
        "The capital of {country} is {capital}. " + about,
    )
    yield _Kind(
        COUNTRIES,
        (
            "Which country has the capital {capital}?",
            "{capital} is the capital of which country?",
            "Of which country is {capital} the capital?",
            "What country is {capital} the capital of?",
            "Name the country whose capital is {capital}.",
        ),
        "{capital} is the capital of {country}. " + about,
    )
    yield _Kind(
        COUNTRIES,
        (
            "Which language do people speak in {country}?",
            "What is the main language of {country}?",
            "What language is spoken in {country}?",
            "Tell me the main language of {country}.",
            "Name the main language of {country}.",
        ),
        "The main language of {country} is {language}. "
        "{country} is a country in {continent}, and its capital is {capital}.",
    )
    yield _Kind(
        COUNTRIES,
        (
            "What is the currency of {country}?",
            "How do people pay in {country}?",
            "Which money is used in {country}?",
            "Name the currency of {country}.",
            "Tell me the currency of {country}.",
        ),
        "The currency of {country} is the {currency}. "
        "{country} is a country in {continent}, and its capital is {capital}.",
    )


def _animal_kinds() -> Iterator[_Kind]:
    rows = tuple(_with_articles(row) for row in ANIMALS)
    yield _Kind(
        rows,
        (
            "What is a young {animal} called?",
            "What is the young of {an_animal} called?",
            "What is the name for a young {animal}?",
            "Tell me the word for a young {animal}.",
            "What do we call a young {animal}?",
        ),
        "A young {animal} is called a {young}. It is a {young} until it is grown up.",
    )
    yield _Kind(
        rows,
        (
            "What sound does {an_animal} make?",
            "How does {an_animal} sound?",
            "Which sound does {an_animal} make?",
            "Tell me what sound {an_animal} makes.",
            "What does {an_animal} do when it makes a sound?",
        ),
        "When {an_animal} makes a sound, it {sound}. This is how you can hear {an_animal}.",
    )
    yield _Kind(
        rows,
        (
            "How many legs does {an_animal} have?",
            "What number of legs does {an_animal} have?",
            "Tell me how many legs {an_animal} has.",
            "On how many legs does {an_animal} walk?",
            "How many legs has {an_animal}?",
        ),
        "{An_animal} has {legs} legs. It needs all {legs} legs to walk and to run.",
    )


def _with_articles(row: Mapping[str, str]) -> Mapping[str, str]:
    named = with_article(row["animal"])
    return {**row, "an_animal": named, "An_animal": named.capitalize()}


def _order_kinds() -> Iterator[_Kind]:
    yield _Kind(
        _in_order(PLANETS),
        (
            "Which planet is the {nth} from the sun?",
            "What is the {nth} planet from the sun?",
            "Name the {nth} planet of the solar system.",
            "Tell me the {nth} planet from the sun.",
            "Which is the {nth} planet of the solar system?",
        ),
        "The {nth} planet from the sun is {name}. The solar system has eight planets.",
    )
    yield _Kind(
        _in_order(MONTHS),
        (
            "Which month is the {nth} of the year?",
            "What is the {nth} month of the year?",
            "Name the {nth} month of the year.",
            "Tell me the {nth} month of the year.",
            "What is the {nth} month of the year called?",
        ),
        "The {nth} month of the year is {name}. A year has twelve months.",
    )
    yield from _neighbour_kinds()


def _neighbour_kinds() -> Iterator[_Kind]:
    for names, what in ((MONTHS, "month"), (DAYS, "day")):
        yield _Kind(
            _in_order(names),
            (
                "Which " + what + " comes after {name}?",
                "What " + what + " comes after {name}?",
                "Name the " + what + " after {name}.",
                "Tell me the " + what + " that follows {name}.",
                "Which " + what + " follows {name}?",
            ),
            "The " + what + " after {name} is {after}. The " + what + " before {name} is {before}.",
        )


def _in_order(names: tuple[str, ...]) -> tuple[Mapping[str, str], ...]:
    """Return a row per name of a cycle: its position, and the names before and after it."""
    return tuple(
        {
            "name": name,
            "nth": ORDINALS[place],
            "before": names[place - 1],
            "after": names[(place + 1) % len(names)],
        }
        for place, name in enumerate(names)
    )


def _word_kinds() -> Iterator[_Kind]:
    turned = tuple({"word": row["other"], "other": row["word"]} for row in OPPOSITES)
    yield _Kind(
        OPPOSITES + turned,
        (
            'What is the opposite of "{word}"?',
            'Which word is the opposite of "{word}"?',
            'Tell me the opposite of "{word}".',
            'Give me the opposite of the word "{word}".',
            'What word means the opposite of "{word}"?',
        ),
        'The opposite of "{word}" is "{other}". Something that is {word} is not {other}.',
    )
    yield _Kind(
        ELEMENTS,
        (
            "What is the chemical symbol of {element}?",
            "Which symbol does {element} have?",
            "Tell me the chemical symbol of {element}.",
            "How do chemists write {element}?",
            "Name the chemical symbol of {element}.",
        ),
        "The chemical symbol of {element} is {symbol}. "
        "In the periodic table {element} has the number {number}.",
    )


def _people_kinds() -> Iterator[_Kind]:
    yield _Kind(
        BOOKS,
        (
            'Who wrote "{book}"?',
            'Who is the author of "{book}"?',
            'Tell me who wrote "{book}".',
            'Which writer wrote "{book}"?',
            'By whom was "{book}" written?',
        ),
        '"{book}" was written by {author}. The author of "{book}" came from {country}.',
    )
    yield _Kind(
        INVENTIONS,
        (
            "Who invented {thing}?",
            "Who is known as the inventor of {thing}?",
            "Tell me who invented {thing}.",
            "By whom was {thing} invented?",
            "Whose invention is {thing}?",
        ),
        "The inventor of {thing} is {person}. This inventor came from {country}.",
    )
