"""The pocket world: its words, its prompts, its streams, and what is held out."""

import json
from collections import Counter
from random import Random

import pytest
import torch

from edgewise.pocket import addition, evaluate, folder, stream, world
from edgewise.pocket.addition import addition_tokenizer
from edgewise.pocket.embedded import MODELS
from edgewise.pocket.recipe import POCKET_ROWS
from edgewise.pocket.tokenizer import pocket_tokenizer
from edgewise.pocket.world import KINDS, Kind, Prompt
from edgewise.tasks import words as w

QUESTIONS = evaluate.QUESTIONS


@pytest.fixture(scope="module")
def tokenizer():
    return pocket_tokenizer()


def test_vocabulary_is_small_and_has_no_doubles():
    assert 700 <= len(world.VOCABULARY) <= 1000
    assert len(set(world.VOCABULARY)) == len(world.VOCABULARY)
    assert not any(" " in word for word in world.VOCABULARY)


def test_large_stands_at_position_five_of_eight(tokenizer):
    prompt = world.relation_prompt("opposite", "large")
    tokens = tokenizer.convert_ids_to_tokens(tokenizer(prompt.text).input_ids)
    assert tokens == ["The", "opposite", "of", '"', "large", '"', "is", '"']
    assert tokens[5 - 1] == "large" and tokens[8 - 1] == '"'
    assert prompt.answers == ("small",)
    assert world.is_held_out("relations", prompt.combination)


@pytest.mark.parametrize("relation", world.RELATION_NAMES)
def test_every_relation_has_the_same_eight_positions(relation):
    for word in w.RELATIONS[relation]:
        words = world.relation_prompt(relation, word).words
        assert len(words) == 8 and words[1] == relation and words[4] == word


def test_the_standard_prompts_are_in_the_world(tokenizer):
    for text, count in [
        ("When Mary and John went to the store , John gave a drink to", 14),
        ("The war lasted from the year 17 32 to the year 17", 12),
        ('def port ( self , load , size ) : """ oil column :param load : crime :param', 18),
    ]:
        assert len(tokenizer(text).input_ids) == count


def test_marks_and_years_may_be_written_together(tokenizer):
    together = (
        'The opposite of "large" is "',
        "the year 1732.",
        'def port(self, load): """ oil :param load: crime',
    )
    apart = (
        'The opposite of " large " is "',
        "the year 17 32 .",
        'def port ( self , load ) : """ oil :param load : crime',
    )
    for a, b in zip(together, apart, strict=True):
        assert tokenizer(a).input_ids == tokenizer(b).input_ids


def test_tokenizer_round_trip(tokenizer):
    assert len(tokenizer) == len(world.VOCABULARY)
    for ids in stream.held_out_text(50).tolist():
        text = tokenizer.decode(ids)
        assert text == " ".join(world.VOCABULARY[i] for i in ids)
        assert tokenizer(text).input_ids == ids


def test_an_unknown_word_is_an_error(tokenizer):
    with pytest.raises(Exception, match=r"(?i)unk"):
        tokenizer("The opposite of zeitgeist")


@pytest.mark.parametrize("kind", KINDS)
def test_sentences_are_in_the_vocabulary_and_fit(kind: Kind):
    known = set(world.VOCABULARY)
    for held_out in (False, True):
        rng = Random(1)
        for _ in range(300):
            sentence = world.GENERATORS[kind](rng, held_out)
            assert known.issuperset(sentence.words + sentence.ending + sentence.answers + sentence.wrong)
            assert 0 < len(sentence.words) + len(sentence.ending) <= stream.CONTEXT
            assert world.is_held_out(kind, sentence.combination) == held_out
            if kind != "plain":
                assert sentence.ending[0] in sentence.answers
                assert not set(sentence.answers) & set(sentence.wrong)


def test_answers_are_what_the_words_say():
    for prompt in world.held_out_prompts("ioi", 200):
        (receiver,), (giver,) = prompt.answers, prompt.wrong
        assert prompt.words.count(giver) == 2 and prompt.words.count(receiver) == 1
    for prompt in world.held_out_prompts("greater-than", 200):
        _, century, first = prompt.combination
        assert prompt.words[-1] == century and prompt.words.count(first) >= 1
        assert all(year > first for year in prompt.answers) and all(year <= first for year in prompt.wrong)
        assert len(prompt.answers) + len(prompt.wrong) == 100
    for prompt in world.held_out_prompts("docstring", 200):
        given = prompt.words.count(":param") - 1
        assert prompt.answers == (prompt.combination[given],) and given >= 1
    for prompt in world.held_out_prompts("copy", 200):
        period = len(prompt.combination)
        assert (
            prompt.words + prompt.answers == prompt.combination * 2 and len(set(prompt.combination)) == period
        )


def test_every_fact_is_learned_in_some_wording():
    for relation, facts in w.RELATIONS.items():
        for word in facts:
            sides = Counter(
                world.is_held_out("relations", (wording, relation, word))
                for wording in world.RELATION_WORDINGS
            )
            assert sides[False] >= 4, (relation, word)


def test_one_combination_in_eight_is_held_out():
    rng = Random(0)
    share = sum(world.is_held_out("copy", rng.sample(world.COPY_WORDS, 5)) for _ in range(8000)) / 8000
    assert 0.11 < share < 0.14


# ------------------------------------------------------------------------------------------------- streams


def test_rows_are_determined_by_the_seed():
    first = stream.training_batch(0, 5)
    assert first.shape == (32, stream.CONTEXT) and first.dtype == torch.int64
    assert torch.equal(first, stream.training_batch(0, 5))
    assert not torch.equal(first, stream.training_batch(0, 6))
    assert not torch.equal(first, stream.training_batch(1, 5))
    assert torch.equal(stream.held_out_text(8, 3), stream.held_out_text(8, 3))
    assert world.held_out_prompts("ioi", 5, 2) == world.held_out_prompts("ioi", 5, 2)


def test_rows_begin_with_a_document_of_any_kind():
    kinds: Counter[Kind] = Counter()
    for step in range(40):
        for sentences in stream.training_sentences(0, step, 32):
            assert sentences[0] is not None
            kinds[sentences[0].kind] += 1
    assert all(kinds[kind] > 100 for kind in KINDS)


def _held_out_in_training(seed: int, steps: range) -> tuple[int, list[Prompt]]:
    """How many sentences of the training stream were looked at, and those that must not be there."""
    n_sentences, bad = 0, []
    for step in steps:
        for sentences in stream.training_sentences(seed, step, POCKET_ROWS):
            for sentence in sentences:
                if sentence is not None:
                    n_sentences += 1
                    if world.is_held_out(sentence.kind, sentence.combination):
                        bad.append(sentence)
    return n_sentences, bad


def test_no_held_out_combination_in_the_beginning_of_the_training_stream():
    n_sentences, bad = _held_out_in_training(0, range(100))
    assert n_sentences > 7_500 and not bad


@pytest.mark.slow
def test_no_held_out_combination_in_the_whole_training_stream_of_the_shipped_model():
    made = json.loads((folder("pocket") / "made.json").read_text())
    n_sentences, bad = _held_out_in_training(made["seed"], range(made["steps"]))
    assert n_sentences > 10 * made["steps"] and not bad


def test_held_out_prompts_do_not_occur_word_for_word():
    """The same said without trusting the generators' own account: look for the words themselves."""
    text = "\n".join(
        " ".join(stream.row_words(sentences))
        for step in range(100)
        for sentences in stream.training_sentences(0, step, 32)
    )
    for kind in QUESTIONS:
        for prompt in world.held_out_prompts(kind, 200, seed=7):
            # Wordings end alike ('... of " large " is "'), so a prompt counts where a sentence begins.
            for before in ("\n", f"{world.END} ", ". "):
                assert before + prompt.text + " " not in text, prompt


# ------------------------------------------------------------------------------------------------- addition


def test_addition_has_eleven_positions():
    tokens, digits = addition.every_sum()
    assert tokens.shape == (10_000, 11) and digits.shape == (10_000, 5)
    tokenizer = addition_tokenizer()
    for a, b in ((53, 21), (36, 28), (43, 59), (0, 7), (99, 99)):
        row = 100 * a + b
        assert tokenizer.decode(tokens[row]) == " ".join(f"{a:02d}+{b:02d}=?????")
        assert tokenizer(f"{a:02d}+{b:02d}=?????").input_ids == tokens[row].tolist()
        assert "".join(map(str, digits[row].tolist())) == f"{a + b:05d}"


def test_random_sums_are_sums():
    tokens, digits = addition.random_sums(0, 3, 500)
    known = {
        tuple(row): tuple(answer)
        for row, answer in zip(*map(torch.Tensor.tolist, addition.every_sum()), strict=True)
    }
    for row, answer in zip(tokens.tolist(), digits.tolist(), strict=True):
        assert known[tuple(row)] == tuple(answer)
    assert torch.equal(tokens, addition.random_sums(0, 3, 500)[0])


def test_folders_are_named():
    assert tuple(model.name for model in MODELS) == (
        "pocket",
        "pocket-addition",
        "pocket-sparse",
        "pocket-addition-sparse",
    )
    with pytest.raises(KeyError, match="pocket-addition"):
        folder("gpt2")
