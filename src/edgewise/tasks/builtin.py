"""Texts of the built-in tasks. A named slot holds one word in the clean prompt, and may hold another in the corrupt one.

They are made of the lists in `words` and `wordings`, with the spacing of ordinary text: one text serves GPT-2, a llama
and the pocket model, whose tokenizer splits marks and pairs of digits by itself.

    copy          eight random words, repeated, cut before the last. Corrupt: the first eight are others.
    ioi           "When Mary and John went to the store, John gave a drink to" -> Mary. Corrupt: the second John is Mary.
    greater-than  "The war lasted from the year 1732 to the year 17" -> 33, 34 ... 99. Corrupt: the year is 1702.
                  Where a number is cut into digits, as Llama 2 and SmolLM do, -> 4 ... 9.
    docstring     a signature, and lines for its first two arguments -> the third. Corrupt: other names in the signature.
    antonym       'The opposite of "large" is "' -> small. Corrupt: another word.

The wrong answer is what is right for the corrupt prompt (for greater-than: the years up to 32, or the digits below 3;
3 itself is left out, because 1735 would be right and 1731 wrong).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from edgewise.tasks import wordings
from edgewise.tasks import words as w
from edgewise.tasks.align import PairTexts
from edgewise.tasks.lexicon import WHOLE, Lexicon
from edgewise.tasks.tokenization import Span

PERIOD = 8
ARGUMENTS, DOCUMENTED = 4, 2
# In the pocket's world an event begins in 02 at the earliest. After an early year, nearly all that follows 02 is right too.
CORRUPT_YEAR, YEARS = 2, range(20, wordings.LAST_START_YEAR + 1)
DIGITS, TENS = "0123456789", range(2, 9)

OPPOSITES = w.RELATIONS["opposite"]


@dataclass(frozen=True)
class Draft:
    """Two prompts that a tokenizer may or may not be able to express."""

    template: str
    """With the names of slots in braces."""
    slots: dict[str, tuple[str, str]]
    """The clean and the corrupt word of each slot; often the same."""
    answers: Sequence[str]
    wrong: Sequence[str]
    kind: str
    """Which sentences it is one of; with `combination`, what decides whether an embedded model was trained on it."""
    combination: Sequence[str] | None
    """Its words that are drawn together; None if no embedded model's text has such sentences."""

    def texts(self) -> PairTexts:
        """The clean and the corrupt text, with the spans of their slots, and the answers."""
        (clean, clean_slots), (corrupt, corrupt_slots) = (self._write(corrupt) for corrupt in (False, True))
        return PairTexts(clean, corrupt, self.answers, self.wrong, (clean_slots, corrupt_slots))

    def _write(self, corrupt: bool) -> tuple[str, dict[str, Span]]:
        text, spans = "", {}
        for i, piece in enumerate(re.split(r"\{(.+?)\}", self.template)):
            is_slot = i % 2
            word = self.slots[piece][corrupt] if is_slot else piece
            if is_slot:
                spans[piece] = (len(text), len(text) + len(word))
            text += word
        return text, spans


def copy(rng: Random, lead: str, words: Sequence[str]) -> Draft:
    """Slots: `before` is the earlier occurrence of the prompt's last word, `answer` the word after it.

    A word at the very beginning is another token than the same word after a space, for some tokenizers: for these the
    text begins with a space, `lead`.
    """
    drawn = rng.sample(words, 2 * PERIOD)
    clean, corrupt = drawn[:PERIOD], drawn[PERIOD:]
    names = [*(f"word {i}" for i in range(1, PERIOD - 1)), "before", "answer"]
    first = " ".join(f"{{{name}}}" for name in names)
    return Draft(
        template=f"{lead}{first} {' '.join(clean[:-1])}",
        slots=dict(zip(names, zip(clean, corrupt, strict=True), strict=True)),
        answers=[f" {clean[-1]}"],
        wrong=[f" {corrupt[-1]}"],
        kind="copy",
        combination=clean,
    )


def ioi(rng: Random, lexicon: Lexicon = WHOLE) -> Draft:
    """Slots: `subject` and `indirect object`, where the two are named first, in either order; `second subject`."""
    subject, other = rng.sample(lexicon.names, 2)
    thing, place = rng.choice(lexicon.objects), rng.choice(lexicon.places)
    verb = rng.choice(w.GIFT_VERBS)
    a, b = rng.sample(["{subject}", "{indirect object}"], 2)
    opening = _natural(rng.choice(lexicon.ioi_openings)).format(a=a, b=b, place=place)
    return Draft(
        template=f"{opening} {{second subject}} {verb} a {thing} to",
        slots={
            "subject": (subject, subject),
            "indirect object": (other, other),
            "second subject": (subject, other),
        },
        answers=[f" {other}"],
        wrong=[f" {subject}"],
        kind="ioi",
        combination=(*sorted((subject, other)), thing, place),
    )


def greater_than(rng: Random, lexicon: Lexicon = WHOLE) -> Draft:
    """Slot: `year`, the last two digits of the first year."""
    event, century, year = rng.choice(lexicon.events), rng.choice(w.CENTURIES), rng.choice(YEARS)
    before = _natural(rng.choice(lexicon.event_wordings)).partition("{later}")[0]
    return Draft(
        template=_with_words(rng, lexicon, before).format(event=event, c=century, first="{year}"),
        slots={"year": (w.NUMBERS[year], w.NUMBERS[CORRUPT_YEAR])},
        answers=w.NUMBERS[year + 1 :],
        wrong=w.NUMBERS[: year + 1],
        kind="greater-than",
        combination=(event, century, w.NUMBERS[year]),
    )


def greater_than_by_digits(rng: Random, lexicon: Lexicon = WHOLE) -> Draft:
    """Slot: `tens`, the third digit of the first year; the answer is that of the later one."""
    event, century, tens, ones = (
        rng.choice(lexicon.events),
        rng.choice(w.CENTURIES),
        rng.choice(TENS),
        rng.choice(DIGITS),
    )
    before = _natural(rng.choice(lexicon.event_wordings)).partition("{later}")[0]
    return Draft(
        template=_with_words(rng, lexicon, before).format(event=event, c=century, first="{tens}" + ones),
        slots={"tens": (DIGITS[tens], DIGITS[0])},
        answers=DIGITS[tens + 1 :],
        wrong=DIGITS[:tens],
        kind="greater-than",
        combination=None,
    )


def _with_words(rng: Random, lexicon: Lexicon, wording: str) -> str:
    """A wording with a name and a country, where it has one."""
    for slot, words in (("{name}", lexicon.names), ("{country}", w.COUNTRIES)):
        if slot in wording:
            wording = wording.replace(slot, rng.choice(words))
    return wording


def docstring(rng: Random, lexicon: Lexicon = WHOLE) -> Draft:
    """Slots: `before` and `answer`, neighbours in the signature; `documented`, where the first of them is described."""
    drawn = rng.sample(lexicon.arguments, 2 * ARGUMENTS)
    clean, corrupt = drawn[:ARGUMENTS], drawn[ARGUMENTS:]
    names = [f"argument {i}" for i in range(1, ARGUMENTS + 1)]
    names[DOCUMENTED - 1 : DOCUMENTED + 1] = "before", "answer"
    signature = ", ".join(f"{{{name}}}" for name in names)
    described = [" ".join(rng.choices(lexicon.descriptions, k=2)) for _ in range(DOCUMENTED)]
    written = [*clean[: DOCUMENTED - 1], "{documented}"]
    lines = [f"    :param {name}: {text}\n" for name, text in zip(written, described, strict=True)]
    summary = " ".join(rng.choices(lexicon.descriptions, k=3))
    head = f'def {rng.choice(lexicon.functions)}(self, {signature}):\n    """{summary}\n\n'
    last = clean[DOCUMENTED - 1]
    return Draft(
        template=f"{head}{''.join(lines)}    :param",
        slots={**dict(zip(names, zip(clean, corrupt, strict=True), strict=True)), "documented": (last, last)},
        answers=[f" {clean[DOCUMENTED]}"],
        wrong=[f" {corrupt[DOCUMENTED]}"],
        kind="docstring",
        combination=clean,
    )


def antonym(rng: Random, lexicon: Lexicon = WHOLE) -> Draft:
    """Slot: `word`, whose opposite is the answer."""
    wording, word = rng.choice(lexicon.opposite_wordings), rng.choice(list(OPPOSITES))
    answer = OPPOSITES[word]
    other = rng.choice([x for x in OPPOSITES if OPPOSITES[x] != answer and x != answer])
    before = _with_words(rng, lexicon, _natural(wording).partition("{answer}")[0])
    return Draft(
        template=before.format(relation="opposite", word="{word}"),
        slots={"word": (word, other)},
        answers=[answer],
        wrong=[OPPOSITES[other]],
        kind="relations",
        combination=(wording, "opposite", word),
    )


def _natural(wording: str) -> str:
    """A wording without the spaces that ordinary text does not have."""
    wording = re.sub(r" ([,.?:])", r"\1", wording)
    return re.sub(r'" (\{\w+\}) "', r'"\1"', wording).replace("{c} {", "{c}{")
