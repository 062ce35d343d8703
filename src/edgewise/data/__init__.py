"""The token sequences that training and evaluation read.

`source` finds texts, `sections` cuts them into documents of a bearable length, `packing` fills sequences with them, `split`
holds some out of training, `embedded` has the text that embedded models bring along.

    data = open_data("books.txt", tokenizer, context=128, seed=0)
    batch = data.train.take(16)     # endless, shuffled, resumable
    data.held_out                   # fixed sequences that are never trained on

Data is a .txt, .jsonl, .json or .parquet file (.txt.gz, .jsonl.gz and .json.gz too), a folder or a list of such, a dataset
of the Hugging Face hub as `name`, `name:config` or `name:config:split` (the split is `train` if not given, and the config
may be empty: `name::test`), or an object of the `datasets` library.
"""

from edgewise.data.batch import IGNORE as IGNORE
from edgewise.data.batch import Batch as Batch
from edgewise.data.batch import Data as Data
from edgewise.data.batch import SequenceStream as SequenceStream
from edgewise.data.embedded import embedded_data as embedded_data
from edgewise.data.split import HELD_OUT_TOKENS as HELD_OUT_TOKENS
from edgewise.data.split import held_out_only as held_out_only
from edgewise.data.split import open_data as open_data

__all__ = [
    "HELD_OUT_TOKENS",
    "IGNORE",
    "Batch",
    "Data",
    "SequenceStream",
    "embedded_data",
    "held_out_only",
    "open_data",
]
