"""Two-turn chats: notes and stories, lists, a week's plan, the order of three people.

The second turn asks to recall, change or rearrange the content of the first one.
"""

import random
from dataclasses import dataclass

from recipes.tiny.corpus.families import Conversation, Exchange, notes
from recipes.tiny.corpus.families.pools import (
    CITIES,
    DAYS,
    NUMBER_WORDS,
    PET_NAMES,
    listed,
    people,
    scaled,
    with_article,
    words,
)

FAMILY = "mt_bench"

_PETS = words("cat dog parrot rabbit horse goat")
_HOBBIES = words("swimming reading cooking painting dancing hiking singing fishing sailing")
_ITEMS = words(
    "apple basket candle desk egg fork glass hammer island jacket kettle lemon mirror needle "
    "orange pencil ring spoon table umbrella violin window"
)
_LUGGAGE = tuple(item for item in _ITEMS if item not in ("desk", "island", "table", "window"))
_PLANS = words("swim read cook paint dance sing fish run rest travel work shop")
_COMPARISONS = (
    ("taller", "tallest", "shortest"),
    ("older", "oldest", "youngest"),
    ("faster", "fastest", "slowest"),
    ("stronger", "strongest", "weakest"),
)


def compose(rng: random.Random, size: float) -> Conversation:
    """Draw a two-turn chat; lists have three items at size 0 and up to six at size 1."""
    own = (_introduction, _numbering, _order, _packing, _week)
    kind = rng.choice((*own, notes.invitation, notes.thanks, notes.story))
    first, second = kind(rng, size)
    return Conversation(FAMILY, (first.turn, second.turn), (first.answer, second.answer))


def _introduction(rng: random.Random, size: float) -> tuple[Exchange, Exchange]:
    """Draw a self-introduction, then a question about it. `size` has no effect."""
    name = people(rng, 1)[0].name
    city, hobby = rng.choice(CITIES), rng.choice(_HOBBIES)
    pet, pet_name = rng.choice(_PETS), rng.choice(PET_NAMES)
    told = rng.choice(
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
    asked, recalled = rng.choice(
        (
            (f"What is the name of my {pet}?", f"The name of your {pet} is {pet_name}."),
            ("What is my name?", f"Your name is {name}."),
            ("Which city do I live in?", f"You live in {city}."),
            ("What is my hobby?", f"Your hobby is {hobby}."),
        )
    )
    known = (
        "I know this from your first message. "
        f"You are {name} from {city}, you like {hobby} and you have a {pet} called {pet_name}."
    )
    return Exchange(told, greeting), Exchange(asked, f"{recalled} {known}")


def _numbering(rng: random.Random, size: float) -> tuple[Exchange, Exchange]:
    """Draw words to number, then a question by number or another form of the list."""
    items = rng.sample(_ITEMS, scaled(rng, 3, 6, size))
    request = rng.choice(("Give each of these words a number", "Number these words"))
    given, numbered = ", ".join(items), [f"{n}. {item}" for n, item in enumerate(items, 1)]
    answer = f"Here are the words with their numbers: {', '.join(numbered)}."
    number = rng.randint(1, len(items))
    follow_ups = (
        Exchange(
            f"Which word has number {number}?",
            f"The list says {numbered[number - 1]}, so number {number} is {items[number - 1]}.",
        ),
        Exchange(
            "Write each word with a capital letter.",
            f"With capital letters they are: {', '.join(map(str.capitalize, items))}.",
        ),
        Exchange(
            "Which word comes first and which comes last?",
            f"In {given} the first word is {items[0]} and the last word is {items[-1]}.",
        ),
    )
    return Exchange(f"{request}: {given}.", answer), rng.choice(follow_ups)


@dataclass(frozen=True, slots=True)
class _Order:
    """Three names in order, and the words of the comparison."""

    names: tuple[str, ...]
    most: str
    least: str

    @property
    def stated(self) -> str:
        return f"the order from the {self.most} to the {self.least} is {', '.join(self.names)}."

    def concluded(self, word: str) -> str:
        """Return the order, and the person at the end that `word` names."""
        found = self.names[0] if word == self.most else self.names[-1]
        return f"{self.stated} This means that {found} is the {word}."


def _order(rng: random.Random, size: float) -> tuple[Exchange, Exchange]:
    """Draw comparisons of three people in pairs, and questions about their order."""
    more, most, least = rng.choice(_COMPARISONS)
    order = _Order(tuple(person.name for person in people(rng, 3)), most, least)
    first, middle, last = order.names
    pairs = [f"{first} is {more} than {middle}", f"{middle} is {more} than {last}"]
    asked, left = rng.sample((most, least), 2)
    answer = f"{pairs[0]}, and {pairs[1]}. So {order.concluded(asked)}"
    in_the_middle = f"So {order.stated} This means that {middle} is in the middle."
    reversed_names = ", ".join(reversed(order.names))
    follow_ups = (
        Exchange(f"And who is the {left}?", f"So {order.concluded(left)}"),
        Exchange("And who is in the middle?", in_the_middle),
        Exchange(
            f"List them from the {least} to the {most}.",
            f"The order from the {least} to the {most} is {reversed_names}.",
        ),
    )
    return Exchange(f"{'. '.join(pairs)}. Who is the {asked}?", answer), rng.choice(follow_ups)


def _packing(rng: random.Random, size: float) -> tuple[Exchange, Exchange]:
    """Draw a packing list, then its one-line form, its owner, or its first and last items."""
    name, city = people(rng, 1)[0].name, rng.choice(CITIES)
    items = [with_article(item) for item in rng.sample(_LUGGAGE, scaled(rng, 3, 6, size))]
    taken = listed(items)
    asked = rng.choice(
        (
            f"{name} travels to {city} with {taken}. Make a list of the things.",
            f"Make a packing list for {name}, who goes to {city} and needs {taken}.",
        )
    )
    title = f"the packing list of {name} for {city}"
    lines = "".join(f"\n- {item}" for item in items)
    follow_ups = (
        Exchange("Write it in one line.", f"Here is {title} in one line: {taken}."),
        Exchange("Who is the list for?", f"This is {title}. It is for {name}."),
        Exchange("Where does the trip go?", f"This is {title}. The trip goes to {city}."),
        Exchange("What is the first thing?", f"In {title} the first thing is {items[0]}."),
    )
    return Exchange(asked, f"Here is {title}:{lines}"), rng.choice(follow_ups)


def _week(rng: random.Random, size: float) -> tuple[Exchange, Exchange]:
    """Draw plans for some days to write as a list, then a question about one day."""
    name = people(rng, 1)[0].name
    count = scaled(rng, 3, 6, size)
    start = rng.randrange(len(DAYS) - count + 1)
    days = DAYS[start : start + count]
    plan = list(zip(days, rng.sample(_PLANS, count), strict=True))
    told = listed([f"to {activity} on {day}" for day, activity in plan])
    asked = rng.choice(
        (
            f"{name} wants {told}. Write this as a plan.",
            f"Write a plan for {name}, who wants {told}.",
        )
    )
    lines = "".join(f"\n- {day}: {activity}" for day, activity in plan)
    length = f"{NUMBER_WORDS[count]} days"
    first = Exchange(asked, f"Here is the plan for {name} with {length}:{lines}")
    day, activity = rng.choice(plan)
    recall, found = rng.choice(
        (
            (
                f"What does {name} want to do on {day}?",
                f'The plan says "{day}: {activity}", so {name} wants to {activity}.',
            ),
            (
                f"On which day does {name} want to {activity}?",
                f"{name} wants to {activity} on {day}.",
            ),
        )
    )
    closing = f"The plan of {name} has {length}, from {days[0]} to {days[-1]}."
    return first, Exchange(recall, f"{found} {closing}")
