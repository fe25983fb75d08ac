"""The closed German and English lexicon, with the forms of nouns and the words that fit them.

It has only regular forms: the definite article in nominative and accusative, weak adjective
endings after it, verbs in the third person singular. Both languages are unambiguous.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Noun:
    """A German noun with its gender (m, f or n) and the English noun."""

    german: str
    gender: str
    english: str

    def nominative(self, adjective: str = "") -> str:
        """Return `der Tisch`, or `der alte Tisch`."""
        article = {"m": "der", "f": "die", "n": "das"}[self.gender]
        return joined(article, adjective and _weak(adjective, "e"), self.german)

    def accusative(self, adjective: str = "") -> str:
        """Return `den Tisch`, or `den alten Tisch`; only the masculine has a form of its own."""
        if self.gender != "m":
            return self.nominative(adjective)
        return joined("den", adjective and _weak(adjective, "en"), self.german)


def joined(*words: str) -> str:
    """Join the words that are not empty with spaces."""
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
""")
ANIMALS = _nouns("""
Hund m dog
Katze f cat
Pferd n horse
Vogel m bird
Maus f mouse
Kuh f cow
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
Hut m hat
Bild n picture
Löffel m spoon
Blume f flower
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
""")

GOODS = THINGS + FOODS + TEXTS
OBJECTS: Mapping[tuple[str, str], tuple[Noun, ...]] = {
    ("kauft", "buys"): GOODS + DRINKS,
    ("verkauft", "sells"): GOODS + DRINKS,
    ("sieht", "sees"): GOODS + ANIMALS + PEOPLE,
    ("sucht", "looks for"): GOODS + ANIMALS + PEOPLE,
    ("findet", "finds"): GOODS + ANIMALS,
    ("holt", "fetches"): GOODS + DRINKS,
    ("braucht", "needs"): GOODS,
    ("bringt", "brings"): GOODS + DRINKS,
    ("malt", "paints"): THINGS + ANIMALS + PEOPLE,
    ("liebt", "loves"): ANIMALS + PEOPLE,
    ("kennt", "knows"): PEOPLE,
    ("isst", "eats"): FOODS,
    ("kocht", "cooks"): (Noun("Suppe", "f", "soup"), Noun("Fisch", "m", "fish")),
    ("trinkt", "drinks"): DRINKS,
    ("liest", "reads"): TEXTS,
    ("schreibt", "writes"): TEXTS,
}
# Verbs that do not go with a time, as in "In the evening the queen knows the baker."
TIMELESS = (("liebt", "loves"), ("kennt", "knows"), ("wohnt", "lives"))
ACTIONS = (
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
ANIMAL_ACTIONS = (("schläft", "sleeps"), ("wartet", "waits"), ("spielt", "plays"))
PLACES = (
    ("im Garten", "in the garden"),
    ("im Haus", "in the house"),
    ("im Wald", "in the forest"),
    ("im Dorf", "in the village"),
    ("in der Stadt", "in the city"),
    ("am Fluss", "by the river"),
    ("am See", "by the lake"),
    ("auf der Insel", "on the island"),
)
TIMES = (
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
BEING = (
    ("müde", "tired"),
    ("glücklich", "happy"),
    ("krank", "ill"),
    ("hungrig", "hungry"),
    ("freundlich", "friendly"),
    ("stark", "strong"),
    ("traurig", "sad"),
    ("nett", "nice"),
)
THING_QUALITIES = (
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
FOOD_QUALITIES = (("gut", "good"), ("kalt", "cold"), ("warm", "warm"), ("frisch", "fresh"))
TEXT_QUALITIES = (("lang", "long"), ("kurz", "short"), ("gut", "good"), ("neu", "new"))


def qualities(noun: Noun) -> tuple[tuple[str, str], ...]:
    """Return the adjectives, in both languages, that fit a noun."""
    if noun in PEOPLE or noun in ANIMALS:
        return BEING
    if noun in FOODS or noun in DRINKS:
        return FOOD_QUALITIES
    return TEXT_QUALITIES if noun in TEXTS else THING_QUALITIES
