"""Write the table of architectures in docs/interop.md from the checks of tests/matrix.py.

    python docs/build_architectures.py                # all: minutes
    python docs/build_architectures.py gpt2 llama     # these; the other rows stay

Every causal architecture of the installed transformers is built small and random, and each claim checked against its oracle.
"""

import re
import sys
import tempfile
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

PAGE = ROOT / "docs" / "interop.md"
BEGIN, END = "<!-- architectures: begin -->", "<!-- architectures: end -->"
HEAD = "| type | loads, dense | cache | heads | edges | traces | why not |\n|---|---|---|---|---|---|---|\n"


def table_row(kind: str, claims: dict[str, str], skipped: str) -> str:
    """One architecture: yes where a claim is exact, no where it is refused, and the first sentence of refusal."""
    if skipped:
        return f"| `{kind}` | not tried | | | | | {_cell(skipped)} |"
    refusals = [outcome for outcome in claims.values() if outcome != "exact"]
    dense = "yes" if claims.get("dense") == "exact" else "no"
    marks = [dense] + [
        {"exact": "yes", "": ""}.get(claims.get(name, ""), "no")
        for name in ("cache", "heads", "edges", "trace")
    ]
    return f"| `{kind}` | {' | '.join(marks)} | {_cell(refusals[0]) if refusals else ''} |"


def _cell(sentence: str) -> str:
    sentence = sentence.replace("|", "/")
    return sentence if len(sentence) <= 160 else sentence[:157] + "..."


def written_rows(page: str) -> dict[str, str]:
    """The rows of the page, by type."""
    block = page.partition(BEGIN)[2].partition(END)[0]
    return {match[1]: match[0] for match in re.finditer(r"^\| `([^`]+)` \|.*$", block, re.MULTILINE)}


def main(kinds: list[str]) -> None:
    from architectures import ARCHITECTURES  # pyright: ignore
    from matrix import row  # pyright: ignore

    warnings.simplefilter("ignore")
    rows = written_rows(PAGE.read_text())
    for kind in kinds or ARCHITECTURES:
        with tempfile.TemporaryDirectory() as folder:
            result = row(kind, Path(folder) / kind)  # a refusal may name the folder
        rows[kind] = table_row(kind, result.claims, result.skipped)
        print(rows[kind], flush=True)
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    table = HEAD + "\n".join(rows[kind] for kind in sorted(rows))
    PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main(sys.argv[1:])
