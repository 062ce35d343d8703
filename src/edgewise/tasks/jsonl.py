"""A task from a JSONL file of the user's, one pair to a line.

    {"clean": "When Mary and John went to the store, John gave a drink to",
     "corrupt": "When Mary and John went to the store, Mary gave a drink to", "answer": " Mary", "wrong": " John"}

(on one line). Both prompts must have the same number of tokens, `answer` and `wrong` must be one token each, as they follow
the prompt. One that is written without its space gets it where it would otherwise continue the prompt's last word.
"""

import json
from pathlib import Path
from typing import Any

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.core.schema import parse_json, read_text
from edgewise.tasks.align import PairTexts, align
from edgewise.tasks.pairs import Pair, Task
from edgewise.tasks.tokenization import UnusablePrompt, check_fast, max_tokens

MAX_LINES, MAX_BYTES = 10_000, 1 << 28
KEYS = ("clean", "corrupt", "answer", "wrong")


def read_task(path: str | Path, tokenizer: Any, context: int | None = None) -> Task:
    """Read a task from a file; its metric is the logit difference. A file with a bad line is refused, naming the first."""
    check_fast(tokenizer)
    path = Path(path)
    lines = read_text(path, "task", max_bytes=MAX_BYTES).split("\n")
    if len(lines) > MAX_LINES:
        raise EdgewiseError(
            f"{path} has {len(lines):,} lines; a task has at most {MAX_LINES:,} pairs, and hundreds are enough"
        )
    pairs, refusals = [], {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            pairs.append(_pair(line, tokenizer, max_tokens(tokenizer, context)))
        except UnusablePrompt as error:
            refusals[number] = error
    if refusals:
        number, refusal = next(iter(refusals.items()))
        others = len(refusals) - 1
        more = f", and {others} more bad line{'s' * (others > 1)}" if others else ""
        raise EdgewiseError(f"{path}, line {number}: {refusal}{more}")
    if not pairs:
        raise EdgewiseError(f"{path} is empty: give a pair to each line, as JSON with {', '.join(KEYS)}")
    return Task(path.stem, "logit difference", tuple(pairs), {})


def _pair(line: str, tokenizer: Any, context: int) -> Pair:
    try:
        record = parse_json(line)
    except (ValueError, RecursionError) as error:
        raise UnusablePrompt("not JSON", first_line(error)) from error
    if not isinstance(record, dict):
        raise UnusablePrompt("not a JSON object", f"it needs {', '.join(KEYS)}")
    for key in KEYS:
        if key not in record:
            raise UnusablePrompt(f'no "{key}"', f"it has {', '.join(map(str, record)) or 'nothing'}")
        if not isinstance(record[key], str):
            raise UnusablePrompt(f'"{key}" is not a text', json.dumps(record[key])[:60])
        if not record[key].strip():
            raise UnusablePrompt(f'"{key}" is empty', "give at least one word")
    clean, corrupt, answer, wrong = (record[key] for key in KEYS)
    texts = PairTexts(clean, corrupt, [_following(clean, answer)], [_following(clean, wrong)])
    return align(tokenizer, texts, context)


def _following(text: str, answer: str) -> str:
    """An answer as it follows the text: after a space, except for digits after digits and in scripts without spaces."""
    glued = text[-1].isalnum() and answer[0].isalnum() and not (text[-1].isdigit() and answer[0].isdigit())
    return f" {answer}" if glued and " " in text else answer
