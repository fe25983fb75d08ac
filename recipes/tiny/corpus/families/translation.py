"""German and English sentences over a closed lexicon, mapped one to one."""

import random
from dataclasses import dataclass

from recipes.tiny.corpus.families import Conversation
from recipes.tiny.corpus.families.lexicon import (
    ACTIONS,
    ANIMAL_ACTIONS,
    ANIMALS,
    BEING,
    DRINKS,
    GOODS,
    OBJECTS,
    PEOPLE,
    PLACES,
    TIMELESS,
    TIMES,
    joined,
    qualities,
)
from recipes.tiny.corpus.families.pools import scaled, words

FAMILY = "translation"


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence in both languages."""

    german: str
    english: str


_SMALL_WORDS = frozenset(words("der die das den ist am auf im in"))
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
    """Draw one sentence at size 0 and up to three at size 1; most are German."""
    sentences = _draw_sentences(rng, scaled(rng, 1, 3, size))
    german = " ".join(sentence.german for sentence in sentences)
    english = " ".join(sentence.english for sentence in sentences)
    if rng.random() < 0.85:
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


def _draw_sentences(rng: random.Random, count: int) -> list[Sentence]:
    """Draw sentences that share only articles and prepositions."""
    sentences: list[Sentence] = []
    said: set[str] = set()
    while len(sentences) < count:
        sentence = _draw_sentence(rng)
        told = set(sentence.german.lower().rstrip(".").split()) - _SMALL_WORDS
        if said.isdisjoint(told):
            sentences.append(sentence)
            said |= told
    return sentences


def _draw_sentence(rng: random.Random) -> Sentence:
    makers = (_action, _action, _action, _state, _description, _stay)
    sentence = rng.choice(makers)(rng)
    return Sentence(_opened(sentence.german), _opened(sentence.english))


def _opened(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _action(rng: random.Random) -> Sentence:
    """Draw subject, verb and object, sometimes after a time."""
    verb = rng.choice(list(OBJECTS))
    subject = rng.choice(PEOPLE)
    target = rng.choice([noun for noun in OBJECTS[verb] if noun != subject])
    quality = rng.choice(qualities(target)) if rng.random() < 0.5 else ("", "")
    german_object = target.accusative(quality[0])
    english_object = joined("the", quality[1], target.english)
    if verb in TIMELESS or rng.random() < 0.5:
        german = f"{subject.nominative()} {verb[0]} {german_object}"
        return Sentence(german, f"the {subject.english} {verb[1]} {english_object}")
    time = rng.choice(TIMES)
    german = f"{time[0]} {verb[0]} {subject.nominative()} {german_object}"
    return Sentence(german, f"{time[1]} the {subject.english} {verb[1]} {english_object}")


def _state(rng: random.Random) -> Sentence:
    """Draw a subject and an adjective: `Der Tisch ist alt.`"""
    noun = rng.choice(PEOPLE + ANIMALS + GOODS + DRINKS)
    german, english = rng.choice(qualities(noun))
    return Sentence(f"{noun.nominative()} ist {german}", f"the {noun.english} is {english}")


def _description(rng: random.Random) -> Sentence:
    """Draw a subject with an adjective, a verb and a place."""
    noun = rng.choice(PEOPLE + ANIMALS)
    verb = rng.choice(ANIMAL_ACTIONS if noun in ANIMALS else ACTIONS)
    quality = rng.choice(BEING)
    place = rng.choice(PLACES)
    return Sentence(
        f"{noun.nominative(quality[0])} {verb[0]} {place[0]}",
        f"the {quality[1]} {noun.english} {verb[1]} {place[1]}",
    )


def _stay(rng: random.Random) -> Sentence:
    """Draw a subject, a verb, a place and a time."""
    noun = rng.choice(PEOPLE + ANIMALS)
    actions = ANIMAL_ACTIONS if noun in ANIMALS else ACTIONS
    verb = rng.choice([action for action in actions if action not in TIMELESS])
    time = rng.choice(TIMES)
    place = rng.choice(PLACES)
    return Sentence(
        f"{time[0]} {verb[0]} {noun.nominative()} {place[0]}",
        f"{time[1]} the {noun.english} {verb[1]} {place[1]}",
    )
