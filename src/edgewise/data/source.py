"""Sources of text: files, folders, the Hugging Face hub, or objects of `datasets`, which does the reading."""

import glob
import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.models.hub import hub_is_reachable

# datasets and pyarrow take seconds to import, and embedded models bring their own text: functions import them
if TYPE_CHECKING:
    import datasets

READERS = {".txt": "text", ".jsonl": "json", ".json": "json", ".parquet": "parquet"}
"""The module of `datasets` that reads a kind of file."""
USABLE = f"{', '.join(READERS)}, or one of the first three with .gz"
RECORDS_AT_A_TIME = 256
"""Much faster than one by one, and of ordinary documents a few megabytes."""


@dataclass(frozen=True)
class Source:
    """Texts that are opened together. Nothing is read before it is needed."""

    name: str
    dataset: "datasets.IterableDataset"
    shards: int = 1
    files: tuple[str, ...] = ()
    """Local files; each is a shard."""
    of_lines: bool = False
    """Whether its records are the lines of text files, and not whole documents."""

    def texts(self, shard: int) -> Iterator[str]:
        """The documents of a shard; or, of a text file, its text in chunks that end where lines end."""
        where = self.files[shard] if self.files else self.name
        # A dataset somebody has shuffled or cut is taken as it is: sharding would change what is in it.
        dataset = self.dataset if self.shards == 1 else self.dataset.shard(self.shards, shard)
        column = None
        try:
            table: Any  # of pyarrow
            for table in dataset.with_format("arrow").iter(RECORDS_AT_A_TIME):
                column = column or _text_column(table.schema, where)
                texts = [text for text in table[column].to_pylist() if text]
                yield from ["".join(texts)] if self.of_lines else texts
        except EdgewiseError:
            raise
        except UnicodeDecodeError as error:
            raise EdgewiseError(f"{where} is not a text file: it is not UTF-8") from error
        except Exception as error:  # whatever the formats and the transport raise
            raise EdgewiseError(f"{where} cannot be read: {first_line(error)}") from error


def _text_column(schema: Any, where: str) -> str:
    """The column called "text", or else the only one that holds strings."""
    import pyarrow as pa

    strings = [
        field.name
        for field in schema
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
    ]
    if "text" in strings:
        return "text"
    if len(strings) != 1:
        raise EdgewiseError(
            f'{where} has no text column: it needs one of strings named "text", and has '
            + (", ".join(f"{field.name} ({str(field.type)[:80]})" for field in schema) or "none")
        )
    return strings[0]


def find_sources(data: Any) -> list[Source]:
    """The sources that `data` names, at least one; nothing is read yet."""
    import datasets

    if isinstance(data, list | tuple):
        if not data:
            raise EdgewiseError("`data` is an empty list")
        return [source for item in data for source in find_sources(item)]
    if isinstance(data, datasets.Dataset):
        return [Source(source_name(data), data.to_iterable_dataset())]
    if isinstance(data, datasets.IterableDataset):
        return [Source(source_name(data), data)]
    if isinstance(data, datasets.DatasetDict | datasets.IterableDatasetDict):
        raise EdgewiseError(f"the dataset has several splits; give one of them: {', '.join(map(str, data))}")
    if not isinstance(data, str | Path):
        raise EdgewiseError(
            f"`data` is a path, a name or a dataset, or a list of these; not a {type(data).__name__}"
        )
    if not str(data):
        raise EdgewiseError("`data` is an empty text: name a file, a folder (. for this one) or a dataset")
    path = _path(data)
    if path.is_dir():
        return _folder(path)
    if path.is_fifo() or path.is_socket():
        raise EdgewiseError(f"{path} is a pipe, and data is read more than once: give a file")
    if path.exists():
        return [_files([path], str(path))]
    if (
        isinstance(data, Path)
        or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?(:[\w.-]*){0,2}", data)
        or _is_file_name(data)
    ):
        raise EdgewiseError(f"no data at {str(data)[:200]}: there is no such file or folder")
    return [_from_hub(data)]


def source_name(data: Any) -> str:
    """The name of data in messages and summaries."""
    if isinstance(data, list | tuple):
        names = list(map(source_name, data))
        return ", ".join(names) if len(names) < 4 else f"{names[0]} and {len(names) - 1} more"
    if isinstance(data, str | Path):
        path = _path(data)
        return path.resolve().name if path.exists() else str(data)
    return getattr(getattr(data, "info", None), "dataset_name", None) or "the given dataset"


def _path(name: str | Path) -> Path:
    try:
        path = Path(name).expanduser()
        path.exists()
    except (RuntimeError, OSError, ValueError) as error:  # no such user, a name too long, a null byte
        raise EdgewiseError(f"no data at {str(name)[:80]}: {first_line(error)}") from error
    return path


def _is_file_name(name: str) -> bool:
    """Whether a name that does not exist was meant as a file. Hub names may have dots too: `owner/web-1.0`."""
    path = Path(name.partition(":")[0])
    plain = "/" not in name and re.fullmatch(r"\.[A-Za-z]\w*", path.suffix)
    return name.startswith(".") or _reader(path) is not None or bool(plain)


def _reader(path: Path) -> str | None:
    suffixes = path.suffixes[-2:] if path.suffix.lower() == ".gz" else [path.suffix]
    reader = READERS.get(suffixes[0].lower())
    return None if reader == "parquet" and len(suffixes) > 1 else reader


def _folder(folder: Path) -> list[Source]:
    by_reader: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        reader = _reader(path)
        if reader is not None and not hidden and path.is_file() and path.stat().st_size > 0:
            by_reader.setdefault(reader, []).append(path)
    if not by_reader:
        raise EdgewiseError(f"the folder {folder} holds no file to read: put {USABLE} there")
    return [_files(paths, str(folder)) for _, paths in sorted(by_reader.items())]


def _files(paths: list[Path], name: str) -> Source:
    """Local files of one kind; each is a shard."""
    import datasets

    reader = _reader(paths[0])
    if reader is None:
        raise EdgewiseError(f"{paths[0]} is not a kind of file that can be read: give {USABLE}")
    if not any(path.stat().st_size for path in paths):
        raise EdgewiseError(f"{name} is empty: there is no text in it")
    if reader == "json":
        for path in paths:
            check_records(path)
    # A text file is read line by line, so that one of several gigabytes need not fit into memory, nor into an Arrow string.
    options = {"keep_linebreaks": True, "encoding": "utf-8-sig"} if reader == "text" else {}
    try:
        dataset = datasets.load_dataset(
            reader,
            data_files=[glob.escape(str(path)) for path in paths],
            split="train",
            streaming=True,
            **options,
        )
    except Exception as error:  # whatever the formats raise
        raise EdgewiseError(f"{name} cannot be read: {first_line(error)}") from error
    return Source(name, dataset, len(paths), tuple(map(str, paths)), of_lines=reader == "text")


_CHUNK = 1 << 24
_NULL_FIRST = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[?\s*null\b")
_NULL_LINE = re.compile(rb"\n[ \t\r]*null[ \t\r]*(?=\n|\Z)")


def check_records(path: Path) -> None:
    """Refuse a JSON file in which null stands in the place of a record: pyarrow, which reads it, may crash the process."""
    where = f"{path} holds null in the place of a record"
    is_lines = ".jsonl" in path.suffixes[-2:]
    try:
        if not path.is_file():
            raise EdgewiseError(f"{path} is not a file with text")
        with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rb") as file:
            chunk = file.read(_CHUNK)
            if _NULL_FIRST.match(chunk):
                raise EdgewiseError(f'{where}: give objects such as {{"text": "..."}}')
            while is_lines and chunk:
                if b"null" in chunk and _NULL_LINE.search(chunk):
                    raise EdgewiseError(
                        f'{where}, on a line of its own: give objects such as {{"text": "..."}}'
                    )
                rest, following = chunk[-64:], file.read(_CHUNK)
                chunk = rest + following if following else b""
    except (OSError, EOFError, zlib.error) as error:
        raise EdgewiseError(f"{path} cannot be read: {first_line(error)}") from error


def _from_hub(address: str) -> Source:
    """A dataset of the hub, or of the local cache."""
    import datasets
    from datasets import config as settings

    name, config, split = [*address.split(":"), "", ""][:3]
    if not hub_is_reachable():
        settings.HF_HUB_OFFLINE = True  # straight to the cache, instead of half a minute of retries
    try:
        dataset = datasets.load_dataset(name, config or None, split=split or "train", streaming=True)
    except Exception as error:  # there are many kinds
        raise EdgewiseError(
            f"{address} is no file or folder, and could not be opened as a Hugging Face dataset: {first_line(error)}"
            " (offline, give a local file)"
        ) from error
    return Source(address, dataset, dataset.num_shards)
