"""A pickler for datasets, which shares objects that `pickle` refuses or copies. Tensors keep a storage that several of
them share. The workers share with main objects of ``multiprocessing`` and tensors in shared memory, and they map the
files of mapped arrays."""

import bisect
import contextlib
import copyreg
import io
import mmap
import os
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator
from multiprocessing import context, reduction
from typing import Any, NamedTuple

#: Modules whose objects `multiprocessing` pickles with functions of its own while it starts a process.
_SHARED = ("multiprocessing.connection", "multiprocessing.heap", "multiprocessing.sharedctypes")
#: Number of bytes at each end of a mapping that are compared where the identities of files are not enough.
_COMPARED_BYTES = 4096


def dumps(
    value: Any, keeps: Callable[[pickle.PickleBuffer], bool], base: type = pickle.Pickler
) -> tuple[bytes, list[mmap.mmap], list["Duplicate"]]:
    """Returns the pickle of a value, made by a pickler of the class ``base``; the mappings of main whose files workers
    map; and duplicates of the descriptors of shared objects, which the pickle refers to by their positions. Main must
    keep the mappings as long as workers may start. ``keeps`` gets the bytes of each array, and returns True if they
    become a part of the pickle."""
    file = io.BytesIO()
    pickler = _pickler(base)(file, protocol=5, buffer_callback=keeps)
    with _starting() as start:
        pickler.dump(value)
    return file.getvalue(), pickler.mappings.mappings, start.descriptors


def _pickler(base: type) -> type:
    registered = reduction.ForkingPickler._extra_reducers.items()
    shared = {kind: reduce for kind, reduce in registered if reduce.__module__ in _SHARED}
    others = copyreg.dispatch_table if base is pickle.Pickler else base.dispatch_table

    class Pickler(base):
        dispatch_table = ChainMap({io.TextIOWrapper: _refuse_file}, shared, others)

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.storages: dict[tuple[int, int], _Storage] = {}
            self.mappings = _Mappings()

        def reducer_override(self, value: Any) -> Any:
            reduced = NotImplemented
            if sys.modules.get("torch") is not None:
                reduced = _reduce(value, self.storages)
            if reduced is NotImplemented and sys.modules.get("numpy") is not None:
                reduced = _reduce_mapped(value, self.mappings)
            if reduced is not NotImplemented:
                return reduced
            return super().reducer_override(value) if hasattr(base, "reducer_override") else NotImplemented

    return Pickler


def _refuse_file(file: io.TextIOWrapper) -> Any:
    """Refuses an open text file as `pickle` does. cloudpickle would copy its whole content to the workers."""
    for name in ("stdout", "stderr"):
        if file is getattr(sys, name):
            return getattr, (sys, name)
    raise TypeError(f"cannot pickle {file!r}")


def _reduce(value: Any, storages: dict[tuple[int, int], "_Storage"]) -> Any:
    import torch

    if type(value) is torch.UntypedStorage and value.is_shared():
        from torch.multiprocessing.reductions import reduce_storage

        return reduce_storage(value)
    if type(value) is not torch.Tensor:
        return NotImplemented
    from ._tensors import is_plain

    if not is_plain(value):
        return NotImplemented
    storage = value.untyped_storage()
    layout = (value.dtype, tuple(value.shape), value.stride())
    if storage.nbytes() == 0:
        return _empty, layout
    sent = storages.setdefault(
        (storage.data_ptr(), storage.nbytes()), storage if value.is_shared() else _Storage(storage)
    )
    return _view, (sent, value.storage_offset(), *layout)


class _Storage:
    """The storage of one or more tensors. A pickle has its bytes once."""

    def __init__(self, storage: Any) -> None:
        self.storage = storage

    def __reduce__(self) -> Any:
        import torch

        bytes_of = torch.empty(0, dtype=torch.uint8).set_(self.storage)
        return _read, (pickle.PickleBuffer(bytes_of.numpy()),)


def _empty(dtype: Any, shape: tuple[int, ...], stride: tuple[int, ...]) -> Any:
    import torch

    return torch.empty_strided(shape, stride, dtype=dtype)


def _read(content: Any) -> Any:
    import torch

    return torch.frombuffer(content, dtype=torch.uint8).untyped_storage()


def _view(storage: Any, offset: int, dtype: Any, shape: tuple[int, ...], stride: tuple[int, ...]) -> Any:
    import torch

    return torch.empty(0, dtype=dtype).set_(storage, offset, shape, stride)


class _FileId(NamedTuple):
    """The identity of a file, whatever its name is. A file that replaces it has another one as long as it exists."""

    device: int
    inode: int

    @classmethod
    def of(cls, descriptor: int) -> "_FileId":
        status = os.fstat(descriptor)
        return cls(status.st_dev, status.st_ino)


class _Mappings:
    """The mapped files that a pickler has met."""

    def __init__(self) -> None:
        #: The file of each mapping, by the ``id`` of the mapping; ``None`` if a worker cannot map it.
        self._files: dict[int, _FileId | None] = {}
        #: The mappings themselves. The kernel gives the inode of a file to another file only after no process maps the
        #: first.
        self.mappings: list[mmap.mmap] = []
        #: The start of each mapped range of main's memory, and its end and file. Read once, because main may have
        #: thousands of mappings.
        self._ranges: list[tuple[int, int, _FileId]] | None = None

    def file_of(self, mapped: Any) -> _FileId | None:
        """Returns the identity of the file of an array. Returns ``None`` if the file that has its name now is another
        one or is shorter, because the program has replaced, removed or truncated the file of the array."""
        mapping = mapped.base
        if id(mapping) not in self._files:
            self.mappings.append(mapping)
            try:
                with open(mapped.filename, "rb") as file:
                    self._files[id(mapping)] = self._identity(mapped, file)
            except OSError:
                self._files[id(mapping)] = None
        return self._files[id(mapping)]

    def _identity(self, mapped: Any, file: Any) -> _FileId | None:
        if os.path.getsize(file.fileno()) < mapped.offset + mapped.nbytes:
            return None
        identity = _FileId.of(file.fileno())
        if self._ranges is None:
            self._ranges = _mapped_ranges()
        if _file_at(self._ranges, mapped.ctypes.data) == identity:
            return identity
        return identity if _is_same_file(mapped, file) else None


def _is_same_file(mapped: Any, file: Any) -> bool:
    """True if an array is a mapping of an open file, on file systems whose mappings have other identities than their
    files: overlays, as containers have them, and btrfs."""
    import numpy

    again = numpy.memmap(file, numpy.uint8, "r", mapped.offset, (mapped.nbytes,))
    ranges = _mapped_ranges()
    identities = [_file_at(ranges, array.ctypes.data) for array in (mapped, again)]
    if identities[0] is None or identities[0] != identities[1]:
        return False
    # Snapshots of btrfs have equal identities.
    content = numpy.frombuffer(mapped.base, numpy.uint8, mapped.nbytes, mapped.offset % mmap.ALLOCATIONGRANULARITY)
    ends = (slice(_COMPARED_BYTES), slice(-_COMPARED_BYTES, None))
    return all(numpy.array_equal(content[end], again[end]) for end in ends)


def _mapped_ranges() -> list[tuple[int, int, _FileId]]:
    """Returns the ranges of main's memory that are mapped from files, in order, as the kernel lists them."""
    ranges = []
    with open("/proc/self/maps", "rb") as lines:
        for line in lines:
            part, _, _, device, inode, *_ = line.split(maxsplit=5)
            if int(inode) != 0:
                start, end = (int(address, 16) for address in part.split(b"-"))
                major, minor = (int(number, 16) for number in device.split(b":"))
                ranges.append((start, end, _FileId(os.makedev(major, minor), int(inode))))
    return ranges


def _file_at(ranges: list[tuple[int, int, _FileId]], address: int) -> _FileId | None:
    place = bisect.bisect_right(ranges, address, key=lambda mapped: mapped[0]) - 1
    return ranges[place][2] if place >= 0 and address < ranges[place][1] else None


def _reduce_mapped(value: Any, mappings: _Mappings) -> Any:
    """Makes a worker map the file that an array of NumPy is a view of. Without this, the pickle would contain the
    content of the file."""
    import numpy

    if type(value) not in (numpy.ndarray, numpy.memmap):
        return NotImplemented
    mapped = value
    while isinstance(mapped, numpy.ndarray) and not isinstance(mapped.base, mmap.mmap):
        mapped = mapped.base
    # Changes in a mapping with mode `c` are not in the file.
    if not isinstance(mapped, numpy.memmap) or mapped.filename is None or mapped.mode == "c":
        return NotImplemented
    path = os.path.abspath(mapped.filename)
    # In a worker, `/dev/fd/5` and `/proc/self/fd/5` are other files.
    if path.startswith(("/proc/", "/dev/fd/")):
        return NotImplemented
    identity = mappings.file_of(mapped)
    if identity is None:
        return NotImplemented
    mode = "r" if mapped.mode == "r" else "r+"
    layout = (value.ctypes.data - mapped.ctypes.data, value.dtype, value.shape, value.strides)
    return _map, (type(value), path, identity, mode, mapped.offset, mapped.nbytes, *layout)


def _map(
    kind: type,
    path: str,
    identity: _FileId,
    mode: str,
    offset: int,
    size: int,
    start: int,
    dtype: Any,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> Any:
    import numpy

    with open(path, "rb" if mode == "r" else "r+b") as file:
        is_same = _FileId.of(file.fileno()) == identity
        # NumPy would extend a file that it may write to.
        if not is_same or os.path.getsize(file.fileno()) < offset + size:
            raise RuntimeError(
                f"the file {path} was {'truncated' if is_same else 'replaced'} after main had sent the dataset to the"
                " workers, so a worker cannot map it: write a new version to another name, and make the dataset again"
            )
        content = numpy.memmap(file, numpy.uint8, mode, offset, (size,))
    return numpy.ndarray(shape, dtype, content, start, strides).view(kind)


@contextlib.contextmanager
def _starting() -> Iterator["_Start"]:
    """Tells `multiprocessing` that main is starting a process, because it pickles locks, queues and shared values only
    then."""
    before, start = context.get_spawning_popen(), _Start()
    context.set_spawning_popen(start)
    try:
        yield start
    finally:
        context.set_spawning_popen(before)


class _Start:
    """The start of a process, as `multiprocessing.reduction.DupFd` sees it."""

    def __init__(self) -> None:
        self.descriptors: list[Duplicate] = []

    def duplicate_for_child(self, descriptor: int) -> int:
        return descriptor

    def DupFd(self, descriptor: int) -> "_Descriptor":
        # The shared object may be a temporary one, which closes its descriptor before the pickle is sent.
        self.descriptors.append(Duplicate(descriptor))
        return _Descriptor(len(self.descriptors) - 1)


class Duplicate:
    """A duplicate of a descriptor, which is closed with this object."""

    def __init__(self, descriptor: int) -> None:
        self._number = os.dup(descriptor)

    def fileno(self) -> int:
        return self._number

    # When the interpreter ends, the module `os` may be gone.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if (number := getattr(self, "_number", None)) is not None:
            close(number)


class _Descriptor:
    """A file descriptor of main, in a pickle."""

    def __init__(self, position: int) -> None:
        self._position = position

    def detach(self) -> int:
        return os.dup(_received[self._position])


#: The descriptors that came with the pickle that this worker reads.
_received: list[int] = []


@contextlib.contextmanager
def received(descriptors: list[int]) -> Iterator[None]:
    """Gives the descriptors that came with a pickle to the shared objects in it, and closes them at the end."""
    _received[:] = descriptors
    try:
        yield
    finally:
        for descriptor in _received:
            os.close(descriptor)
        _received.clear()
