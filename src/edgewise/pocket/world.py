"""The sentences of the pocket world: six kinds of text with a right answer (or none, for plain sentences).

Every sentence rests on a *combination*, e.g. the two names, the object and the place of an indirect-object
sentence. A stable hash puts one combination in eight on the held-out side. The training stream draws only
from the other side: a held-out prompt shares words and templates with the training text, but never their
combination.

    copy          the sequence itself
    ioi           the two names (in any order), the object and the place
    greater-than  the event, the century and the first year
    docstring     the argument names in order
    relations     the wording, the relation and the word; a fact such as large -> small is itself
                  seen in training, in other wordings. The prompt 'The opposite of " large " is "' is
                  held out by decree.
    plain         subject, verb and object
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Literal, get_args

from edgewise.tasks import words as w
from edgewise.tasks.wordings import (
    COPY_WORDS,
    EVENT_WORDINGS,
    IOI_DISTRACTORS,
    IOI_OPENINGS,
    LAST_START_YEAR,
    RELATION_NAMES,
    RELATION_WORDINGS,
)
from edgewise.tasks.wordings import VOCABULARY as VOCABULARY

Kind = Literal["copy", "ioi", "greater-than", "docstring", "relations", "plain"]
KINDS: tuple[Kind, ...] = get_args(Kind)
HELD_OUT_ONE_IN = 8
LONGEST_PERIOD = 40
FIRST_START_YEAR = 2
END = VOCABULARY[0]


@dataclass(frozen=True, slots=True)
class Prompt:
    """The beginning of a sentence, and what may follow."""

    kind: Kind
    words: tuple[str, ...]
    """What the model reads."""
    answers: tuple[str, ...]
    """Every acceptable next word; none for plain sentences."""
    wrong: tuple[str, ...]
    """Tempting next words that are not right: the other name, earlier years, another argument or relation."""
    combination: tuple[str, ...]
    """What decides whether the sentence is held out."""
    ending: tuple[str, ...]
    """How the sentence goes on; its first word is an answer."""

    @property
    def text(self) -> str:
        return " ".join(self.words)


@cache
def _large() -> tuple[str, ...]:
    return ("relations", RELATION_WORDINGS[0], "opposite", "large")


def is_held_out(kind: Kind, combination: Iterable[str]) -> bool:
    """Whether a combination belongs to the held-out side. Depends on nothing but its words."""
    key = (kind, *combination)
    if key == _large():
        return True
    digest = hashlib.blake2b("|".join(key).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % HELD_OUT_ONE_IN == 0


# ------------------------------------------------------------------------------------------- wordings


def _cut(template: str, slot: str) -> tuple[str, str]:
    """A template before and from the slot that is to be predicted."""
    before, _, after = template.partition(slot)
    return before, slot + after


_RELATION_PARTS = [_cut(wording, "{answer}") for wording in RELATION_WORDINGS]
_EVENT_PARTS = [_cut(wording, "{later}") for wording in EVENT_WORDINGS]


def _sentence(kind: Kind, before: str, after: str, answers, wrong, combination) -> Prompt:
    return Prompt(
        kind, tuple(before.split()), tuple(answers), tuple(wrong), tuple(combination), tuple(after.split())
    )


# ------------------------------------------------------------------------------------------ generators


def copy(rng: Random, held_out: bool, room: int = 128) -> Prompt:
    """A random sequence without repetition, repeated. Cut before the last word of its second period."""
    while True:
        period = rng.randint(3, max(3, min(LONGEST_PERIOD, room // 2)))
        sequence = tuple(rng.sample(COPY_WORDS, period))
        if is_held_out("copy", sequence) == held_out:
            break
    length = rng.randint(2 * period, max(2 * period, min(4 * period, room)))
    whole = (sequence * 4)[:length]
    cut = 2 * period - 1
    return Prompt("copy", whole[:cut], (sequence[-1],), sequence[:-1], sequence, whole[cut:])


def ioi(rng: Random, held_out: bool) -> Prompt:
    """Two people, one of whom gives something to the other."""
    while True:
        a, b = rng.sample(w.NAMES, 2)
        thing, place = rng.choice(w.OBJECTS), rng.choice(w.PLACES)
        combination = (*sorted((a, b)), thing, place)
        if is_held_out("ioi", combination) == held_out:
            break
    giver, receiver = (a, b) if rng.random() < 0.5 else (b, a)
    opening = rng.choice(IOI_OPENINGS).format(a=a, b=b, place=place)
    if rng.random() < 0.35:
        other = rng.choice(w.NAMES)
        while other in (a, b):
            other = rng.choice(w.NAMES)
        opening += " " + rng.choice(IOI_DISTRACTORS).format(
            weather=rng.choice(w.WEATHER),
            animal=rng.choice(w.ANIMALS),
            other=other,
            feeling=rng.choice(w.FEELINGS),
        )
    before = f"{opening} {giver} {rng.choice(w.GIFT_VERBS)} a {thing} to"
    return _sentence("ioi", before, f"{receiver} .", [receiver], [giver], combination)


def greater_than(rng: Random, held_out: bool) -> Prompt:
    """An event that ends in a later year of the same century; every later year is equally likely."""
    while True:
        event, century = rng.choice(w.EVENTS), rng.choice(w.CENTURIES)
        first = rng.randint(FIRST_START_YEAR, LAST_START_YEAR)
        combination = (event, century, w.NUMBERS[first])
        if is_held_out("greater-than", combination) == held_out:
            break
    before, after = rng.choice(_EVENT_PARTS)
    fill = {
        "event": event,
        "c": century,
        "first": w.NUMBERS[first],
        "later": w.NUMBERS[rng.randint(first + 1, 99)],
        "name": rng.choice(w.NAMES),
        "country": rng.choice(w.COUNTRIES),
    }
    later, others = w.NUMBERS[first + 1 :], w.NUMBERS[: first + 1]
    return _sentence("greater-than", before.format(**fill), after.format(**fill), later, others, combination)


def docstring(rng: Random, held_out: bool) -> Prompt:
    """A signature and a line for each of its arguments, in order. Cut before any argument but the first."""
    while True:
        arguments = tuple(rng.sample(w.ARGUMENTS, rng.randint(3, 6)))
        if is_held_out("docstring", arguments) == held_out:
            break
    signature = " , ".join(arguments if rng.random() < 0.3 else ("self", *arguments))
    summary = " ".join(rng.choices(w.DESCRIPTIONS, k=rng.randint(1, 3)))
    lines = [f"{name} : {' '.join(rng.choices(w.DESCRIPTIONS, k=rng.randint(1, 2)))}" for name in arguments]
    position = rng.randrange(1, len(arguments))
    head = f'def {rng.choice(w.FUNCTIONS)} ( {signature} ) : """ {summary}'
    before = " :param ".join([head, *lines[:position]]) + " :param"
    after = " :param ".join(lines[position:]) + ' """'
    wrong = [name for name in arguments if name != arguments[position]]
    return _sentence("docstring", before, after, [arguments[position]], wrong, arguments)


def relations(rng: Random, held_out: bool) -> Prompt:
    """A fact: the opposite, plural, capital or colour of a word."""
    while True:
        relation = rng.choice(RELATION_NAMES)
        word = rng.choice(_RELATION_WORDS[relation])
        wording = rng.randrange(len(RELATION_WORDINGS))
        combination = (RELATION_WORDINGS[wording], relation, word)
        if is_held_out("relations", combination) == held_out:
            break
    return relation_prompt(relation, word, wording, rng.choice(w.NAMES))


def relation_prompt(relation: str, word: str, wording: int = 0, name: str = "Mary") -> Prompt:
    """The prompt for one fact; `relation_prompt("opposite", "large")` is 'The opposite of " large " is "'."""
    answer = w.RELATIONS[relation][word]
    fill = {"relation": relation, "word": word, "name": name, "answer": answer}
    before, after = _RELATION_PARTS[wording]
    wrong = [facts[word] for facts in w.RELATIONS.values() if facts.get(word, answer) != answer]
    combination = (RELATION_WORDINGS[wording], relation, word)
    return _sentence("relations", before.format(**fill), after.format(**fill), [answer], wrong, combination)


def plain(rng: Random, held_out: bool) -> Prompt:
    """A sentence about the same things, without a question."""
    while True:
        sentence, *combination = rng.choice(_PLAIN)(rng)
        if is_held_out("plain", combination) == held_out:
            return _sentence("plain", sentence, "", (), (), combination)


def _deed(rng: Random) -> tuple[str, ...]:
    name, verb = rng.choice(w.NAMES), rng.choice(_VERB_NAMES)
    thing, place = rng.choice(w.VERBS[verb]), rng.choice(w.PLACES)
    she = name in _WOMEN
    sentence = (
        f"{name} {verb} the {thing} in the {place} .",
        f"In the {place} {name} {verb} {'her' if she else 'his'} {thing} .",
        f"{name} {verb} a {thing} because {'she' if she else 'he'} was {rng.choice(w.FEELINGS)} .",
        f"{name} went to the {place} , and there {'she' if she else 'he'} {verb} a {thing} .",
    )[rng.randrange(4)]
    return sentence, name, verb, thing


def _looks(rng: Random) -> tuple[str, ...]:
    animal, size = rng.choice(w.ANIMALS), rng.choice(w.SIZES)
    other = w.RELATIONS["opposite"][size]
    if rng.random() < 0.5:
        return (
            f"The {w.RELATIONS['plural'][animal]} are {size} but this {animal} is {other} .",
            animal,
            "is",
            other,
        )
    place = rng.choice(w.PLACES)
    return f"The {animal} in the {place} is {size} , not {other} .", animal, "is", size, place


def _home(rng: Random) -> tuple[str, ...]:
    name, country = rng.choice(w.NAMES), rng.choice(w.COUNTRIES)
    city = w.RELATIONS["capital"][country]
    if rng.random() < 0.5:
        return f"{name} lives in {city} , which is in {country} .", name, "lives", city
    return f"{name} left {country} and never saw {city} again .", name, "left", country


def _paint(rng: Random) -> tuple[str, ...]:
    thing, name = rng.choice(_COLOURED), rng.choice(w.NAMES)
    return f"{name} painted the {thing} {w.RELATIONS['colour'][thing]} .", name, "painted", thing


def _years(rng: Random) -> tuple[str, ...]:
    """Years in order, which is what the greater-than sentences need to be understood."""
    name, century = rng.choice(w.NAMES), rng.choice(w.CENTURIES)
    years = [f"{century} {w.NUMBERS[year]}" for year in sorted(rng.sample(range(1, 100), rng.randint(2, 5)))]
    place = rng.choice(w.PLACES)
    if len(years) == 2:
        return f"{name} came to the {place} in {years[0]} and left in {years[1]} .", name, *years
    return f"{name} saw the {place} in {' , '.join(years)} .", name, *years


_PLAIN: tuple[Callable[[Random], tuple[str, ...]], ...] = (
    _deed,
    _deed,
    _deed,
    _looks,
    _home,
    _paint,
    _years,
    _years,
)
_WOMEN = frozenset(w.WOMEN)
_VERB_NAMES = list(w.VERBS)
_COLOURED = list(w.RELATIONS["colour"])
_RELATION_WORDS = {relation: list(facts) for relation, facts in w.RELATIONS.items()}

GENERATORS: dict[Kind, Callable[[Random, bool], Prompt]] = {
    "copy": copy,
    "ioi": ioi,
    "greater-than": greater_than,
    "docstring": docstring,
    "relations": relations,
    "plain": plain,
}


def held_out_prompts(kind: Kind, n: int, seed: int = 0) -> list[Prompt]:
    """`n` prompts of combinations that the training stream never contains."""
    rng = Random(f"held-out prompts {kind} {seed}")
    return [GENERATORS[kind](rng, True) for _ in range(n)]
