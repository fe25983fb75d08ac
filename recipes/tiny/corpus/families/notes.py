"""Short texts on request, then again with one change.

`size` has no effect; it is a parameter because all kinds of talk have the same signature.
"""

import random
from dataclasses import dataclass, replace

from recipes.tiny.corpus.families import Exchange
from recipes.tiny.corpus.families.pools import (
    CITIES,
    DAYS,
    PET_NAMES,
    people,
    with_article,
    words,
)

_MEALS = ("a dinner", "a party", "a picnic", "a concert", "a lunch", "a film evening")
_GIFTS = words("book lamp scarf clock vase hat camera guitar kite puzzle")
_HEROES = words("cat dog fox mouse bear owl rabbit wolf")
_FINDS = words("key map coin ring letter lamp bell crown")
_PLACES = words("garden forest castle cave village tower")


@dataclass(frozen=True, slots=True)
class _Invitation:
    host: str
    guest: str
    meal: str
    day: str
    hour: int
    city: str

    def text(self) -> str:
        return (
            f"Dear {self.guest}, I would like to invite you to {self.meal} in {self.city}. "
            f"It will be on {self.day} at {self.hour} o'clock. "
            f"Please tell me if you can come to {self.city} on {self.day}. "
            f"Best wishes, {self.host}"
        )


@dataclass(frozen=True, slots=True)
class _Thanks:
    writer: str
    giver: str
    gift: str
    event: str

    def text(self) -> str:
        return (
            f"Dear {self.giver}, thank you very much for the {self.gift} that you gave me for my "
            f"{self.event}. It is a beautiful {self.gift}, and I will think of you when I see it. "
            f"I hope to see you soon. With love, {self.writer}"
        )


@dataclass(frozen=True, slots=True)
class _Story:
    name: str
    hero: str
    find: str
    place: str

    def text(self) -> str:
        return (
            f"Once upon a time there was {with_article(self.hero)} named {self.name}. "
            f"One day {self.name} went to the {self.place} and found an old {self.find}. "
            f"Nobody in the {self.place} knew whose {self.find} it was. "
            f"So the {self.hero} took the {self.find} home, "
            f"and {self.name} was happy for the rest of the year."
        )


def invitation(rng: random.Random, size: float) -> tuple[Exchange, Exchange]:
    """Draw an invitation, then the same one for another guest, day or city."""
    host, guest, other = (person.name for person in people(rng, 3))
    (day, new_day), (city, new_city) = rng.sample(DAYS, 2), rng.sample(CITIES, 2)
    first = _Invitation(host, guest, rng.choice(_MEALS), day, rng.randint(1, 9), city)
    wish = f"{first.meal} on {day} at {first.hour} in {city}"
    asked = rng.choice(
        (
            f"Write an invitation from {host} to {guest} for {wish}.",
            f"Please write a short mail in which {host} invites {guest} to {wish}.",
        )
    )
    change, second = rng.choice(
        (
            (f"Write the same with Dear {other}.", _addressed(replace(first, guest=other))),
            (f"Now change the day to {new_day}.", replace(first, day=new_day).text()),
            (
                f"Please write it again with {new_city} in place of {city}.",
                replace(first, city=new_city).text(),
            ),
        )
    )
    return Exchange(asked, first.text()), Exchange(change, second)


def thanks(rng: random.Random, size: float) -> tuple[Exchange, Exchange]:
    """Draw a note of thanks, then the same one for another gift or giver."""
    writer, giver, other = people(rng, 3)
    gift, new_gift = rng.sample(_GIFTS, 2)
    event = rng.choice(("birthday", "wedding", "new job", "new house"))
    first = _Thanks(writer.name, giver.name, gift, event)
    occasion = f"{writer.possessive} {event}"
    asked = rng.choice(
        (
            f"Write a note in which {writer.name} thanks {giver.name} for a {gift}. "
            f"It was a gift for {occasion}.",
            f"{giver.name} gave {writer.name} a {gift} for {occasion}. "
            "Write a short note of thanks.",
        )
    )
    change, second = rng.choice(
        (
            (
                f"The gift was a {new_gift}. Please correct the note.",
                replace(first, gift=new_gift).text(),
            ),
            (
                f"Please correct the note with Dear {other.name}.",
                _addressed(replace(first, giver=other.name)),
            ),
        )
    )
    return Exchange(asked, first.text()), Exchange(change, second)


def _addressed(letter: _Invitation | _Thanks) -> str:
    """Return the letter after a phrase that names its new addressee."""
    text = letter.text()
    return f"With {text.partition(',')[0]} it reads: {text}"


def story(rng: random.Random, size: float) -> tuple[Exchange, Exchange]:
    """Draw a story, then the same one with another hero, find or place."""
    hero, new_hero = rng.sample(_HEROES, 2)
    find, new_find = rng.sample(_FINDS, 2)
    place, new_place = rng.sample(_PLACES, 2)
    first = _Story(rng.choice(PET_NAMES), hero, find, place)
    asked = rng.choice(
        (
            f"Tell me a short story about {with_article(hero)} named {first.name} "
            f"and a {find} in a {place}.",
            f"Write a story: the {hero} {first.name} finds a {find} in a {place}.",
        )
    )
    change, second = rng.choice(
        (
            (f"Tell it again with {with_article(new_hero)}.", replace(first, hero=new_hero)),
            (f"Tell it again with a {new_find}.", replace(first, find=new_find)),
            (f"Let the story happen in a {new_place}.", replace(first, place=new_place)),
        )
    )
    return Exchange(asked, first.text()), Exchange(change, second.text())
