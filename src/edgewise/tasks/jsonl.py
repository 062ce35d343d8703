"""The user's own task: a JSONL file, one pair to a line.

    {"clean": "When Mary and John went to the store, John gave a drink to",
     "corrupt": "When Mary and John went to the store, Mary gave a drink to", "answer": " Mary", "wrong": " John"}

(on one line). Both prompts must have the same number of tokens, `answer` and `wrong` must be one token each, as they follow
the prompt. One that is written without its space gets it where it would otherwise continue the prompt's last word.
"""

import json
from pathlib import Path
from typing import Any

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.tasks.align import Refused, align, check_fast
from edgewise.tasks.generate import longest
from edgewise.tasks.pairs import Pair, Task

KEYS = ("clean", "corrupt", "answer", "wrong")


def read_task(path: str | Path, tokenizer: Any, context: int | None = None) -> Task:
    """A task from a file, scored by logit difference. Every line must be right: the first that is not is named."""
    check_fast(tokenizer)
    path = Path(path)
    try:
        lines = path.read_text("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise EdgewiseError(f"{path} is not a text file: it is not UTF-8") from error
    except (OSError, ValueError) as error:
        raise EdgewiseError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    pairs, refusals = [], {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            pairs.append(_pair(line, tokenizer, longest(tokenizer, context)))
        except Refused as refused:
            refusals[number] = refused
    if refusals:
        number, refused = next(iter(refusals.items()))
        others = len(refusals) - 1
        more = f", and {others} more bad line{'s' * (others > 1)}" if others else ""
        raise EdgewiseError(f"{path}, line {number}: {refused}{more}")
    if not pairs:
        raise EdgewiseError(f"{path} is empty: give a pair to each line, as JSON with {', '.join(KEYS)}")
    return Task(path.stem, "logit difference", tuple(pairs), {})


def _pair(line: str, tokenizer: Any, context: int) -> Pair:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Refused("not JSON", first_line(error)) from error
    if not isinstance(record, dict):
        raise Refused("not a JSON object", f"it needs {', '.join(KEYS)}")
    for key in KEYS:
        if key not in record:
            raise Refused(f'no "{key}"', f"it has {', '.join(map(str, record)) or 'nothing'}")
        if not isinstance(record[key], str):
            raise Refused(f'"{key}" is not a text', json.dumps(record[key])[:60])
        if not record[key].strip():
            raise Refused(f'"{key}" is empty', "give at least one word")
    clean, corrupt, answer, wrong = (record[key] for key in KEYS)
    return align(tokenizer, clean, corrupt, [_following(clean, answer)], [_following(clean, wrong)], context)


def _following(text: str, answer: str) -> str:
    """An answer as it follows the text. Digits go on after digits; a text without spaces is in a script without them."""
    glued = text[-1].isalnum() and answer[0].isalnum() and not (text[-1].isdigit() and answer[0].isdigit())
    return f" {answer}" if glued and " " in text else answer
