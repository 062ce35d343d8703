"""Former home of names that now stand in `load`, `save`, `gate` and `loaded`."""

from edgewise.models.gate import gate as gate
from edgewise.models.load import load as load
from edgewise.models.load import load_tokenizer as load_tokenizer
from edgewise.models.loaded import name_of as name_of
from edgewise.models.loaded import shared_tokenizer as shared_tokenizer
from edgewise.models.save import save as save
