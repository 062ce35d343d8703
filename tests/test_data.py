"""The token rows: packing, split, order, resuming, and what is said of data that cannot be used."""

import copy
import gzip
import json
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, pairwise

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import edgewise
from edgewise.core.errors import EdgewiseError
from edgewise.data import IGNORE, Batch, Data, embedded_data, held_out_only, open_data
from edgewise.data.packing import TOKENIZER_BATCH, Encoder, Processes, fill, pack
from edgewise.data.sections import cut, digest, split_documents
from edgewise.pocket import addition, stream
from edgewise.pocket.world import END

CONTEXT = 64


def _documents(seed: int, rows: int) -> list[str]:
    """Different texts of the pocket world."""
    texts = []
    for sentences in stream.training_sentences(seed, 0, rows):
        words = [word for sentence in sentences if sentence for word in sentence.words + sentence.ending]
        texts += [" ".join(words[:40]), " ".join(words[40:])]
    return list(dict.fromkeys(texts))


DOCUMENTS = _documents(seed=3, rows=120)
BOOK = "\n".join(_documents(seed=4, rows=250))


@pytest.fixture(scope="module")
def tokenizer():
    return edgewise.load_tokenizer("pocket")


def dataset():
    import datasets

    return datasets.Dataset.from_dict({"text": DOCUMENTS})


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n<|endoftext|>\n".join(DOCUMENTS) + "\n")
    return path


def encode(tokenizer, texts):
    """Tokens with the end-of-text token, by the tokenizer alone."""
    return [[*tokenizer(text, add_special_tokens=False).input_ids, tokenizer.eos_token_id] for text in texts]


def own(name: str, *args) -> Data:
    data = embedded_data(name, *args)
    assert data is not None
    return data


def same(a: Batch, b: Batch) -> bool:
    return all(torch.equal(x, y) if x is not None else y is None for x, y in zip(a, b, strict=True))


def pieces(batch: Batch):
    """The documents of a batch as its positions tell them, row by row."""
    assert batch.positions is not None
    for ids, positions in zip(batch.ids.tolist(), batch.positions.tolist(), strict=True):
        begins = [t for t, position in enumerate(positions) if position == 0]
        yield [ids[a:b] for a, b in zip(begins, [*begins[1:], len(ids)], strict=True)]


def documents(tokens: list[int], end: int) -> list[tuple[int, ...]]:
    """All whole documents in the tokens of consecutive rows, also those that go on from one row to the next."""
    ends = [t + 1 for t, token in enumerate(tokens) if token == end]
    return [tuple(tokens[a:b]) for a, b in pairwise([0, *ends])]


# ----------------------------------------------------------------------------------------------- rows and packing


@given(
    st.lists(st.lists(st.integers(0, 99), max_size=30), max_size=12), st.integers(1, 16), st.integers(0, 5)
)
@settings(max_examples=100, deadline=None)
def test_laws_of_packing(texts, context, used):
    used = min(used, len(texts[0])) if texts else 0
    filled = list(fill(enumerate(texts), context, used))
    tokens = [token for text in texts for token in text][used:]
    assert len(filled) == len(tokens) // context
    if not filled:
        return
    batch = pack([row for row, _ in filled])
    assert batch.positions is not None
    assert batch.ids.shape == batch.targets.shape == batch.positions.shape == (len(filled), context)
    assert batch.ids.dtype == batch.targets.dtype == batch.positions.dtype == torch.int64
    assert batch.ids.flatten().tolist() == tokens[: len(filled) * context]

    # Beginnings of documents, in the stream of all tokens, are where positions are 0, and so are beginnings of rows.
    begins, total = set(range(0, len(tokens), context)), -used
    for text in texts:
        begins.add(total)
        total += len(text)
    position, expected = 0, []
    for t in range(len(filled) * context):
        position = 0 if t in begins else position + 1
        expected.append(position)
    assert batch.positions.flatten().tolist() == expected

    ids, targets = batch.ids.flatten(), batch.targets.flatten()
    last = torch.tensor([*expected[1:], 0]) == 0
    assert (targets[last] == IGNORE).all()
    assert torch.equal(targets[:-1][~last[:-1]], ids[1:][~last[:-1]])

    # Where a row ends is enough to go on.
    for n, (_, (place, offset)) in enumerate(filled):
        rest = list(fill(islice(enumerate(texts), place, None), context, offset))
        assert rest == filled[n + 1 :]


@given(
    st.lists(st.lists(st.integers(0, 99), max_size=30), max_size=12), st.integers(1, 16), st.integers(1, 3)
)
@settings(max_examples=100, deadline=None)
def test_every_piece_begins_as_the_tokenizer_begins_a_text(texts, context, length):
    start = [100 + i for i in range(length)]
    filled = list(fill(enumerate(texts), context, start=start))
    room = context if length < context else 0
    tokens = []
    for row, _ in filled:
        assert sum(map(len, row)) == context
        if room:
            assert all(piece[:length] == start[: len(piece)] for piece in row)
            tokens += [token for piece in row for token in piece[length:]]
    if room:
        assert tokens == [token for text in texts for token in text][: len(tokens)]
    for n, (_, (place, offset)) in enumerate(filled):
        assert list(fill(islice(enumerate(texts), place, None), context, offset, start)) == filled[n + 1 :]


def test_what_a_tokenizer_puts_before_a_text_is_put_before_rows(tokenizer, corpus, tmp_path):
    from tokenizers.processors import TemplateProcessing

    plain = open_data(corpus, tokenizer, CONTEXT, seed=0).train.take(4)
    begins = copy.deepcopy(tokenizer)
    (first,) = begins("the", add_special_tokens=False).input_ids
    begins.backend_tokenizer.post_processor = TemplateProcessing(
        single="the $A", special_tokens=[("the", first)]
    )
    assert begins("a").input_ids[0] == first
    data = open_data(corpus, begins, CONTEXT, seed=0)
    for batch in (data.train.take(4), data.held_out):
        assert all(piece[0] == first for row in pieces(batch) for piece in row)
    assert not all(piece[0] == first for row in pieces(plain) for piece in row)


@pytest.mark.parametrize("gated", [False, True])
def test_attention_stays_inside_a_document(gated, tokenizer, corpus):
    model = edgewise.load("pocket")
    if gated:
        model = edgewise.gate(model, edgewise.GateConfig())
    model.double().eval()  # in single precision, rounding alone makes 1.5e-5 of difference
    batch = open_data(corpus, tokenizer, CONTEXT, seed=0).train.take(4)
    with torch.no_grad():
        packed = model(input_ids=batch.ids, position_ids=batch.positions, use_cache=False).logits
        rows = list(pieces(batch))
        assert max(map(len, rows)) > 1
        for row, logits in zip(rows, packed, strict=True):
            alone = [model(input_ids=torch.tensor([piece])).logits[0] for piece in row]
            torch.testing.assert_close(logits, torch.cat(alone), rtol=0, atol=1e-9)


# ------------------------------------------------------------------------------------------- documents and sections


@given(st.text("ab \n", max_size=80), st.integers(1, 20))
@settings(max_examples=200, deadline=None)
def test_cutting_loses_nothing(text, limit):
    sections = list(cut(text, limit))
    assert "".join(sections) == text
    assert all(len(section) <= limit for section in sections)
    for section, following in pairwise(sections):
        assert following[0].isspace() or not any(map(str.isspace, section[1:]))


@given(
    st.lists(st.text("ab \n", max_size=30), max_size=6), st.integers(4, 20), st.integers(1, 3), st.booleans()
)
@example(["ab ab", "a"], 5, 1, False)  # with its newline, the first is a character too long
@settings(max_examples=200, deadline=None)
def test_sections_do_not_depend_on_how_a_file_is_read(texts, limit, lines_together, ends_with_newline):
    text = "\n<|endoftext|>\n".join(texts) + "\n" * ends_with_newline
    lines = text.splitlines(keepends=True)
    together = ["".join(lines[i : i + lines_together]) for i in range(0, len(lines), lines_together)]

    def sections(pieces):
        return [section.strip() for section in split_documents(pieces, limit) if section.strip()]

    assert sections(together) == sections([text])
    assert Counter(sections(together)) == sum(
        (Counter(sections([document])) for document in texts), Counter()
    )


def test_digest_is_the_same_in_every_process():
    assert digest("The opposite of large is small") == digest(" The opposite of large is small\n")
    assert digest("The opposite of large is small") == 0x934D9E2E9D465DB9


@pytest.mark.parametrize(
    "kind", ["txt", "txt.gz", "jsonl", "jsonl.gz", "json", "parquet", "dataset", "iterable"]
)
def test_all_kinds_of_data_give_the_same_rows(kind, tokenizer, corpus, tmp_path):
    import datasets

    records = [
        {"title": i, "body": text} for i, text in enumerate(DOCUMENTS)
    ]  # "body": its only column of strings
    path = tmp_path / f"other.{kind}"
    if kind.startswith("txt"):
        content = "<|endoftext|>".join(DOCUMENTS)
    else:
        content = json.dumps(records) if kind == "json" else "\n".join(map(json.dumps, records))
    data = path
    if kind == "parquet":
        datasets.Dataset.from_list(records).to_parquet(path)
    elif kind == "dataset":
        data = datasets.Dataset.from_list(records).with_format("torch")
    elif kind == "iterable":
        data = datasets.IterableDataset.from_generator(lambda: iter(records))
    else:
        path.write_bytes(gzip.compress(content.encode()) if kind.endswith("gz") else content.encode())
    expected, actual = (open_data(what, tokenizer, CONTEXT, seed=1) for what in (corpus, data))
    assert same(actual.held_out, expected.held_out)
    assert same(actual.train.take(20), expected.train.take(20))


def test_a_folder_and_a_list_are_all_of_their_files(tokenizer, tmp_path):
    folder = tmp_path / "odd [name]"
    (folder / "deep").mkdir(parents=True)
    thirds = [DOCUMENTS[i::3] for i in range(3)]
    (folder / "a.txt").write_text(f"\n{END}\n".join(thirds[0]))
    (folder / "deep" / "b.txt").write_text("\ufeff" + END.join(thirds[1]), encoding="utf-8")
    (folder / "c.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in thirds[2]))
    (folder / "empty.txt").touch()
    (folder / "picture.png").write_bytes(b"\x89PNG")
    (folder / ".hidden.txt").write_text("large")
    listed = [str(folder / "c.jsonl"), folder / "a.txt", folder / "deep"]
    whole = held_out_only(dataset(), tokenizer, 1, tokens=10**9)
    for data in (folder, listed):
        batch = held_out_only(data, tokenizer, 1, tokens=10**9)
        assert Counter(batch.ids.flatten().tolist()) == Counter(whole.ids.flatten().tolist())
    assert open_data(folder, tokenizer, CONTEXT, 0).train.name == "odd [name]"
    assert open_data(listed, tokenizer, CONTEXT, 0).train.name == "c.jsonl, a.txt, deep"


# ------------------------------------------------------------------------------------------------ order and epochs


@pytest.mark.parametrize("kind", ["file", "book", "list"])
def test_every_token_once_an_epoch_in_a_new_order(kind, tokenizer, corpus, tmp_path):
    data, texts = corpus, DOCUMENTS
    if kind == "book":  # one document, which becomes many sections
        corpus.write_text(BOOK)
        texts = [BOOK]
    if kind == "list":  # of more files than are mixed at a time, and of different lengths
        data = [tmp_path / f"{i}.txt" for i in range(12)]
        ends = [i * (i + 1) for i in range(12)] + [len(DOCUMENTS)]
        for path, (a, b) in zip(data, pairwise(ends), strict=True):
            path.write_text(END.join(DOCUMENTS[a:b]))
    data = open_data(data, tokenizer, CONTEXT, seed=0)
    sections = [section for text in texts for section in cut(text, 16 * CONTEXT * 4)]
    assert len(sections) > 10
    expected = encode(tokenizer, [s for s in sections if digest(s) % 20])
    total = sum(map(len, expected))
    tokens = data.train.take(3 * total // CONTEXT + 1).ids.flatten().tolist()
    epochs = [documents(tokens[i * total : (i + 1) * total], tokenizer.eos_token_id) for i in range(3)]
    for epoch in epochs:
        assert Counter(epoch) == Counter(map(tuple, expected))
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_seed_determines_the_order_and_nothing_else(tokenizer, corpus):
    first, again, other = (open_data(corpus, tokenizer, CONTEXT, seed=seed) for seed in (5, 5, 6))
    assert same(first.held_out, again.held_out) and same(first.held_out, other.held_out)
    batch = first.train.take(8)
    assert same(batch, again.train.take(8))
    assert not same(batch, other.train.take(8))


class Counting:
    """A tokenizer that counts the texts it is given."""

    def __init__(self, tokenizer):
        self.tokenizer, self.texts = tokenizer, 0

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)

    def __call__(self, texts, **options):
        self.texts += len(texts) if isinstance(texts, list) else 0
        return self.tokenizer(texts, **options)


@pytest.mark.parametrize("count", [2, 3])
def test_processes_tokenize_a_share_each_and_read_the_same(count, tokenizer, corpus):
    """Threads stand for the processes."""
    alone = Counting(tokenizer)
    expected = open_data(corpus, alone, CONTEXT, seed=2)
    rows = expected.train.take(40)
    board: list[object] = [None] * count
    meeting = threading.Barrier(count, timeout=60)
    tokenizers = [Counting(tokenizer) for _ in range(count)]

    def read(index: int) -> tuple[Batch, Batch]:
        def gather(own: object) -> list[object]:
            board[index] = own
            meeting.wait()
            everything = list(board)
            meeting.wait()
            return everything

        processes = Processes(index, count, gather)
        data = open_data(corpus, tokenizers[index], CONTEXT, seed=2, processes=processes)
        return data.held_out, data.train.take(40)

    with ThreadPoolExecutor(count) as pool:
        for held_out, batch in pool.map(read, range(count)):
            assert same(held_out, expected.held_out) and same(batch, rows)
    # those ahead of the last sequence are tokenized a group at a time
    assert max(t.texts for t in tokenizers) < alone.texts / count + 3 * TOKENIZER_BATCH


def test_an_error_of_one_tokenizer_reaches_all_processes(tokenizer):
    encode = Encoder(tokenizer, "text", Processes(0, 2, lambda own: [own, "broken"]))
    with pytest.raises(EdgewiseError, match="cannot read text: broken"):
        list(encode(["a", "b"]))


@pytest.mark.parametrize("kind", ["file", "folder", "pocket", "pocket-addition"])
def test_resuming_is_exact(kind, tokenizer, corpus, tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    for i in range(3):
        (folder / f"{i}.txt").write_text(END.join(DOCUMENTS[i::3]))

    def stream_of():
        if kind in ("file", "folder"):
            return open_data(corpus if kind == "file" else folder, tokenizer, CONTEXT, seed=2).train
        return own(kind, 2, 1).train

    takes = [1, 3, 2, 16, 5, 1, 5, 7, 2, 3]
    if kind in ("file", "folder"):
        takes[4], takes[8] = 200, 180  # on into the next epoch
    whole, states, batches = stream_of(), [], []
    for n in takes:
        states.append(json.loads(json.dumps(whole.state_dict())))
        batches.append(whole.take(n))
        assert batches[-1].ids.shape == (n, whole.context)
    if kind in ("file", "folder"):
        assert states[5]["epoch"] == 0 < states[-1]["epoch"]
    for begin in (0, 1, 4, 6, 9):
        resumed = stream_of()
        resumed.take(4)  # whatever it did before
        resumed.load_state_dict(states[begin])
        assert resumed.state_dict() == states[begin]
        for n, batch in zip(takes[begin:], batches[begin:], strict=True):
            assert same(resumed.take(n), batch)


def test_rows_of_files_do_not_depend_on_how_many_are_taken(tokenizer, corpus):
    one, many = (open_data(corpus, tokenizer, CONTEXT, seed=0).train for _ in range(2))
    together = [torch.cat(part) for part in zip(*(one.take(n) for n in (1, 5, 2, 12)), strict=True)]
    assert same(Batch(*together), many.take(20))


# ------------------------------------------------------------------------------------------------------- the split


def test_no_text_is_on_both_sides(tokenizer, tmp_path):
    """Not even one that is in the data several times, at the end of which it may or may not have a newline."""
    path = tmp_path / "twice.txt"
    path.write_text(f"\n{END}\n".join(DOCUMENTS + DOCUMENTS[::-1]))
    data = open_data(path, tokenizer, CONTEXT, seed=0)
    end = tokenizer.eos_token_id
    trained, held_out = (
        set(documents(batch.ids.flatten().tolist(), end)) for batch in (data.train.take(700), data.held_out)
    )
    everything = set(map(tuple, encode(tokenizer, DOCUMENTS)))
    assert held_out <= everything and trained <= everything
    assert not trained & held_out
    assert len(trained) > 0.9 * len(everything) - 5 and 0.02 * len(everything) < len(held_out)


def test_as_many_tokens_are_held_out_as_asked_for(tokenizer, corpus):
    assert (
        open_data(corpus, tokenizer, CONTEXT, 0, held_out_tokens=2 * CONTEXT + 5).held_out.ids.shape[0] == 2
    )
    assert open_data(corpus, tokenizer, CONTEXT, 0, held_out_tokens=1).held_out.ids.shape[0] == 1
    assert held_out_only(corpus, tokenizer, CONTEXT, tokens=3 * CONTEXT).ids.shape == (3, CONTEXT)
    tokens = sum(map(len, encode(tokenizer, DOCUMENTS)))
    assert held_out_only(corpus, tokenizer, CONTEXT, tokens=10**9).ids.shape[0] == tokens // CONTEXT


@pytest.mark.parametrize("rows", [10, 20, 40, 200])
def test_tiny_data_is_split_too(rows, tokenizer, tmp_path):
    path = tmp_path / "tiny.txt"
    path.write_text(" ".join(BOOK.split()[: rows * CONTEXT]))
    data = open_data(path, tokenizer, CONTEXT, seed=0)
    assert len(data.held_out.ids) >= 1
    trained = {tuple(piece) for row in pieces(data.train.take(2 * rows)) for piece in row if len(piece) > 8}
    held_out = {tuple(piece) for row in pieces(data.held_out) for piece in row if len(piece) > 8}
    assert trained and held_out and not trained & held_out


def test_given_held_out_data(tokenizer, corpus, tmp_path):
    """Training leaves out all of it, also what is beyond the rows that are measured on."""
    valid = tmp_path / "valid.jsonl"
    held_out_texts = DOCUMENTS[40:100]
    valid.write_text("\n".join(json.dumps({"text": text + "\n"}) for text in held_out_texts))
    data = open_data(corpus, tokenizer, CONTEXT, 0, valid=valid, held_out_tokens=4 * CONTEXT)
    assert same(data.held_out, held_out_only(valid, tokenizer, CONTEXT, tokens=4 * CONTEXT))
    trained = documents(data.train.take(400).ids.flatten().tolist(), tokenizer.eos_token_id)
    texts = DOCUMENTS[:40] + DOCUMENTS[100:]
    assert set(trained) == set(map(tuple, encode(tokenizer, texts)))
    with pytest.raises(EdgewiseError, match=r"nothing is left of corpus.txt .* corpus.txt too"):
        open_data(corpus, tokenizer, CONTEXT, 0, valid=corpus)


# -------------------------------------------------------------------------------------------------- shipped data


def test_pocket_brings_its_own_text():
    data = own("pocket", 0)
    assert data.train.name == "pocket's own stream" and data.train.context == 128
    assert data.held_out.ids.shape == (512, 128) and data.held_out.positions is None
    assert torch.equal(data.held_out.ids, stream.held_out_text(512, seed=0))
    assert torch.equal(own("pocket", 9, 8).held_out.ids, data.held_out.ids[:8])
    batch = data.train.take(5)
    assert torch.equal(batch.targets[:, :-1], batch.ids[:, 1:]) and (batch.targets[:, -1] == IGNORE).all()
    assert not torch.equal(batch.ids, stream.training_batch(0, 0, 5))  # what the model was trained on
    assert not torch.equal(batch.ids, own("pocket", 1, 1).train.take(5).ids)


def test_addition_brings_its_own_sums():
    data = own("pocket-addition", 0)
    assert data.held_out.ids.shape == (10_000, 11)
    for batch in (data.train.take(50), data.held_out):
        a, b = (10 * batch.ids[:, i] + batch.ids[:, i + 1] for i in (0, 3))
        digits = batch.targets[:, addition.ANSWER]
        assert torch.equal((digits * torch.tensor([10_000, 1000, 100, 10, 1])).sum(1), a + b)
        assert (batch.targets[:, :6] == IGNORE).all() and batch.positions is None


def test_other_models_bring_nothing():
    assert embedded_data("gpt2", seed=0) is None and embedded_data("./pocket", seed=0) is None


# -------------------------------------------------------------------------------------------- what cannot be used


def _write(path, content: bytes):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b"", "empty.txt is empty: there is no text in it"),
        ("empty.jsonl", b"", "empty.jsonl is empty: there is no text in it"),
        ("blank.txt", b" \n\n \n", "blank.txt is empty: there is no text in it"),
        ("picture.txt", b"\x89PNG\r\n\xff\xfe", "picture.txt is not a text file: it is not UTF-8"),
        ("weights.txt", b"large\0\0\0small", "weights.txt is not a text file: it holds NUL bytes"),
        ("late.txt", b"The large\n" * 9999 + b"\xff", "late.txt is not a text file: it is not UTF-8"),
        ("not.txt.gz", b"The large", "not.txt.gz cannot be read: "),
        ("not.parquet", b"The large", "not.parquet cannot be read: "),
        ("not.jsonl", b"The large", "not.jsonl cannot be read: "),
        (
            "paper.pdf",
            b"%PDF",
            "paper.pdf is not a kind of file that can be read: give .txt, .jsonl, .json, .parquet",
        ),
        (
            "short.txt",
            b"The large " * 18,
            "short.txt holds only 37 tokens, not one sequence of 64: give more text or a smaller `context`",
        ),
        (
            "alike.jsonl",
            b'{"text": "The opposite of large is small"}\n' * 90,
            "alike.jsonl holds 630 tokens, too few or too much alike to train on sequences of 64 and hold out others: "
            "give more text, a smaller `context`, or other text as `valid`",
        ),
        (
            "two.jsonl",
            b'{"question": "large", "n": 1, "answer": "small"}\n',
            'two.jsonl has no text column: it needs one of strings named "text", and has question (string), n (int64), '
            "answer (string)",
        ),
        (
            "numbers.jsonl",
            b'{"a": 1, "b": 2}\n',
            'numbers.jsonl has no text column: it needs one of strings named "text", and has a (int64), b (int64)',
        ),
        ("strange.txt", b"Supercalifragilistic", "the model's tokenizer cannot read strange.txt: "),
    ],
)
def test_files_that_cannot_be_used(name, content, message, tokenizer, tmp_path):
    with pytest.raises(EdgewiseError) as error:
        open_data(_write(tmp_path / name, content), tokenizer, CONTEXT, seed=0)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_too_little_to_evaluate_on(tokenizer, corpus, tmp_path):
    short = _write(tmp_path / "short.txt", b"The large " * 18)
    message = "short.txt holds only 37 tokens, not one sequence of 64: give more text or a smaller `context`"
    with pytest.raises(EdgewiseError, match=message):
        held_out_only(short, tokenizer, CONTEXT, tokens=1000)
    with pytest.raises(EdgewiseError, match=message):
        open_data(corpus, tokenizer, CONTEXT, 0, valid=short)
    with pytest.raises(EdgewiseError, match=message):
        open_data(short, tokenizer, CONTEXT, 0, valid=corpus)


@pytest.mark.parametrize(
    "name",
    [
        "missing.txt",
        "data/missing.jsonl",
        "./missing",
        "/nowhere/at/all",
        "a/b/c",
        "notes.md",
        "~/missing.gz",
    ],
)
def test_missing_files(name, tokenizer):
    with pytest.raises(EdgewiseError, match=f"no data at {name}: there is no such file or folder"):
        open_data(name, tokenizer, CONTEXT, seed=0)


@pytest.mark.parametrize("name", ["x" * 5000, "once\0upon", "Once upon a time there was a model"])
def test_what_is_no_path_at_all(name, tokenizer):
    with pytest.raises(EdgewiseError, match="no data at "):
        open_data(name, tokenizer, CONTEXT, seed=0)


def test_other_things_that_are_no_data(tokenizer, tmp_path):
    import datasets

    _write(tmp_path / "folder" / "picture.png", b"\x89PNG")
    splits = datasets.DatasetDict(train=dataset(), test=dataset())
    for data, message in [
        (tmp_path / "folder", r"folder holds no file to read: put \.txt, \.jsonl, \.json, \.parquet"),
        ([], "`data` is an empty list"),
        (7, "`data` is a path, a name or a dataset, or a list of these; not a int"),
        (splits, "the dataset has several splits; give one of them: train, test"),
    ]:
        with pytest.raises(EdgewiseError, match=message):
            open_data(data, tokenizer, CONTEXT, seed=0)


@pytest.mark.parametrize(
    "name", ["wikitext", "wikitext:wikitext-2-raw-v1:test", "nobody/web-1.0", "c4:en.noclean"]
)
def test_a_dataset_of_the_hub_without_the_hub(name, tokenizer, monkeypatch, tmp_path):
    from datasets import config

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(config, "HF_HUB_OFFLINE", False)  # set back afterwards
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path)  # whatever may be in the real one
    with pytest.raises(EdgewiseError) as error:
        open_data(name, tokenizer, CONTEXT, seed=0)
    assert str(error.value).startswith(
        f"{name} is no file or folder, and could not be opened as a Hugging Face dataset: "
    )
    assert str(error.value).endswith("(offline, give a local file)")


def test_a_hub_name_is_taken_apart(tokenizer, monkeypatch):
    import datasets

    calls = []

    def load_dataset(*args, **kwargs):
        calls.append((*args, kwargs["split"]))
        return dataset().to_iterable_dataset(num_shards=3)

    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)  # set back afterwards
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    for name in ("wikitext", "owner/web-1.0:en", "owner/web:en:test", "web::validation"):
        data = open_data(name, tokenizer, CONTEXT, seed=0)
        assert data.train.name == name and data.train.take(2).ids.shape == (2, CONTEXT)
    assert calls == [
        ("wikitext", None, "train"),
        ("owner/web-1.0", "en", "train"),
        ("owner/web", "en", "test"),
        ("web", None, "validation"),
    ]


def test_datasets_is_imported_only_when_needed():
    code = "import sys, edgewise.data as data; data.embedded_data('pocket', 0, 1); assert 'datasets' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
