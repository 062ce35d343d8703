"""Tasks: prompts that are aligned token by token for tokenizers of every kind, their scores, and what is refused."""

import json
import re
from functools import cache, partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import command
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast
from transformers.models.llama import LlamaConfig, LlamaForCausalLM

import edgewise
from edgewise.core.errors import EdgewiseError
from edgewise.pocket import world
from edgewise.pocket.tokenizer import pocket_tokenizer
from edgewise.tasks import TASKS, Pair, Prompts, Task, make_task, read_task, score
from edgewise.tasks import words as w
from edgewise.tasks.builtin import OPPOSITES
from edgewise.tasks.generate import split_task
from edgewise.tasks.lexicon import WHOLE
from edgewise.tasks.measure import measure_task, measure_tasks

# ------------------------------------------------------------------------------------- tokenizers of every kind


def _text() -> list[str]:
    """What a tokenizer is trained on: most words with and without a space, years, lines of code; a few words are missing."""
    known = [word for i, word in enumerate(world.VOCABULARY) if i % 12 or word in "The When After"]
    lines = [f'{word} {word} "{word}"' for word in known if word.isalpha()] * 20
    lines += [f"({number})" for number in w.NUMBERS] * 20
    lines += [f"year {century}{year}" for century in w.CENTURIES for year in w.NUMBERS]
    return lines + ['def f(self):\n    """\n\n    :param\n    :param\n'] * 50


def _bpe(*before: pre_tokenizers.PreTokenizer) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*before, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=5000, min_frequency=12, initial_alphabet=alphabet, special_tokens=["<|end|>"]
    )
    tokenizer.train_from_iterator(_text(), trainer)
    return tokenizer


def like_gpt2():
    """Byte-level BPE: a word is another token after a space, years are two tokens."""
    return PreTrainedTokenizerFast(
        tokenizer_object=_bpe(), bos_token="<|end|>", eos_token="<|end|>", unk_token="<|end|>"
    )


def like_smollm():
    """The same, but every digit is a token."""
    tokenizer = _bpe(pre_tokenizers.Digits(individual_digits=True))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


def by_threes():
    """Bytes, with up to three digits of a number together, as in Llama 3."""
    tokenizer = _bpe(pre_tokenizers.Split(Regex(r"\d{1,3}"), "isolated"))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


def like_llama(end: bool = False):
    """Unigrams with a mark for spaces; a token at the beginning, and one at the end if asked for."""
    known = [word for i, word in enumerate(world.VOCABULARY) if i % 7 and word.isalpha()]
    pieces = {"<unk>": 0.0, "<s>": 0.0, "</s>": 0.0, "▁": -9.0, "\n": -9.0}
    pieces |= {f"▁{word}": -5.0 for word in known} | dict.fromkeys(known, -6.0)
    pieces |= {chr(code): -10.0 for code in range(33, 127) if chr(code) not in pieces}
    tokenizer = Tokenizer(models.Unigram(list(pieces.items()), unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>" if end else "<s> $A", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def with_unknown_words():
    """Words only, a tenth of which it does not know."""
    known = ["[UNK]", *(word for i, word in enumerate(world.VOCABULARY) if i % 10 != 1 or not word.isalpha())]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(known)}, unk_token="[UNK]"))
    marks = pocket_tokenizer().backend_tokenizer.pre_tokenizer
    tokenizer.pre_tokenizer = marks  # pyright: ignore
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


KINDS = {
    "gpt2": like_gpt2,
    "smollm": like_smollm,
    "threes": by_threes,
    "llama": like_llama,
    "llama with an end": partial(like_llama, end=True),
    "unknown words": with_unknown_words,
    "pocket": pocket_tokenizer,
}
CANNOT = {("threes", "greater-than")}
BY_DIGITS = ("smollm", "llama", "llama with an end")
CAN = [(kind, name) for kind in KINDS for name in TASKS if (kind, name) not in CANNOT]


@cache
def tokenizer_of(kind: str):
    return KINDS[kind]()


@cache
def task_of(kind: str, name: str, n: int = 40, seed: int = 0) -> Task:
    return make_task(name, tokenizer_of(kind), n, seed)


def word_at(kind: str, ids: tuple[int, ...], position: int) -> str:
    return tokenizer_of(kind).decode([ids[position]]).strip()


# ------------------------------------------------------------------------------------------------------ the laws

FIRST_PERIOD = [*(f"word {i}" for i in range(1, 7)), "before", "answer"]
CHANGED = {
    "copy": FIRST_PERIOD,
    "ioi": ["second subject"],
    "greater-than": ["year"],
    "docstring": ["argument 1", "before", "answer", "argument 4"],
    "antonym": ["word"],
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("kind", "name"), CAN)
def test_pairs_are_aligned_and_differ_in_their_slots_only(kind, name, seed):
    for pair in task_of(kind, name, seed=seed).pairs:
        assert len(pair.clean_ids) == len(pair.corrupt_ids) == pair.positions["end"] + 1
        differing = [
            i for i, (a, b) in enumerate(zip(pair.clean_ids, pair.corrupt_ids, strict=True)) if a != b
        ]
        by_digits = name == "greater-than" and kind in BY_DIGITS
        changed = ["tens"] if by_digits else CHANGED[name]
        assert sorted(pair.positions[slot] for slot in changed) == differing
        assert pair.clean_ids[-1] == pair.corrupt_ids[-1]


@pytest.mark.parametrize(("kind", "name"), CAN)
def test_ids_are_what_the_tokenizer_makes_of_the_texts(kind, name):
    tokenizer = tokenizer_of(kind)
    for pair in task_of(kind, name).pairs[:8]:
        end = [tokenizer.eos_token_id] if "end" in kind else []
        assert [*pair.clean_ids, *end] == tokenizer(pair.clean).input_ids
        assert [*pair.corrupt_ids, *end] == tokenizer(pair.corrupt).input_ids
        for texts, ids in ((pair.answers, pair.answer_ids), (pair.wrong, pair.wrong_ids)):
            for text, token in zip(texts, ids, strict=True):
                assert [*pair.clean_ids, token, *end] == tokenizer(pair.clean + text).input_ids
        assert not {*pair.answer_ids} & {*pair.wrong_ids}
        assert tokenizer.unk_token_id not in {*pair.clean_ids, *pair.answer_ids, *pair.wrong_ids}


@pytest.mark.parametrize(("kind", "name"), CAN)
def test_named_positions_are_where_the_words_are(kind, name):
    for pair in task_of(kind, name).pairs:
        clean, corrupt = (
            {slot: word_at(kind, ids, at) for slot, at in pair.positions.items()}
            for ids in (pair.clean_ids, pair.corrupt_ids)
        )
        answer, wrong = pair.answers[0].strip(), pair.wrong[0].strip()
        if name == "copy":
            assert clean["before"] == clean["end"] and (clean["answer"], corrupt["answer"]) == (answer, wrong)
            first = [pair.clean_ids[pair.positions[slot]] for slot in FIRST_PERIOD]
            assert pair.clean_ids[-7:] == tuple(first[:7]) and len({*first}) == 8
            assert not {*first} & {pair.corrupt_ids[pair.positions[slot]] for slot in FIRST_PERIOD}
        elif name == "ioi":
            assert (clean["indirect object"], clean["subject"]) == (answer, wrong)
            assert (clean["second subject"], corrupt["second subject"]) == (wrong, answer)
        elif name == "greater-than":
            if kind in BY_DIGITS:
                year = re.findall(r"\d{4}", pair.clean)[0]
                assert clean["tens"] == year[2] and corrupt["tens"] == "0"
                assert min(pair.answers) > clean["tens"] > max(pair.wrong)
                assert len(pair.answers) + len(pair.wrong) == 9
            else:
                assert corrupt["year"] == "02" and int(clean["year"]) >= 20
                assert min(pair.answers) > clean["year"] >= max(pair.wrong)
        elif name == "docstring":
            assert (clean["answer"], corrupt["answer"]) == (answer, wrong)
            assert clean["before"] == clean["documented"] == corrupt["documented"] != corrupt["before"]
        else:
            assert (OPPOSITES[clean["word"]], OPPOSITES[corrupt["word"]]) == (answer, wrong)


@pytest.mark.parametrize(("kind", "name"), CAN)
def test_pairs_are_distinct_and_as_many_as_requested(kind, name):
    task = task_of(kind, name)
    assert len({pair.clean for pair in task.pairs}) == len(task.pairs)
    few = (kind, name) == ("pocket", "antonym")  # there are 27 held-out ones
    assert len(task.pairs) == (27 if few else 40)
    assert all(count > 0 for count in task.skipped.values())
    numbers = name == "greater-than" and kind in (
        "gpt2",
        *BY_DIGITS,
    )  # whatever a tokenizer makes of other words
    assert (not task.skipped) == (kind == "pocket" or numbers)


@pytest.mark.parametrize("name", TASKS)
def test_the_same_seed_makes_the_same_task(name):
    again = make_task(name, pocket_tokenizer(), 20, seed=0)
    assert again == make_task(name, pocket_tokenizer(), 20, seed=0)
    assert again.pairs != make_task(name, pocket_tokenizer(), 20, seed=1).pairs


@pytest.mark.parametrize("name", TASKS)
def test_splits_have_words_and_wordings_of_their_own(name):
    task = split_task(name, tokenizer_of("gpt2"), 12)
    assert [len(numbers) for numbers in task.splits.values()] == [6, 6, 12, 12]
    texts = [{task.pairs[i].clean for i in numbers} for numbers in task.splits.values()]
    assert not texts[0] & texts[1] and not (texts[0] | texts[1]) & texts[2]
    assert not (texts[0] | texts[1] | texts[2]) & texts[3]
    names = [{word for text in of_split for word in text.split() if word in w.NAMES} for of_split in texts]
    if name == "ioi":
        assert all(names) and not names[0] & names[1] and not (names[0] | names[1]) & names[2]
        assert not (names[0] | names[1] | names[2]) & names[3]
    if name != "copy":
        beginnings = [{tuple(text.split()[:2]) for text in of_split} for of_split in texts]
        assert name == "docstring" or not beginnings[0] & beginnings[2]


def test_few_prompts_and_files_are_split_by_position(tmp_path):
    tokenizer = tokenizer_of("gpt2")
    assert split_task("ioi", tokenizer, 6).splits == {"fit": range(6)}
    task = make_task("ioi", tokenizer, 20)
    assert task.splits == {"fit": range(5), "validation": range(5, 10), "test": range(10, 20)}


def test_both_orders_of_the_names_and_every_wording():
    pairs = task_of("gpt2", "ioi").pairs
    assert len({pair.positions["subject"] < pair.positions["indirect object"] for pair in pairs}) == 2
    for name, n in {"ioi": 2, "greater-than": 2, "antonym": 2}.items():
        assert (
            len(
                {
                    pair.clean.split()[0 if name != "greater-than" else 2]
                    for pair in task_of("gpt2", name).pairs
                }
            )
            == n
        )


@given(st.sampled_from(TASKS), st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_prompts_for_the_pocket_tokenizer_are_held_out(name, seed):
    for pair in make_task(name, tokenizer_of("pocket"), 8, seed).pairs:
        words = tuple(word_at("pocket", pair.clean_ids, i) for i in range(len(pair.clean_ids)))
        assert world.is_held_out(*_combination(name, words))


def _combination(name: str, words: tuple[str, ...]):
    """What decides in the pocket world whether a sentence is held out, read off its words."""
    text = " ".join(words)
    if name == "copy":
        return "copy", words[:8]
    if name == "docstring":
        return "docstring", words[5:13:2]
    wordings = {
        "ioi": WHOLE.ioi_openings,
        "greater-than": WHOLE.event_wordings,
        "antonym": WHOLE.opposite_wordings,
    }[name]
    for wording in wordings:
        pattern = re.escape(wording.partition("{later}")[0].partition("{answer}")[0].strip())
        slots: set[str] = set()

        def group(named: re.Match, slots=slots) -> str:
            slot = named[1]
            is_repeated = slot in slots
            slots.add(slot)
            return f"(?P={slot})" if is_repeated else rf"(?P<{slot}>\w+)"

        match = re.match(re.sub(r"\\{(\w+)\\}", group, pattern), text)
        if match and name == "ioi":
            return "ioi", (*sorted((match["a"], match["b"])), words[-2], match["place"])
        if match and name == "greater-than":
            return "greater-than", (match["event"], match["c"], match["first"])
        if match:
            return "relations", (wording, match["relation"], match["word"])
    raise AssertionError(text)


# --------------------------------------------------------------------------------- what cannot be expressed


@pytest.mark.parametrize(("kind", "name"), sorted(CANNOT))
def test_a_task_that_a_tokenizer_cannot_express_is_refused_with_the_reason(kind, name):
    why = "greater-than cannot be expressed with this tokenizer: a word "
    with pytest.raises(EdgewiseError, match=why):
        make_task(name, tokenizer_of(kind), 10)


def test_skipped_drafts_are_counted_with_their_reason():
    assert any("several tokens" in reason for reason in task_of("gpt2", "ioi").skipped)
    assert any("not know" in reason for reason in task_of("unknown words", "ioi").skipped)
    assert sum(task_of("gpt2", "copy").skipped.values()) < len(world.COPY_WORDS)


@pytest.mark.parametrize("name", TASKS)
def test_a_closed_vocabulary_is_refused_with_the_reason(name):
    with pytest.raises(EdgewiseError, match=f"{name} cannot be expressed .* the tokenizer does not know"):
        make_task(name, edgewise.load_tokenizer("pocket-addition"), 10)


def test_years_that_are_one_token_with_their_century_are_left_out():
    tokenizer = like_gpt2()
    years = {f" 17{year}" for year in (45, 88)}
    tokenizer.add_tokens(sorted(years))
    task = make_task("greater-than", tokenizer, 60)
    seventeenth = [pair for pair in task.pairs if pair.clean.endswith(" 17")]
    assert seventeenth
    for pair in seventeenth:
        assert not {"45", "88"} & {*pair.answers, *pair.wrong}
        assert len(pair.answers) + len(pair.wrong) == 98


def test_prompts_longer_than_the_context():
    with pytest.raises(EdgewiseError, match=r"longer than the context \(\d\d tokens, context 20\)"):
        make_task("docstring", pocket_tokenizer(), 10, context=20)
    with pytest.raises(EdgewiseError, match="longer than the context"):
        make_task("docstring", pocket_tokenizer(context=20), 10)


def test_slow_tokenizers_unknown_tasks_and_no_pairs():
    class Slow:
        is_fast = False

    with pytest.raises(EdgewiseError, match=r"Slow does not say where .* fast tokenizer"):
        make_task("copy", Slow(), 10)
    with pytest.raises(EdgewiseError, match="no task 'coppy'; choose from copy, ioi"):
        make_task("coppy", pocket_tokenizer(), 10)
    with pytest.raises(EdgewiseError, match="`n` must be at least 1, not 0"):
        make_task("copy", pocket_tokenizer(), 0)


# -------------------------------------------------------------------------------------------- tensors and scores


def test_prompts_as_tensors():
    task = task_of("gpt2", "antonym")
    prompts = task.prompts()
    assert len({len(pair.clean_ids) for pair in task.pairs}) == 2, "two wordings of different length"
    for i, pair in enumerate(task.pairs):
        length = int(prompts.last[i]) + 1
        assert tuple(prompts.clean[i, :length].tolist()) == pair.clean_ids
        assert tuple(prompts.corrupt[i, :length].tolist()) == pair.corrupt_ids
    assert prompts.clean.dtype == prompts.columns.dtype == prompts.last.dtype == torch.int64
    assert prompts.signs.dtype == torch.float32


def _pair(answers: list[int], wrong: list[int]) -> Pair:
    return Pair("a", "b", ("a",), ("b",), (1, 2), (1, 3), tuple(answers), tuple(wrong), {"end": 1})


@given(st.data(), st.sampled_from(["logit difference", "probability difference"]), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_scores_are_those_of_a_plain_loop(data, metric, seed):
    vocabulary = 12
    tokens = st.lists(st.integers(0, vocabulary - 1), min_size=2, max_size=8, unique=True)
    drawn = data.draw(st.lists(tokens, min_size=1, max_size=5))
    pairs = tuple(_pair(x[: len(x) // 2], x[len(x) // 2 :]) for x in drawn)
    prompts = Task("any", metric, pairs, {}).prompts()
    logits = 5 * torch.randn(3, len(pairs), vocabulary, generator=torch.Generator().manual_seed(seed))
    scores = score(logits, prompts, metric)
    assert scores.shape == (3, len(pairs))
    for k in range(3):
        for i, pair in enumerate(pairs):
            one = logits[k, i]
            if metric == "logit difference":
                expected = one[list(pair.answer_ids)].mean() - one[list(pair.wrong_ids)].mean()
            else:
                p = one.softmax(0)
                expected = p[list(pair.answer_ids)].sum() - p[list(pair.wrong_ids)].sum()
            assert scores[k, i].item() == pytest.approx(expected.item(), abs=1e-5)


def test_scores_have_gradients_and_keep_double_precision():
    prompts = Task("any", "logit difference", (_pair([1, 2], [3]),), {}).prompts()
    logits = torch.zeros(1, 5, dtype=torch.float64, requires_grad=True)
    score(logits, prompts, "logit difference").sum().backward()
    assert logits.grad is not None and logits.grad.tolist() == [[0, 0.5, 0.5, -1, 0]]
    assert score(logits.bfloat16(), prompts, "logit difference").dtype == torch.float32


@pytest.mark.parametrize("metric", ["logit difference", "probability difference"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_score_that_is_not_finite_is_refused(metric, bad):
    prompts = Task("any", metric, (_pair([1], [2]),), {}).prompts()
    with pytest.raises(EdgewiseError, match=f"the {metric} is not a number"):
        score(torch.tensor([[0.0, bad, 0.0]]), prompts, metric)


# ------------------------------------------------------------------------------------------------ the user's file

GOOD = {
    "clean": "When Mary and John went to the store, John gave a drink to",
    "corrupt": "When Mary and John went to the store, Mary gave a drink to",
    "answer": " Mary",
    "wrong": " John",
}


def file_of(folder, *lines):
    path = folder / "mine.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


@pytest.mark.parametrize("kind", ["gpt2", "llama", "pocket"])
def test_a_file_is_a_task(kind, tmp_path):
    later = {"clean": "from the year 1732", "corrupt": "from the year 1702", "answer": " to", "wrong": "to"}
    lines = [GOOD, "", {**GOOD, "answer": "Mary", "wrong": "John", "note": "no space"}]
    task = read_task(file_of(tmp_path, *lines), tokenizer_of(kind))
    assert task.name == "mine" and task.metric == "logit difference" and len(task.pairs) == 2
    assert task.pairs[0] == task.pairs[1] and task.pairs[0].positions == {
        "end": len(task.pairs[0].clean_ids) - 1
    }
    assert word_at(kind, task.pairs[0].answer_ids, 0) == "Mary"
    with pytest.raises(EdgewiseError, match="same token"):
        read_task(file_of(tmp_path, later), tokenizer_of(kind))


def test_an_answer_goes_on_after_digits_and_in_scripts_without_spaces(tmp_path):
    tokenizer = tokenizer_of("gpt2")
    year = {"clean": "The year 17", "corrupt": "The war 17", "answer": "45", "wrong": "12"}
    (pair,) = read_task(file_of(tmp_path, year), tokenizer).pairs
    assert (
        pair.answers == ("45",)
        and [*pair.clean_ids, *pair.answer_ids] == tokenizer("The year 1745").input_ids
    )
    with pytest.raises(EdgewiseError, match="'北' is"):  # as it is, without a space
        read_task(
            file_of(tmp_path, {"clean": "大", "corrupt": "天", "answer": "北", "wrong": "小"}), tokenizer
        )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({**GOOD, "corrupt": "When Mary went to"}, r"clean and corrupt differ in length \(14 and 4 tokens\)"),
        ({**GOOD, "answer": " Mary Anna"}, r"an answer of several tokens \(' Mary Anna' is 'Mary', 'Anna'\)"),
        ({**GOOD, "wrong": " John ."}, "an answer of several tokens"),
        ({**GOOD, "answer": " "}, '"answer" is empty'),
        ({**GOOD, "clean": ""}, '"clean" is empty'),
        ({**GOOD, "wrong": 3}, '"wrong" is not a text'),
        ({**GOOD, "answer": [" Mary"]}, '"answer" is not a text'),
        ({"clean": "When", "corrupt": "After", "answer": " Mary"}, 'no "wrong"'),
        ("{'clean': 1}", "not JSON"),
        ("[1, 2]", "not a JSON object"),
        ({**GOOD, "wrong": " Mary"}, "answer and wrong are the same token"),
        ({**GOOD, "corrupt": GOOD["clean"]}, "clean and corrupt are the same"),
        ({**GOOD, "clean": GOOD["clean"].replace("store", "igloo")}, r"does not know \(igloo"),
        ({**GOOD, "wrong": " Zebra"}, r"does not know \(Zebra\)"),
        (
            {**GOOD, "clean": "the " * 129, "corrupt": "a " * 129},
            r"longer than the context \(129 tokens, context 128\)",
        ),
    ],
)
def test_a_bad_line_is_refused_by_its_number(tmp_path, line, message):
    path = file_of(tmp_path, GOOD, "", line)
    with pytest.raises(EdgewiseError, match=f"{re.escape(str(path))}, line 3: .*{message}") as caught:
        read_task(path, pocket_tokenizer())
    assert "\n" not in str(caught.value)


def test_bad_lines_are_counted_and_bad_files_refused(tmp_path):
    with pytest.raises(EdgewiseError, match=r"line 1: not JSON .*, and 2 more bad lines$"):
        read_task(file_of(tmp_path, "{", "{", GOOD, "{"), pocket_tokenizer())
    with pytest.raises(EdgewiseError, match=r"mine.jsonl is empty: .* clean, corrupt, answer, wrong"):
        read_task(file_of(tmp_path, "", ""), pocket_tokenizer())
    with pytest.raises(EdgewiseError, match=r"none\.jsonl cannot be read: No such file"):
        read_task(tmp_path / "none.jsonl", pocket_tokenizer())
    with pytest.raises(EdgewiseError, match="is not a file with a task"):
        read_task(tmp_path, pocket_tokenizer())
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(EdgewiseError, match="not UTF-8"):
        read_task(tmp_path / "bytes.jsonl", pocket_tokenizer())
    with pytest.raises(EdgewiseError, match="line 1: longer than the context"):
        read_task(file_of(tmp_path, GOOD), pocket_tokenizer(), context=10)


# ------------------------------------------------------------------------------------------ what the models know


@pytest.mark.xdist_group("pocket")
@pytest.mark.parametrize("model", ["pocket", "pocket-sparse"])
def test_pocket_models_solve_the_tasks(model):
    measured = measure_tasks(model)
    assert tuple(measured.results) == TASKS and not measured.impossible
    for name, result in measured.results.items():
        assert result.clean.mean() > result.corrupt.mean() + 0.5, name
        assert result.accuracy >= 0.95 and result.top_1 >= 0.95, name
    assert measured.results["greater-than"].clean.mean() > 0.85


@pytest.mark.xdist_group("pocket")
def test_padding_changes_nothing():
    model, task = edgewise.load("pocket"), task_of("pocket", "antonym")
    result = measure_task(model, task)
    prompts = task.prompts()
    for i, pair in enumerate(task.pairs):
        for ids, expected in ((pair.clean_ids, result.clean[i]), (pair.corrupt_ids, result.corrupt[i])):
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids])).logits[:, -1]
            single = Prompts(*(x[i : i + 1] for x in prompts))
            assert score(logits, single, task.metric).item() == pytest.approx(expected.item(), abs=1e-4)
        assert bool(result.likeliest[i]) == (
            int(logits.argmax()) in pair.wrong_ids
        )  # after the corrupt prompt
    with torch.no_grad():
        model.get_input_embeddings().weight[int(prompts.clean[0, 0])] = float("nan")  # pyright: ignore
    with pytest.raises(EdgewiseError, match="the logit difference is not a number"):
        measure_task(model, task)


@pytest.fixture
def folder(tmp_path):
    """A random model that reads digits by threes."""
    tokenizer = tokenizer_of("threes")
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_the_command_prints_a_row_and_three_examples_of_each_task(tmp_path):
    out = tmp_path / "new" / "tasks.json"
    own_task = file_of(tmp_path, GOOD)
    arguments = ("--task", "copy", "antonym", "greater-than", str(own_task), "--n", "8", "--out", str(out))
    code, printed, _ = command("tasks", "pocket", *arguments)
    assert code == 0 and "accuracy" in printed and "100.0%" in printed
    assert printed.count("  clean    ") == printed.count("  corrupt  ") == printed.count("  answer   ") == 10
    assert GOOD["clean"] in printed and "answer   Mary   wrong  John" in printed and ".. 99" in printed
    saved = json.loads(out.read_text())
    assert saved["model"] == "pocket" and list(saved["tasks"]) == [
        "copy",
        "antonym",
        "greater-than",
        str(own_task),
    ]
    copied = saved["tasks"]["copy"]
    assert copied["accuracy"] == 1 and copied["prompts"] == len(copied["pairs"]) == 8
    assert copied["clean"] == pytest.approx(sum(pair["clean_score"] for pair in copied["pairs"]) / 8)


def test_the_command_prints_why_a_task_cannot_be_expressed(folder):
    code, printed, _ = command("tasks", str(folder), "--n", "8")
    assert code == 0 and "cannot be expressed with this tokenizer: a word of several tokens" in printed
    assert "skipped" in printed and "docstring" in printed


def test_bad_input_is_one_line_and_exit_code_2(folder, tmp_path):
    bad = file_of(tmp_path, GOOD, "{")
    for arguments, message in {
        ("--task", "greater-than"): "greater-than cannot be expressed",
        ("--task", "mine"): "no task 'mine'",
        ("--task", str(bad)): "mine.jsonl, line 2: not JSON",
        ("--task", "none.jsonl"): "none.jsonl cannot be read",
        ("--task",): "name at least one task",
        ("--n", "0"): "--n must be at least 1",
        ("--task", "ioi", "--n", "4", "--out", str(folder)): "is a folder; give a file",
    }.items():
        code, _, err = command("tasks", str(folder), *arguments)
        lines = [line for line in err.splitlines() if line.startswith("edgewise: ")]
        assert code == 2 and len(lines) == 1 and message in lines[0], (arguments, err)


def test_a_tokenizer_of_another_model():
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
        )
    )
    with pytest.raises(EdgewiseError, match=r"more words than the model \(50\)"):
        measure_task(model, task_of("pocket", "ioi"))
