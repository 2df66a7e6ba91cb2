"""The extension module: the engine, as the package uses it. Its names may change in any release."""

import os
from collections.abc import Callable, Iterator
from typing import Any, Protocol, Self, final, type_check_only

@final
class Memory:
    """Bytes of a batch, in shared memory or on the heap, with the buffer protocol."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def allocate(size: int) -> Memory:
    """Allocates bytes for an array of the batch that this thread collates. Their content is undefined."""

@final
class Numbers:
    """The numbers of a batch, as the engine takes them from an order."""

    def tolist(self) -> list[int]: ...

def plain_numbers(keys: list[Any], end: int) -> Numbers | None:
    """Returns the elements if all of them are plain integers from 0 and below ``end``."""

@final
class Array:
    """A tensor in a slot of shared memory or on the heap, with the buffer protocol and DLPack."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""

    @property
    def dtype(self) -> str:
        """The name of the dtype, such as ``float32``."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class Observers:
    """The statistics, the trace and the metrics of all engines of a loader."""

    def __new__(cls) -> Self: ...
    def metrics_address(self) -> str | None:
        """Returns the address at which the metrics are served, once an engine has been made with the option ``metrics``."""

@final
class RustDataset:
    """A dataset of ``loader-data``, made of JSON with the keys of the section ``[dataset]`` of a config file."""

    #: The names of all kinds.
    kinds: list[str]

    def __new__(cls, keys: str) -> Self: ...
    @staticmethod
    def load(path: str | os.PathLike[str]) -> tuple[RustDataset, str]:
        """Reads a config file. Returns the dataset, and the options of the loader as JSON."""

    def keys(self) -> str:
        """The keys, as JSON, with the defaults filled in. Another dataset can be made of them."""

    def shown_keys(self) -> str:
        """The keys, as JSON, without the credentials in URLs."""

    @property
    def is_stream(self) -> bool:
        """True if the samples are read in order."""

    @property
    def samples(self) -> int | None:
        """Number of samples, if it is known."""

    def classes(self) -> list[str]:
        """The names of the classes of an image folder."""

    def files(self) -> list[tuple[str, int]]:
        """The path or URL, and the label, of each sample of an image folder."""

    def get(self, index: int, seed: int, convert: Callable[[Array], Any]) -> Any:
        """Loads one sample in this process."""

    def engine(self, parts: RustParts) -> Engine:
        """Makes a loader of this dataset."""

@type_check_only
class RustParts(Protocol):
    """What the loader of a Rust dataset is made from, beside the dataset."""

    @property
    def begin(self) -> Callable[[int], Iterator[list[int]]] | None: ...
    @property
    def batches(self) -> int: ...
    @property
    def sampler_fingerprint(self) -> str: ...
    @property
    def options(self) -> str: ...
    @property
    def auto_collation(self) -> bool: ...
    @property
    def program(self) -> str: ...
    @property
    def arguments(self) -> list[str]: ...

@final
class Engine:
    """A loader, with its dataset and options as they were when it was made."""

    def __new__(cls, parts: Any) -> Self: ...
    def iterate(self, epoch: int, convert: Callable[..., Any]) -> BatchIterator:
        """Begins an epoch."""

    def resume(self, state: EngineState, convert: Callable[..., Any]) -> BatchIterator:
        """Continues the epoch of a state. After the last batch of the epoch there are no batches."""

    def batches(self) -> int | None:
        """Returns the number of batches in an epoch, if it is known."""

    def state_at(self, epoch: int) -> EngineState | None:
        """Returns the state at the beginning of an epoch."""

    def last_state(self) -> EngineState | None:
        """Returns the state of the last iterator, if it was closed or dropped."""

@final
class EngineState:
    """The state of an engine. Its text is JSON, which is a part of the states of ``DataLoader`` and ``RustLoader``."""

    def __new__(cls, text: str) -> Self:
        """Reads the text of a state. Raises ``ValueError`` if it is none, or was damaged or edited."""

    @property
    def epoch(self) -> int:
        """Number of the epoch."""

    @property
    def is_at_start(self) -> bool:
        """True if no batch of the epoch was returned."""

    @property
    def is_before_first_sample(self) -> bool:
        """True if no sample of an iterable dataset was returned. The state then has no snapshot."""

    @property
    def first_unreturned_batch(self) -> int:
        """Number of the first batch of a map-style dataset that was not returned."""

    @property
    def is_at_end(self) -> bool:
        """True if the engine knew that the sampler has no further batch."""

    def snapshots(self) -> list[bytes | None]:
        """Returns the last snapshot of each shard of an iterable Python dataset: a pickle, or ``None`` if the shard has
        none."""

@final
class BatchIterator:
    """The batches of an epoch. Waiting for one releases the interpreter's lock and notices Ctrl-C."""

    def __iter__(self) -> BatchIterator: ...
    def __next__(self) -> Any: ...
    @property
    def epoch(self) -> int:
        """Number of the epoch."""

    def state(self) -> EngineState | None:
        """Returns the state; ``None`` once the iterator is closed."""

    def worker_pids(self) -> list[int]:
        """Returns the process ids of the workers."""

    def report(self) -> str | None:
        """Returns the report of the epoch so far."""

    def digest(self) -> tuple[str, int] | None:
        """Returns the digest of the samples of the epoch so far, as 32 hexadecimal digits, and the number of these samples.

        ``None`` without the option ``digest``, and once the iterator is closed.
        """

    def first_unreturned(self) -> int | None:
        """Returns the number of the first batch that was not returned; ``None`` if there is none, or if it is not known."""

    def draw_first(self) -> None:
        """Takes the first batch from the sampler now. Without workers, the first ``next`` does it otherwise."""

    def has_put_back(self) -> bool:
        """Returns whether the next call of ``next`` returns what the last one could not return, and loads nothing."""

    def note_loaded_state(self) -> None:
        """Makes the next call of ``next`` warn that the loader has loaded a state, which this iterator does not know."""

    def put_back(self, batch: Any) -> None:
        """Takes the batch back that was returned last: the next call of ``next`` returns it again."""

    def last_batch(self) -> dict[str, Any] | None:
        """Returns what is known of the batch that was returned last."""

    def close(self) -> None:
        """Ends the workers, or keeps persistent ones for the next epoch."""

    def close_at_exit(self) -> None:
        """Closes the iterator at the end of the interpreter, unless another thread uses it for longer than a second."""

@final
class Template:
    """A process that forks workers."""

    def __new__(cls) -> Self: ...
    def next_request(self) -> bool: ...
    def started(self, pid: int) -> None: ...
    def not_started(self, errno: int) -> None: ...
    def become_spare(self) -> bool: ...
    def become_worker(self) -> None: ...

@final
class ForkedTemplate:
    """A template that main forks from itself."""

    def __new__(cls) -> Self: ...
    def fork(self) -> bool: ...
    def in_child(self, has_stdin: bool, has_stderr: bool) -> Template: ...

def serve() -> int:
    """Serves as a worker until main does not need it any more. Returns the exit code for the process."""

def launchers_variables() -> list[str]:
    """Returns the names of the environment variables by which a launcher has told this process its rank. A template
    does not inherit them."""

def open_closed_streams() -> None:
    """Opens ``/dev/null`` in the place of each standard stream that is closed."""

def printable(text: str) -> str:
    """Returns the text with the characters escaped that a terminal would obey, as in the warnings that Rust prints."""

def start_template(program: str, arguments: list[str]) -> None:
    """Starts the template process unless it runs, and does not wait until it has loaded its libraries."""
