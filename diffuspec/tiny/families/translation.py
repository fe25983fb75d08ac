"""German and English sentences over a closed lexicon, mapped one to one.

Only forms that need no guessing are used: the definite article in nominative and accusative,
weak adjective endings after it, predicative adjectives, verbs in the third person singular.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from diffuspec.tiny.families import Conversation
from diffuspec.tiny.families.pools import scaled

FAMILY = "translation"


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence in both languages."""

    german: str
    english: str


@dataclass(frozen=True, slots=True)
class Noun:
    """A German noun with its gender (m, f or n) and the English noun."""

    german: str
    gender: str
    english: str

    def nominative(self, adjective: str = "") -> str:
        """`der Tisch`, `der alte Tisch`."""
        article = {"m": "der", "f": "die", "n": "das"}[self.gender]
        return _joined(article, adjective and _weak(adjective, "e"), self.german)

    def accusative(self, adjective: str = "") -> str:
        """`den Tisch`, `den alten Tisch`; only the masculine differs from the nominative."""
        if self.gender != "m":
            return self.nominative(adjective)
        return _joined("den", adjective and _weak(adjective, "en"), self.german)


def _joined(*words: str) -> str:
    return " ".join(word for word in words if word)


def _weak(adjective: str, ending: str) -> str:
    return f"{adjective.removesuffix('e')}{ending}"


def _nouns(lines: str) -> tuple[Noun, ...]:
    entries = (line.split() for line in lines.strip().splitlines())
    return tuple(Noun(german, gender, english) for german, gender, english in entries)


PEOPLE = _nouns("""
Mann m man
Frau f woman
Kind n child
Lehrer m teacher
Mutter f mother
Vater m father
Bruder m brother
Schwester f sister
Arzt m doctor
Bäcker m baker
Königin f queen
Mädchen n girl
Tante f aunt
Onkel m uncle
""")
ANIMALS = _nouns("""
Hund m dog
Katze f cat
Pferd n horse
Vogel m bird
Maus f mouse
Kuh f cow
Schaf n sheep
""")
THINGS = _nouns("""
Tisch m table
Stuhl m chair
Lampe f lamp
Tür f door
Fenster n window
Auto n car
Fahrrad n bicycle
Uhr f clock
Ball m ball
Schlüssel m key
Tasche f bag
Mantel m coat
Hut m hat
Kleid n dress
Bild n picture
Messer n knife
Löffel m spoon
Teller m plate
Flasche f bottle
Blume f flower
Computer m computer
Schiff n ship
""")
FOODS = _nouns("""
Apfel m apple
Brot n bread
Käse m cheese
Suppe f soup
Kuchen m cake
Ei n egg
Fisch m fish
Birne f pear
""")
TEXTS = _nouns("""
Buch n book
Brief m letter
Zeitung f newspaper
Gedicht n poem
""")
DRINKS = _nouns("""
Wasser n water
Milch f milk
Kaffee m coffee
Tee m tea
Saft m juice
""")

_GOODS = THINGS + FOODS + TEXTS
_OBJECTS: Mapping[tuple[str, str], tuple[Noun, ...]] = {
    ("kauft", "buys"): _GOODS + DRINKS,
    ("verkauft", "sells"): _GOODS + DRINKS,
    ("sieht", "sees"): _GOODS + ANIMALS + PEOPLE,
    ("sucht", "looks for"): _GOODS + ANIMALS + PEOPLE,
    ("findet", "finds"): _GOODS + ANIMALS,
    ("holt", "fetches"): _GOODS + DRINKS,
    ("braucht", "needs"): _GOODS,
    ("bringt", "brings"): _GOODS + DRINKS,
    ("malt", "paints"): THINGS + ANIMALS + PEOPLE,
    ("liebt", "loves"): ANIMALS + PEOPLE,
    ("kennt", "knows"): PEOPLE,
    ("isst", "eats"): FOODS,
    ("kocht", "cooks"): (Noun("Suppe", "f", "soup"), Noun("Fisch", "m", "fish")),
    ("trinkt", "drinks"): DRINKS,
    ("liest", "reads"): TEXTS,
    ("schreibt", "writes"): TEXTS,
}
_TIMELESS = (("liebt", "loves"), ("kennt", "knows"))
_ACTIONS = (
    ("schläft", "sleeps"),
    ("wartet", "waits"),
    ("spielt", "plays"),
    ("arbeitet", "works"),
    ("singt", "sings"),
    ("tanzt", "dances"),
    ("lacht", "laughs"),
    ("sitzt", "sits"),
    ("steht", "stands"),
    ("wohnt", "lives"),
)
_ANIMAL_ACTIONS = (("schläft", "sleeps"), ("wartet", "waits"), ("spielt", "plays"))
_PLACES = (
    ("im Garten", "in the garden"),
    ("im Haus", "in the house"),
    ("im Wald", "in the forest"),
    ("im Dorf", "in the village"),
    ("in der Stadt", "in the city"),
    ("am Fluss", "by the river"),
    ("am See", "by the lake"),
    ("auf der Insel", "on the island"),
)
_TIMES = (
    ("heute", "today"),
    ("jetzt", "now"),
    ("manchmal", "sometimes"),
    ("am Morgen", "in the morning"),
    ("am Abend", "in the evening"),
    ("am Montag", "on Monday"),
    ("am Sonntag", "on Sunday"),
    ("im Sommer", "in summer"),
    ("im Winter", "in winter"),
)
_BEING = (
    ("müde", "tired"),
    ("glücklich", "happy"),
    ("krank", "ill"),
    ("hungrig", "hungry"),
    ("freundlich", "friendly"),
    ("stark", "strong"),
    ("traurig", "sad"),
    ("nett", "nice"),
)
_THING_QUALITIES = (
    ("neu", "new"),
    ("alt", "old"),
    ("schön", "beautiful"),
    ("klein", "small"),
    ("groß", "big"),
    ("rot", "red"),
    ("blau", "blue"),
    ("grün", "green"),
    ("weiß", "white"),
    ("schwarz", "black"),
    ("schwer", "heavy"),
    ("billig", "cheap"),
)
_FOOD_QUALITIES = (("gut", "good"), ("kalt", "cold"), ("warm", "warm"), ("frisch", "fresh"))
_TEXT_QUALITIES = (("lang", "long"), ("kurz", "short"), ("gut", "good"), ("neu", "new"))

_COMMANDS = (
    "Translate {source} to {target}: {text}",
    "Translate from {source} to {target}: {text}",
    "Please translate this {source} text to {target}: {text}",
    "{target} translation, please: {text}",
)
_QUESTIONS = (
    'What does "{text}" mean in {target}?',
    'How do you say "{text}" in {target}?',
    'What is "{text}" in {target}?',
)


def compose(rng: random.Random, size: float) -> Conversation:
    """Draw one or two sentences at size 0 and up to four at size 1; most are German."""
    sentences = [_draw_sentence(rng) for _ in range(scaled(rng, 1, 4, size))]
    german = " ".join(sentence.german for sentence in sentences)
    english = " ".join(sentence.english for sentence in sentences)
    if rng.random() < 0.7:
        return _request(rng, "German", german, "English", english)
    return _request(rng, "English", english, "German", german)


def _request(
    rng: random.Random, source: str, text: str, target: str, translation: str
) -> Conversation:
    phrasing = rng.choice(_COMMANDS + _QUESTIONS)
    turn = phrasing.format(source=source, text=text, target=target)
    if phrasing in _QUESTIONS:
        return Conversation(FAMILY, (turn,), (f'In {target}, "{text}" means "{translation}"',))
    return Conversation(FAMILY, (turn,), (translation,))


def _draw_sentence(rng: random.Random) -> Sentence:
    makers = (_action, _action, _action, _state, _description, _stay)
    sentence = rng.choice(makers)(rng)
    return Sentence(_opened(sentence.german), _opened(sentence.english))


def _opened(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _action(rng: random.Random) -> Sentence:
    """Someone does something to an object, at times with a time put first."""
    verb = rng.choice(list(_OBJECTS))
    subject = rng.choice(PEOPLE)
    target = rng.choice([noun for noun in _OBJECTS[verb] if noun != subject])
    quality = rng.choice(_qualities(target)) if rng.random() < 0.5 else ("", "")
    german_object = target.accusative(quality[0])
    english_object = _joined("the", quality[1], target.english)
    if verb in _TIMELESS or rng.random() < 0.5:
        german = f"{subject.nominative()} {verb[0]} {german_object}"
        return Sentence(german, f"the {subject.english} {verb[1]} {english_object}")
    time = rng.choice(_TIMES)
    german = f"{time[0]} {verb[0]} {subject.nominative()} {german_object}"
    return Sentence(german, f"{time[1]} the {subject.english} {verb[1]} {english_object}")


def _qualities(noun: Noun) -> tuple[tuple[str, str], ...]:
    if noun in PEOPLE or noun in ANIMALS:
        return _BEING
    if noun in FOODS or noun in DRINKS:
        return _FOOD_QUALITIES
    return _TEXT_QUALITIES if noun in TEXTS else _THING_QUALITIES


def _state(rng: random.Random) -> Sentence:
    """Someone or something is so."""
    noun = rng.choice(PEOPLE + ANIMALS + _GOODS + DRINKS)
    german, english = rng.choice(_qualities(noun))
    return Sentence(f"{noun.nominative()} ist {german}", f"the {noun.english} is {english}")


def _description(rng: random.Random) -> Sentence:
    """Someone of some quality does something somewhere."""
    noun = rng.choice(PEOPLE + ANIMALS)
    verb = rng.choice(_ANIMAL_ACTIONS if noun in ANIMALS else _ACTIONS)
    quality = rng.choice(_BEING)
    place = rng.choice(_PLACES)
    return Sentence(
        f"{noun.nominative(quality[0])} {verb[0]} {place[0]}",
        f"the {quality[1]} {noun.english} {verb[1]} {place[1]}",
    )


def _stay(rng: random.Random) -> Sentence:
    """Someone does something somewhere at some time."""
    noun = rng.choice(PEOPLE + ANIMALS)
    verb = rng.choice(_ANIMAL_ACTIONS if noun in ANIMALS else _ACTIONS)
    time = rng.choice(_TIMES)
    place = rng.choice(_PLACES)
    return Sentence(
        f"{time[0]} {verb[0]} {noun.nominative()} {place[0]}",
        f"{time[1]} the {noun.english} {verb[1]} {place[1]}",
    )
