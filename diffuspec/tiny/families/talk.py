"""Two-turn chats: notes and stories, lists, a week's plan, three people in order.

The second turn asks to recall, to change or to rearrange what the first one was about.
"""

import random
from collections.abc import Callable

from diffuspec.tiny.families import Conversation
from diffuspec.tiny.families.pools import (
    CITIES,
    DAYS,
    NUMBER_WORDS,
    listed,
    people,
    scaled,
    with_article,
)

FAMILY = "mt_bench"

_PETS = ("cat", "dog", "parrot", "rabbit", "horse", "goat")
_PET_NAMES = "Bella Luna Rex Rocky Milo Daisy Coco Lucky Oscar Simba".split()
_HOBBIES = "swimming reading cooking painting dancing hiking singing fishing sailing".split()
_MEALS = ("a dinner", "a party", "a picnic", "a concert", "a lunch", "a film evening")
_GIFTS = "book lamp scarf clock vase hat camera guitar kite puzzle".split()
_ITEMS = (
    "apple bread candle desk egg fork glass hammer island jacket kettle lemon mirror needle "
    "orange pencil ring spoon table umbrella violin window"
).split()
_HEROES = ("cat", "dog", "fox", "mouse", "bear", "owl", "boy", "girl")
_FINDS = "key map coin ring letter lamp bell crown".split()
_PLACES = ("garden", "forest", "castle", "cave", "village", "tower")
_PLANS = ("swim read cook paint dance sing fish run rest travel work shop").split()
_COMPARISONS = (
    ("taller", "tallest", "shortest"),
    ("older", "oldest", "youngest"),
    ("faster", "fastest", "slowest"),
    ("stronger", "strongest", "weakest"),
)

_Turn = tuple[str, str]  # what the user says, the right answer


def compose(rng: random.Random, size: float) -> Conversation:
    """Draw a two-turn chat; lists have three items at size 0 and up to six at size 1."""
    first, second = rng.choice(_KINDS)(rng, size)
    return Conversation(FAMILY, (first[0], second[0]), (first[1], second[1]))


def _introduction(rng: random.Random, size: float) -> tuple[_Turn, _Turn]:
    name = people(rng, 1)[0].name
    city, hobby = rng.choice(CITIES), rng.choice(_HOBBIES)
    pet, pet_name = rng.choice(_PETS), rng.choice(_PET_NAMES)
    asked = rng.choice(
        (
            f"Hello! My name is {name}, I live in {city} and I like {hobby}. "
            f"I have a {pet} called {pet_name}.",
            f"Hi, I am {name} from {city}. I have a {pet} called {pet_name} and I like {hobby}.",
            f"I am {name}. My {pet} {pet_name} and I live in {city}. My hobby is {hobby}.",
        )
    )
    greeting = (
        f"Hello {name}, it is nice to meet you! {city} is a good place for you and your {pet} "
        f"{pet_name}. You told me that you like {hobby}. How can I help you today?"
    )
    recalled = rng.choice(
        (
            (f"What is the name of my {pet}?", f"The name of your {pet} is {pet_name}. "),
            ("What is my name?", f"Your name is {name}. "),
            ("Which city do I live in?", f"You live in {city}. "),
            ("What is my hobby?", f"Your hobby is {hobby}. "),
        )
    )
    known = f"You are {name} from {city}, you like {hobby} and you have a {pet} called {pet_name}."
    return (asked, greeting), (
        recalled[0],
        recalled[1] + "I know this from your first message. " + known,
    )


def _invitation(rng: random.Random, size: float) -> tuple[_Turn, _Turn]:
    host, guest, other = (person.name for person in people(rng, 3))
    meal, hour = rng.choice(_MEALS), rng.randint(1, 9)
    (day, new_day), (city, new_city) = rng.sample(DAYS, 2), rng.sample(CITIES, 2)
    asked = rng.choice(
        (
            f"Write an invitation from {host} to {guest} for {meal} on {day} at {hour} in {city}.",
            f"Please write a short mail in which {host} invites {guest} to {meal} in {city} "
            f"on {day} at {hour}.",
        )
    )
    change, new = rng.choice(
        (
            (f"Write the same to {other}.", (other, day, city)),
            (f"Now change the day to {new_day}.", (guest, new_day, city)),
            (f"Please write it again with {new_city} in place of {city}.", (guest, day, new_city)),
        )
    )
    first = _invitation_text(host, meal, hour, (guest, day, city))
    return (asked, first), (change, _invitation_text(host, meal, hour, new))


def _invitation_text(host: str, meal: str, hour: int, changing: tuple[str, str, str]) -> str:
    guest, day, city = changing
    return (
        f"Dear {guest}, I would like to invite you to {meal} in {city}. It will be on {day} at "
        f"{hour} o'clock. Please tell me if you can come to {city} on {day}. "
        f"Best wishes, {host}"
    )


def _thanks(rng: random.Random, size: float) -> tuple[_Turn, _Turn]:
    person, giver, other = people(rng, 3)
    gift, new_gift = rng.sample(_GIFTS, 2)
    event = rng.choice(("birthday", "wedding", "new job", "new house"))
    asked = rng.choice(
        (
            f"Write a note in which {person.name} thanks {giver.name} for a {gift}. "
            f"It was a gift for {person.possessive} {event}.",
            f"{giver.name} gave {person.name} a {gift} for {person.possessive} {event}. "
            "Write a short note of thanks.",
        )
    )
    change, new = rng.choice(
        (
            (f"The gift was a {new_gift}. Please correct the note.", (giver.name, new_gift)),
            (f"The gift came from {other.name}. Please correct the note.", (other.name, gift)),
        )
    )
    first = _thanks_text(person.name, event, giver.name, gift)
    return (asked, first), (change, _thanks_text(person.name, event, *new))


def _thanks_text(writer: str, event: str, giver: str, gift: str) -> str:
    return (
        f"Dear {giver}, thank you very much for the {gift} that you gave me for my {event}. "
        f"It is a beautiful {gift}, and I will think of you when I see it. "
        f"I hope to see you soon. With love, {writer}"
    )


def _story(rng: random.Random, size: float) -> tuple[_Turn, _Turn]:
    hero, new_hero = rng.sample(_HEROES, 2)
    find, new_find = rng.sample(_FINDS, 2)
    place, new_place = rng.sample(_PLACES, 2)
    name = rng.choice(_PET_NAMES)
    asked = rng.choice(
        (
            f"Tell me a short story about {with_article(hero)} named {name} and a {find} "
            f"in a {place}.",
            f"Write a story: the {hero} {name} finds a {find} in a {place}.",
        )
    )
    first = _story_text(name, hero, find, place)
    change, changed = rng.choice(
        (
            (
                f"Tell it again with {with_article(new_hero)}.",
                _story_text(name, new_hero, find, place),
            ),
            (f"Tell it again with a {new_find}.", _story_text(name, hero, new_find, place)),
            (
                f"Let the story happen in a {new_place}.",
                _story_text(name, hero, find, new_place),
            ),
        )
    )
    return (asked, first), (change, changed)


def _story_text(name: str, hero: str, find: str, place: str) -> str:
    return (
        f"Once upon a time there was {with_article(hero)} named {name}. One day {name} went to "
        f"the {place} and found an old {find}. Nobody in the {place} knew whose {find} it was. "
        f"So the {hero} took the {find} home, and {name} was happy for the rest of the year."
    )


def _alphabet(rng: random.Random, size: float) -> tuple[_Turn, _Turn]:
    items = rng.sample(_ITEMS, scaled(rng, 3, 6, size))
    ordered = sorted(items)
    asked = rng.choice(
        (
            f"Put these words in alphabetical order: {', '.join(items)}.",
            f"Sort these words from A to Z: {', '.join(items)}.",
        )
    )
    first = (
        f"You gave me {NUMBER_WORDS[len(items)]} words: {', '.join(items)}. "
        f"In alphabetical order they are: {', '.join(ordered)}."
    )
    follow_ups = (
        (
            "Now reverse the order.",
            f"From the last to the first they are: {', '.join(reversed(ordered))}.",
        ),
        (
            "Write each word with a capital letter.",
            f"With capital letters they are: {', '.join(map(str.capitalize, ordered))}.",
        ),
        (
            "Which word comes first and which comes last?",
            f"In {', '.join(ordered)} the first word is {ordered[0]} "
            f"and the last word is {ordered[-1]}.",
        ),
    )
    return (asked, first), rng.choice(follow_ups)


def _order(rng: random.Random, size: float) -> tuple[_Turn, _Turn]:
    a, b, c = (person.name for person in people(rng, 3))
    more, most, least = rng.choice(_COMPARISONS)
    facts = [f"{a} is {more} than {b}", f"{b} is {more} than {c}"]
    rng.shuffle(facts)
    question = rng.choice((f"Who is the {most}?", f"Who is the {least}?"))
    asked = f"{facts[0]}. {facts[1]}. {question}"
    steps = (
        f"{a} is {more} than {b}, and {b} is {more} than {c}. "
        f"So the order from the {most} to the {least} is {a}, {b}, {c}."
    )
    found = {most: a, least: c}[question.removesuffix("?").rsplit(" ", 1)[1]]
    word = most if found == a else least
    first = f"{steps} This means that {found} is the {word}."
    follow_ups = (
        (
            f"And who is the {least if word == most else most}?",
            f"The order from the {most} to the {least} is {a}, {b}, {c}. "
            f"This means that {c if found == a else a} is the {least if found == a else most}.",
        ),
        (
            "And who is in the middle?",
            f"The order from the {most} to the {least} is {a}, {b}, {c}. "
            f"This means that {b} is in the middle.",
        ),
        (
            f"List them from the {least} to the {most}.",
            f"From the {least} to the {most}: {c}, {b}, {a}.",
        ),
    )
    return (asked, first), rng.choice(follow_ups)


def _packing(rng: random.Random, size: float) -> tuple[_Turn, _Turn]:
    name = people(rng, 1)[0].name
    *items, extra = rng.sample(_ITEMS, 1 + scaled(rng, 3, 6, size))
    city = rng.choice(CITIES)
    taken = listed([with_article(item) for item in items])
    asked = rng.choice(
        (
            f"{name} travels to {city} with {taken}. Make a list of the things.",
            f"Make a packing list for {name}, who goes to {city} and needs {taken}.",
        )
    )
    gone = rng.choice(items)
    left = [item for item in items if item != gone]
    change, new = rng.choice(
        (
            (f"Please add {with_article(extra)}.", [*items, extra]),
            (f"Please take the {gone} off the list.", left),
        )
    )
    return (asked, _packing_text(name, city, items)), (change, _packing_text(name, city, new))


def _packing_text(name: str, city: str, items: list[str]) -> str:
    lines = "".join(f"\n- {with_article(item)}" for item in items)
    count = NUMBER_WORDS[len(items)]
    return f"Here is the packing list of {name} for {city}, with {count} things:{lines}"


def _week(rng: random.Random, size: float) -> tuple[_Turn, _Turn]:
    person = people(rng, 1)[0]
    count = scaled(rng, 3, 6, size)
    start = rng.randrange(len(DAYS) - count + 1)
    plan = list(zip(DAYS[start : start + count], rng.sample(_PLANS, count), strict=True))
    told = listed([f"to {activity} on {day}" for day, activity in plan])
    asked = rng.choice(
        (
            f"{person.name} wants {told}. Write this as a plan.",
            f"Write a plan for {person.name}, who wants {told}.",
        )
    )
    lines = "".join(f"\n- {day}: {activity}" for day, activity in plan)
    first = f"Here is the plan for {person.name} with {NUMBER_WORDS[count]} days:{lines}"
    day, activity = rng.choice(plan)
    follow_ups = (
        (
            f"What does {person.name} want to do on {day}?",
            f"{person.name} wants to {activity} on {day}. ",
        ),
        (
            f"On which day does {person.name} want to {activity}?",
            f"{person.name} wants to {activity} on {day}. ",
        ),
    )
    asked_again, found = rng.choice(follow_ups)
    closing = f"The plan of {person.name} has {NUMBER_WORDS[count]} days, from {plan[0][0]} to {plan[-1][0]}."
    return (asked, first), (asked_again, found + closing)


_KINDS: tuple[Callable[[random.Random, float], tuple[_Turn, _Turn]], ...] = (
    _introduction,
    _invitation,
    _thanks,
    _story,
    _alphabet,
    _order,
    _packing,
    _week,
)
