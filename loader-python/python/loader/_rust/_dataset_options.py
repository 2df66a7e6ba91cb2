"""The types of the keyword arguments of the classes in ``datasets``: the options of each format."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

Path = str | os.PathLike[str]
Paths = Path | Sequence[Path]
Size = int | str
IndexPlace = Literal["cache", "beside", "none"] | Mapping[Literal["folder"], Path]


class SourceOptions(TypedDict, total=False):
    """Options of all formats of records."""

    #: The configuration in the header of the folder's README.md. If only ``split`` is set, the default configuration
    #: is read. If neither is set, README.md is not read.
    config: str
    #: The split of the configuration. If only ``config`` is set, the configuration must have one split.
    split: str
    #: How columns of encoded images are decoded, by name: ``{"image": {"transform": "train", "size": 224}}``.
    images: Mapping[str, Mapping[str, Any]]
    #: How columns of encoded audio are decoded, by name: ``{"audio": {"sample_rate": 16000}}``.
    audio: Mapping[str, Mapping[str, Any]]
    #: Fields: a stream leaves out the records in which one of them is null. Other datasets refuse the option.
    drop_nulls: Sequence[str]
    #: How columns of text become tokens, by name: ``{"text": {"path": "tokenizer.json"}}``. The package must be built
    #: with the feature ``tokenizer``.
    tokenizers: Mapping[str, Mapping[str, Any]]
    #: How files are read from servers.
    store: Mapping[str, Any]


class FieldOptions(SourceOptions, total=False):
    """Options of the fields of records."""

    #: The fields, in the order that the batches have. All fields by default.
    fields: Sequence[str]
    #: Dtypes to which the numbers of fields are converted: ``{"label": "int64"}``.
    dtypes: Mapping[str, str]
    #: Numbers that take the place of nulls: ``{"age": -1}``.
    fill: Mapping[str, float]
    #: Numbers with which sequences are padded to the longest of a batch: ``{"tokens": 0}``.
    pad: Mapping[str, float]


class ArrowOptions(FieldOptions, total=False):
    cache_bytes: Size
    max_batch_bytes: Size


class CsvOptions(FieldOptions, total=False):
    delimiter: str
    index: IndexPlace
    max_line_bytes: Size
    missing: Sequence[str]
    names: Sequence[str]
    quotes: bool
    types: Mapping[str, str]


class JsonLinesOptions(FieldOptions, total=False):
    block_bytes: Size
    index: IndexPlace
    max_line_bytes: Size


class TextLinesOptions(SourceOptions, total=False):
    block_bytes: Size
    index: IndexPlace
    max_line_bytes: Size


class PackedOptions(TypedDict, total=False):
    method: Literal["concatenate", "first-fit", "best-fit"]
    look_ahead: int
    long_documents: Literal["error", "split", "truncate"]
    pad: int
    drop_last: bool
    shuffle_windows: bool
    shuffle_documents: bool
    field: str


class ParquetOptions(FieldOptions, total=False):
    cache_bytes: Size
    block_bytes: Size
    shuffle_blocks: int


class TarOptions(FieldOptions, total=False):
    allow_missing_end: bool
    decode: bool
    index: IndexPlace
    max_sample_bytes: Size
    rename: Mapping[str, Sequence[str]]
    shuffle_files: bool


class TokensOptions(SourceOptions, total=False):
    documents: bool
    dtype: str
    end_of_document: int
    format: Literal["raw", "megatron"]
    header_bytes: Size
    max_tokens: int
    pad: int
    sample_dtype: str
    stride: int
    vocabulary: int


class ArraysOptions(FieldOptions, total=False):
    files: Mapping[str, Path]
    format: str
    max_unpacked_bytes: Size


class AudioFolderOptions(TypedDict, total=False):
    crop: Any
    max_sample_bytes: Size
    mono: bool
    store: Mapping[str, Any]


class AudioFilesOptions(SourceOptions, total=False):
    max_file_bytes: Size


class ImageTableOptions(FieldOptions, total=False):
    max_file_bytes: Size


class AudioTableOptions(FieldOptions, total=False):
    max_file_bytes: Size
