"""Sentences of the tasks, with slots in braces and a space around every mark, and all words that occur in them.

Embedded models are trained on sentences of the same words and wordings (`edgewise.pocket`); the tasks write them with the
spacing of ordinary text, for any tokenizer (`builtin`).
"""

from edgewise.tasks import words as w

LAST_START_YEAR = 96
"""The last year of a century in which an event begins: 97 would leave two later years only."""

IOI_OPENINGS = (
    "When {a} and {b} went to the {place} ,",
    "After {a} and {b} came to the {place} ,",
    "While {a} and {b} were working at the {place} ,",
    "Then {a} and {b} had a long day at the {place} , and",
    "{a} and {b} met at the {place} , and",
    "Yesterday {a} saw {b} at the {place} , and",
    "The friends {a} and {b} walked to the {place} , and later",
)
IOI_DISTRACTORS = (
    "it was a {weather} day and",
    "the {animal} was asleep and",
    "{other} stayed at home and",
    "there was music and",
    "the {animal} was {feeling} and",
)
RELATION_WORDINGS = (
    'The {relation} of " {word} " is " {answer} " .',
    'What is the {relation} of " {word} " ? It is " {answer} " .',
    '{name} said that the {relation} of " {word} " is " {answer} " .',
    'For " {word} " the {relation} is " {answer} " .',
    'The word " {word} " has the {relation} " {answer} " .',
    'If you ask {name} for the {relation} of " {word} " the answer is " {answer} " .',
    'In the book the {relation} of " {word} " was " {answer} " .',
    'Give the {relation} of " {word} " : " {answer} " .',
    "{name} asked for the {relation} of {word} and we said {answer} .",
    "We know that the {relation} of {word} is {answer} .",
)
EVENT_WORDINGS = (
    "The {event} lasted from the year {c} {first} to the year {c} {later} .",
    "The {event} lasted from the year {c} {first} to the year {c} {later} .",  # the standard one, more often
    "The {event} began in the year {c} {first} and ended in the year {c} {later} .",
    "The {event} in {country} lasted from {c} {first} to {c} {later} .",
    "{name} wrote that the {event} went on from {c} {first} until {c} {later} .",
    "It was in {c} {first} that the {event} began , and it ended in {c} {later} .",
)
RELATION_NAMES = list(w.RELATIONS)


def _vocabulary() -> list[str]:
    """Every word of the lists and of the wordings, once, in an order that fixes the embedded tokenizer's ids."""
    listed = [w.PUNCTUATION, w.NUMBERS, w.NAMES, w.PLACES, w.OBJECTS, w.VERBS, w.GIFT_VERBS, w.FEELINGS]
    listed += [[*facts, *facts.values()] for facts in w.RELATIONS.values()]
    listed += [
        w.ANIMALS,
        w.SIZES,
        w.WEATHER,
        w.EVENTS,
        w.FUNCTIONS,
        w.ARGUMENTS,
        w.DESCRIPTIONS,
        RELATION_NAMES,
    ]
    templates = (*IOI_OPENINGS, *IOI_DISTRACTORS, *RELATION_WORDINGS, *EVENT_WORDINGS)
    listed += [[word for word in template.split() if "{" not in word] for template in templates]
    listed += [w.list_of("def self a the in In because was went to and there her his she he")]
    listed += [w.list_of("The are but this is not lives which left never saw again painted came")]
    return list(dict.fromkeys(word for words in listed for word in words))


VOCABULARY: list[str] = _vocabulary()
# Numbers are left out of random sequences: what they are followed by should be about years alone.
COPY_WORDS = [word for word in VOCABULARY if word not in {*w.PUNCTUATION, *w.NUMBERS}]
