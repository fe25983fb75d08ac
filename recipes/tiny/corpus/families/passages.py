"""Questions about one of several numbered passages, answered with a quotation."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from recipes.tiny.corpus.families import Conversation
from recipes.tiny.corpus.families.pools import (
    MONTHS,
    SURNAMES,
    TOWNS,
    full_name,
    scaled,
    year,
)

FAMILY = "rag"

_NUM_EVIDENCE = 2

Slots = Mapping[str, str]

_ASK = (
    "{passages}\nQuestion: {question}",
    "Read the passages and answer the question.\n{passages}\nQuestion: {question}",
    "{passages}\nUse the passages to answer: {question}",
)


@dataclass(frozen=True, slots=True)
class _Subject:
    """A topic: the sentences of its passage, and conclusions by question.

    The first two sentences are always shown, and contain every conclusion.
    """

    draw: Callable[[random.Random], Slots]
    sentences: tuple[str, ...]
    questions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Passage:
    subject: _Subject
    slots: Slots
    num_sentences: int

    @property
    def text(self) -> str:
        """The passage as shown to the model."""
        shown = self.subject.sentences[: self.num_sentences]
        return " ".join(shown).format_map(self.slots)

    def answer(self, question: str) -> str:
        """Return the quotation and the conclusion from it."""
        said = " ".join(self.subject.sentences[:_NUM_EVIDENCE])
        conclusion = self.subject.questions[question]
        return f"{said} So {conclusion}.".format_map(self.slots)


def _museum(rng: random.Random) -> Slots:
    things = ("old ships", "glass", "clocks", "maps", "trains", "toys", "stones", "paintings")
    shown, also = rng.sample(things, 2)
    return {"shown": shown, "also": also, "visitors": str(rng.randint(10, 99))}


def _bridge(rng: random.Random) -> Slots:
    return {
        "river": rng.choice(("Aller", "Dove", "Esk", "Leven", "Tamar", "Wye")),
        "material": rng.choice(("stone", "steel", "wood", "iron", "brick")),
        "length": str(rng.randint(20, 99)),
    }


def _company(rng: random.Random) -> Slots:
    products = ("bicycles", "lamps", "chairs", "boats", "shoes", "pianos", "tractors", "windows")
    return {
        "product": rng.choice(products),
        "workers": str(rng.randint(12, 99)),
        "month": rng.choice(MONTHS),
    }


def _writer(rng: random.Random) -> Slots:
    topics = ("the sea", "old trees", "small towns", "the moon", "horses", "winter", "music")
    first, second = rng.sample(topics, 2)
    jobs = ("a teacher", "a doctor", "a baker", "a nurse", "a sailor", "a farmer")
    return {
        "year": str(rng.randint(1820, 1970)),
        "topic": first,
        "later": second,
        "job": rng.choice(jobs),
    }


_SUBJECTS = (
    _Subject(
        _museum,
        (
            "The {surname} Museum was opened by {founder} in {year}.",
            "It stands in {town} and shows {shown}.",
            "A second hall shows {also}.",
            "About {visitors} people visit it every day.",
        ),
        {
            "When was the {surname} Museum opened?": "the {surname} Museum was opened in {year}",
            "Who opened the {surname} Museum?": "the {surname} Museum was opened by {founder}",
            "Where is the {surname} Museum?": "the {surname} Museum stands in {town}",
            "What does the {surname} Museum show?": "the {surname} Museum shows {shown}",
        },
    ),
    _Subject(
        _bridge,
        (
            "The {surname} Bridge was built by {founder} in {year}.",
            "It crosses the river {river} in {town}.",
            "The bridge is made of {material}.",
            "It is {length} metres long.",
        ),
        {
            "When was the {surname} Bridge built?": "the {surname} Bridge was built in {year}",
            "Who built the {surname} Bridge?": "the {surname} Bridge was built by {founder}",
            "Which river does the {surname} Bridge cross?": (
                "the {surname} Bridge crosses the river {river}"
            ),
            "Where is the {surname} Bridge?": "the {surname} Bridge stands in {town}",
        },
    ),
    _Subject(
        _company,
        (
            "The {surname} Company was founded by {founder} in {year}.",
            "It makes {product} in {town}.",
            "The company has {workers} workers.",
            "Its new building was opened in {month}.",
        ),
        {
            "When was the {surname} Company founded?": (
                "the {surname} Company was founded in {year}"
            ),
            "Who founded the {surname} Company?": "the {surname} Company was founded by {founder}",
            "What does the {surname} Company make?": "the {surname} Company makes {product}",
            "Where does the {surname} Company work?": "the {surname} Company works in {town}",
        },
    ),
    _Subject(
        _writer,
        (
            "The writer {founder} was born in {town} in {year}.",
            "Before the first book, {founder} was {job} and wrote about {topic}.",
            "The later books are about {later}.",
            "A street in {town} is named after the writer.",
        ),
        {
            "When was the writer {founder} born?": "the writer {founder} was born in {year}",
            "Where was the writer {founder} born?": "the writer {founder} was born in {town}",
            "What was the job of the writer {founder}?": "the writer {founder} was {job}",
            "What did the writer {founder} first write about?": (
                "the writer {founder} first wrote about {topic}"
            ),
        },
    ),
)


def compose(rng: random.Random, size: float) -> Conversation:
    """Draw two passages at size 0 and up to three at size 1, and ask about one of them."""
    count = scaled(rng, 2, 3, size)
    passages = [
        _draw_passage(rng, surname, scaled(rng, _NUM_EVIDENCE, 4, size))
        for surname in rng.sample(SURNAMES, count)
    ]
    asked = rng.choice(passages)
    question = rng.choice(list(asked.subject.questions))
    shown = "\n".join(f"Passage {n}: {p.text}" for n, p in enumerate(passages, start=1))
    turn = rng.choice(_ASK).format(passages=shown, question=question.format_map(asked.slots))
    return Conversation(FAMILY, (turn,), (asked.answer(question),))


def _draw_passage(rng: random.Random, surname: str, num_sentences: int) -> _Passage:
    subject = rng.choice(_SUBJECTS)
    founder = full_name(rng)
    if subject.draw is _writer:
        founder = f"{founder.split()[0]} {surname}"
    slots = {
        "surname": surname,
        "founder": founder,
        "town": rng.choice(TOWNS),
        "year": str(year(rng)),
        **subject.draw(rng),
    }
    return _Passage(subject, slots, num_sentences)
