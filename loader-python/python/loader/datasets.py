"""The classes of Rust datasets, one for each format.

An object describes a dataset; see docs/data.md of the project for the formats and the options. ``path`` is a file, a
folder, a pattern such as ``"train-*.parquet"``, or a list of them. Sizes are numbers of bytes or strings such as
``"64 MiB"``.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from ._rust._dataset_options import (
    ArraysOptions,
    ArrowOptions,
    AudioFilesOptions,
    AudioFolderOptions,
    AudioTableOptions,
    CsvOptions,
    ImageTableOptions,
    JsonLinesOptions,
    PackedOptions,
    ParquetOptions,
    Path,
    Paths,
    Size,
    TarOptions,
    TextLinesOptions,
    TokensOptions,
)
from ._rust._output import Output
from ._rust._rust_dataset import RustDataset, RustStream, config_of
from .transforms import Transform, steps_of


class ImageFolder(RustDataset):
    """Images in one sub-folder per class, as ``torchvision.datasets.ImageFolder``. A sample is the image, a tensor of
    shape ``[3, height, width]``, and the number of its class.

    Args:
        root: The folder with one sub-folder per class, or its URL on S3, Google Cloud Storage or Azure.
        transform: A transform or a list of them, of :mod:`loader.transforms` or of torchvision, or ``"train"`` or
            ``"eval"`` with ``size``. By default images keep their size.
        size: Width and height of the images that ``"train"`` and ``"eval"`` make, 224 by default.
        exif_orientation: True to turn images upright, as the orientation in their EXIF data says.
        max_file_bytes: Maximum size of an image file, 256 MiB by default.
        store: How files are read from servers.
        output: Type of the tensors: ``"torch"``, ``"numpy"``, or ``"dlpack"`` for objects with ``__dlpack__``. By
            default ``"torch"`` if PyTorch is installed, otherwise ``"numpy"``.

    Example:
        >>> from loader import ImageFolder
        >>> from loader.transforms import Normalize, RandomHorizontalFlip, RandomResizedCrop
        >>> normalize = Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
        >>> train = ImageFolder("train", [RandomResizedCrop(224), RandomHorizontalFlip(), normalize])
    """

    def __init__(
        self,
        root: Path,
        transform: Transform | Sequence[Any] | Any | None = None,
        *,
        size: int | None = None,
        exif_orientation: bool = False,
        max_file_bytes: Size | None = None,
        store: Mapping[str, Any] | None = None,
        output: Output | None = None,
    ) -> None:
        keys: dict[str, Any] = {"kind": "image-folder", "path": root, "exif_orientation": exif_orientation}
        if isinstance(transform, str):
            keys["transform"] = transform
        else:
            keys["transform"], keys["pixels"] = steps_of(transform if transform is not None else [])
        for name, value in (("size", size), ("max_file_bytes", max_file_bytes), ("store", store)):
            if value is not None:
                keys[name] = value
        super().__init__(keys, output)

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        for name in ("find_classes", "make_dataset"):
            if hasattr(cls, name):
                raise TypeError(
                    f"{cls.__name__} has the method {name}, which torchvision's ImageFolder calls and"
                    " loader.ImageFolder does not: choose samples with torch.utils.data.Subset, change labels in"
                    " `__getitem__`, or give the images and their labels in a table to loader.ImageTable"
                )

    @functools.cached_property
    def classes(self) -> list[str]:
        """The names of the classes, in order."""
        return self._native_dataset.classes()

    @functools.cached_property
    def class_to_idx(self) -> dict[str, int]:
        """The number of each class."""
        return {name: number for number, name in enumerate(self.classes)}

    @functools.cached_property
    def samples(self) -> list[tuple[str, int]]:
        """The path or URL, and the class of each image."""
        return self._native_dataset.files()

    @property
    def imgs(self) -> list[tuple[str, int]]:
        """The same as :attr:`samples`."""
        return self.samples

    @functools.cached_property
    def targets(self) -> list[int]:
        """The class of each image."""
        return [label for _, label in self.samples]


class Parquet(RustDataset):
    """Rows of Parquet files, at any index. A batch is a dict of columns."""

    def __init__(self, path: Paths, *, output: Output | None = None, **options: Unpack[ParquetOptions]) -> None:
        super().__init__({"kind": "parquet", "path": path, **options}, output)


class ParquetStream(RustStream):
    """Rows of Parquet files, in order, or shuffled in blocks (``shuffle_blocks``)."""

    def __init__(self, path: Paths, *, output: Output | None = None, **options: Unpack[ParquetOptions]) -> None:
        super().__init__({"kind": "parquet-stream", "path": path, **options}, output)


class Arrow(RustDataset):
    """Rows of Arrow IPC files and of folders that Hugging Face's ``save_to_disk`` has written, at any index."""

    def __init__(self, path: Paths, *, output: Output | None = None, **options: Unpack[ArrowOptions]) -> None:
        super().__init__({"kind": "arrow", "path": path, **options}, output)


class ArrowStream(RustStream):
    """Rows of Arrow IPC files, in order."""

    def __init__(self, path: Paths, *, output: Output | None = None, **options: Unpack[ArrowOptions]) -> None:
        super().__init__({"kind": "arrow-stream", "path": path, **options}, output)


class Csv(RustDataset):
    """Rows of CSV and TSV files, at any index."""

    def __init__(self, path: Paths, *, output: Output | None = None, **options: Unpack[CsvOptions]) -> None:
        super().__init__({"kind": "csv", "path": path, **options}, output)


class CsvStream(RustStream):
    """Rows of CSV and TSV files, in order; the files may be compressed."""

    def __init__(self, path: Paths, *, output: Output | None = None, **options: Unpack[CsvOptions]) -> None:
        super().__init__({"kind": "csv-stream", "path": path, **options}, output)


class JsonLines(RustDataset):
    """Files with one JSON object per line, at any index."""

    def __init__(self, path: Paths, *, output: Output | None = None, **options: Unpack[JsonLinesOptions]) -> None:
        super().__init__({"kind": "json-lines", "path": path, **options}, output)


class JsonLinesStream(RustStream):
    """Files with one JSON object per line, in order; the files may be compressed."""

    def __init__(self, path: Paths, *, output: Output | None = None, **options: Unpack[JsonLinesOptions]) -> None:
        super().__init__({"kind": "json-lines-stream", "path": path, **options}, output)


class TextLines(RustDataset):
    """Lines of text files, in the column ``text``, at any index."""

    def __init__(self, path: Paths, *, output: Output | None = None, **options: Unpack[TextLinesOptions]) -> None:
        super().__init__({"kind": "text-lines", "path": path, **options}, output)


class TextLinesStream(RustStream):
    """Lines of text files, in the column ``text``, in order; the files may be compressed."""

    def __init__(self, path: Paths, *, output: Output | None = None, **options: Unpack[TextLinesOptions]) -> None:
        super().__init__({"kind": "text-lines-stream", "path": path, **options}, output)


class Tar(RustStream):
    """Samples of tar archives in WebDataset's layout, in order; the archives may be compressed."""

    def __init__(self, path: Paths, *, output: Output | None = None, **options: Unpack[TarOptions]) -> None:
        super().__init__({"kind": "tar", "path": path, **options}, output)


class IndexedTar(RustDataset):
    """Samples of uncompressed tar archives in WebDataset's layout, at any index."""

    def __init__(self, path: Paths, *, output: Output | None = None, **options: Unpack[TarOptions]) -> None:
        super().__init__({"kind": "indexed-tar", "path": path, **options}, output)


class Tokens(RustDataset):
    """Windows of ``window`` tokens, or documents, of token files: raw integers, or Megatron's pairs of files."""

    def __init__(
        self, path: Paths, window: int | None = None, *, output: Output | None = None, **options: Unpack[TokensOptions]
    ) -> None:
        given: dict[str, Any] = {"kind": "tokens", "path": path, **options}
        if window is not None:
            given["window"] = window
        super().__init__(given, output)


class Arrays(RustDataset):
    """Rows of arrays: NumPy's ``.npy`` and ``.npz``, safetensors, IDX (MNIST) and CIFAR's binary files. ``files`` names
    a file for each field."""

    def __init__(
        self, path: Paths | None = None, *, output: Output | None = None, **options: Unpack[ArraysOptions]
    ) -> None:
        super().__init__({"kind": "arrays", **({} if path is None else {"path": path}), **options}, output)


class ImageTable(RustDataset):
    """Images that the rows of a table name, in the layout of Hugging Face's ``imagefolder`` with ``metadata.csv``."""

    def __init__(self, path: Paths, *, output: Output | None = None, **options: Unpack[ImageTableOptions]) -> None:
        super().__init__({"kind": "image-table", "path": path, **options}, output)


class AudioFolder(RustDataset):
    """WAV, FLAC, MP3 and Ogg Vorbis files in one sub-folder per class, at the sample rate ``sample_rate``."""

    def __init__(
        self, path: Path, sample_rate: int, *, output: Output | None = None, **options: Unpack[AudioFolderOptions]
    ) -> None:
        super().__init__({"kind": "audio-folder", "path": path, "sample_rate": sample_rate, **options}, output)


class AudioFiles(RustDataset):
    """WAV, FLAC, MP3 and Ogg Vorbis files without classes, whose content the option ``audio`` decodes."""

    def __init__(self, path: Paths, *, output: Output | None = None, **options: Unpack[AudioFilesOptions]) -> None:
        super().__init__({"kind": "audio-files", "path": path, **options}, output)


class AudioTable(RustDataset):
    """Audio files that the rows of a table name, in the layout of Hugging Face's ``audiofolder`` with
    ``metadata.csv``."""

    def __init__(self, path: Paths, *, output: Output | None = None, **options: Unpack[AudioTableOptions]) -> None:
        super().__init__({"kind": "audio-table", "path": path, **options}, output)


class Mix(RustStream):
    """Datasets of records that are mixed by weight.

    Args:
        parts: Pairs of a dataset and its weight.
        shuffle: True to shuffle the parts that are read by index.
        rule: How the next part is chosen, ``"even"`` or ``"random"``.
        exhausted: What happens when a part has no more samples: ``"stop"``, ``"skip"`` or ``"repeat"``.
        num_samples: Number of samples in an epoch.
    """

    def __init__(
        self,
        parts: Sequence[tuple[RustDataset | RustStream, float]],
        *,
        shuffle: bool = False,
        rule: str | None = None,
        exhausted: str | None = None,
        num_samples: int | None = None,
        output: Output | None = None,
    ) -> None:
        described = [
            {**config_of(part), "weight": weight, "shuffle": shuffle and isinstance(part, RustDataset)}
            for part, weight in parts
        ]
        options = {"rule": rule, "exhausted": exhausted, "num_samples": num_samples}
        given = {name: value for name, value in options.items() if value is not None}
        super().__init__({"kind": "mix", "parts": described, **given}, output)


class Cached(RustDataset):
    """Samples of a dataset of records, kept in files under ``folder`` after they were loaded once."""

    def __init__(
        self,
        dataset: RustDataset,
        folder: Path,
        *,
        version: str = "",
        max_bytes: Size | None = None,
        output: Output | None = None,
    ) -> None:
        keys: dict[str, Any] = {"kind": "cached", "dataset": config_of(dataset), "folder": folder, "version": version}
        if max_bytes is not None:
            keys["max_bytes"] = max_bytes
        super().__init__(keys, output)


class Packed(RustStream):
    """Documents that are packed into windows of ``window`` tokens. ``dataset`` is a dataset of records whose field
    ``field`` (``"tokens"`` by default) has the tokens of a document."""

    def __init__(
        self,
        dataset: RustDataset | RustStream,
        window: int,
        *,
        output: Output | None = None,
        **options: Unpack[PackedOptions],
    ) -> None:
        super().__init__({"kind": "packed", "dataset": config_of(dataset), "window": window, **options}, output)


#: The classes by the names of their kinds.
CLASSES: dict[str, type[RustDataset] | type[RustStream]] = {
    "image-folder": ImageFolder,
    "parquet": Parquet,
    "parquet-stream": ParquetStream,
    "arrow": Arrow,
    "arrow-stream": ArrowStream,
    "csv": Csv,
    "csv-stream": CsvStream,
    "json-lines": JsonLines,
    "json-lines-stream": JsonLinesStream,
    "tar": Tar,
    "indexed-tar": IndexedTar,
    "tokens": Tokens,
    "arrays": Arrays,
    "image-table": ImageTable,
    "audio-folder": AudioFolder,
    "audio-files": AudioFiles,
    "audio-table": AudioTable,
    "text-lines": TextLines,
    "text-lines-stream": TextLinesStream,
    "mix": Mix,
    "cached": Cached,
    "packed": Packed,
}
