"""Names, places, times and things shared by the families, and functions that draw from them.

The words are few and common, so that most of them are one token of a small tokenizer.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text, as a short notation for a pool."""
    return tuple(text.split())


GIRLS = words(
    "Anna Clara Emma Eva Julia Laura Lena Lisa Lucy Maria Mia Nina Nora Olga Paula "
    "Rosa Ruth Sara Sofia Tina Vera Alice Ella Grace Helen Irene Jane Kate Mary Zoe"
)
BOYS = words(
    "Adam Alex Ben Carl Daniel David Erik Felix Frank George Hugo Ivan Jack James Jonas "
    "Leo Lucas Mark Martin Max Noah Paul Peter Robert Sam Simon Thomas Tom Victor Walter"
)
SURNAMES = words(
    "Adler Baker Berg Brown Carter Cook Dahl Fischer Fox Green Hall Hansen Hill Hunter "
    "Jensen Keller King Lang Larsen Lee Lindholm Marsh Meyer Miller Moore Novak Olsen "
    "Palmer Parker Reed Rossi Schmidt Stone Taylor Turner Vogel Walker Weber White Wood"
)
TOWNS = words(
    "Ashford Bakewell Brookfield Clayton Clifton Crossley Dalton Eastwood Fairview Fernhill "
    "Glenwood Greenfield Hartley Highbridge Kingsford Lakeside Linton Longfield Marlow "
    "Meadowbrook Millbrook Newport Norwood Oakdale Redhill Riverton Rosewood Seaton Shelby "
    "Stonebridge Sunfield Tarsund Thornton Waterford Westbrook Whitby Winfield Woodside"
)
CITIES = words("Athens Berlin Boston Dublin Lisbon London Madrid Oslo Paris Prague Rome Vienna")
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = words(
    "January February March April May June July August September October November December"
)
PET_NAMES = words("Bella Luna Rex Rocky Milo Daisy Coco Lucky Oscar Simba")
NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven")


@dataclass(frozen=True, slots=True)
class Person:
    """A first name and its pronouns."""

    name: str
    subject: str
    possessive: str

    @property
    def opening(self) -> str:
        """The subject pronoun at the start of a sentence."""
        return self.subject.capitalize()


def people(rng: random.Random, count: int) -> list[Person]:
    """Draw `count` different persons."""
    return [person_named(name) for name in rng.sample(GIRLS + BOYS, count)]


def person_named(name: str) -> Person:
    """Return the person with a first name of the pools."""
    if name in GIRLS:
        return Person(name, "she", "her")
    return Person(name, "he", "his")


def full_name(rng: random.Random) -> str:
    """Draw a first name and a surname."""
    return f"{rng.choice(GIRLS + BOYS)} {rng.choice(SURNAMES)}"


def year(rng: random.Random) -> int:
    """Draw a year of the last two centuries."""
    return rng.randint(1820, 2020)


def scaled(rng: random.Random, low: int, high: int, size: float) -> int:
    """Draw from `low` up to a limit that grows from `low` at size 0 to `high` at size 1."""
    return rng.randint(low, low + round((high - low) * size))


def listed(items: Sequence[str]) -> str:
    """Return `a, b and c`."""
    if len(items) == 1:
        return items[0]
    return ", ".join(items[:-1]) + " and " + items[-1]


def with_article(noun: str) -> str:
    """Return `a key` or `an apple`."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
