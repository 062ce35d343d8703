"""Word-level Hugging Face tokenizers: one token per word, none added at the beginning."""

from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Sequence, Split, WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from edgewise.pocket.world import END, VOCABULARY

# Besides spaces, marks and pairs of digits stand for themselves, so that `"large"` and `1732` are read as
# well as `" large "` and `17 32`.
_MARKS = Regex(r'"""|:param|[".,:?()]|\d\d')


def word_tokenizer(
    vocabulary: list[str], marks: Regex, context: int, end: str | None = None
) -> PreTrainedTokenizerFast:
    """A tokenizer whose ids are the places in `vocabulary`; decoding joins words by spaces."""
    # There is no unknown word in a closed world: an unlisted word is an error, not silently replaced.
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = Sequence([WhitespaceSplit(), Split(marks, "isolated")])
    special = {} if end is None else {"eos_token": end, "bos_token": end, "pad_token": end}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=context, clean_up_tokenization_spaces=False, **special
    )


def pocket_tokenizer(context: int = 128) -> PreTrainedTokenizerFast:
    """The tokenizer of the pocket world."""
    return word_tokenizer(VOCABULARY, _MARKS, context, END)
