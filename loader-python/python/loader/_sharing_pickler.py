"""A pickler for datasets, which shares objects that `pickle` refuses or copies. Tensors keep a storage that several of
them share. The workers share with main objects of ``multiprocessing`` and tensors in shared memory, and they map the
files of mapped arrays."""

import contextlib
import copyreg
import fcntl
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


def dumps(value: Any, keeps: Callable[[pickle.PickleBuffer], bool], base: type = pickle.Pickler) -> bytes:
    """Returns the pickle of a value, made by a pickler of the class ``base``. Workers can use shared objects in it as
    long as these exist in main. ``keeps`` gets the bytes of each array, and returns True if they become a part of the
    pickle."""
    file = io.BytesIO()
    with _starting():
        _pickler(base)(file, protocol=5, buffer_callback=keeps).dump(value)
    return file.getvalue()


def _pickler(base: type) -> type:
    registered = reduction.ForkingPickler._extra_reducers.items()
    shared = {kind: reduce for kind, reduce in registered if reduce.__module__ in _SHARED}
    others = copyreg.dispatch_table if base is pickle.Pickler else base.dispatch_table

    class Pickler(base):
        dispatch_table = ChainMap(shared, others)

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.storages: dict[tuple[int, int], _Storage] = {}
            self.files: dict[int, tuple[mmap.mmap, _FileNumber | None]] = {}

        def reducer_override(self, value: Any) -> Any:
            reduced = NotImplemented
            if sys.modules.get("torch") is not None:
                reduced = _reduce(value, self.storages)
            if reduced is NotImplemented and sys.modules.get("numpy") is not None:
                reduced = _reduce_mapped(value, self.files)
            if reduced is not NotImplemented:
                return reduced
            return super().reducer_override(value) if hasattr(base, "reducer_override") else NotImplemented

    return Pickler


def _reduce(value: Any, storages: dict[tuple[int, int], "_Storage"]) -> Any:
    import torch

    if type(value) is torch.UntypedStorage and value.is_shared():
        from torch.multiprocessing.reductions import reduce_storage

        return reduce_storage(value)
    if type(value) is not torch.Tensor:
        return NotImplemented
    from . import _collate_torch

    if not _collate_torch.is_plain(value):
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


class _FileNumber(NamedTuple):
    """Identifies a file, whatever its name is. A file that replaces it has another number."""

    device: int
    inode: int

    @classmethod
    def of(cls, descriptor: int) -> "_FileNumber":
        status = os.fstat(descriptor)
        return cls(status.st_dev, status.st_ino)


def _reduce_mapped(value: Any, files: dict[int, tuple[mmap.mmap, _FileNumber | None]]) -> Any:
    """Makes a worker map the file that an array of NumPy is a view of. Without this, the pickle would contain the
    content of the file. ``files`` are the results of :func:`_mapped_file`, by the ``id`` of the mapping."""
    import numpy

    if type(value) not in (numpy.ndarray, numpy.memmap):
        return NotImplemented
    mapped = value
    while isinstance(mapped, numpy.ndarray) and not isinstance(mapped.base, mmap.mmap):
        mapped = mapped.base
    # Changes in a mapping with mode `c` are not in the file.
    if not isinstance(mapped, numpy.memmap) or mapped.filename is None or mapped.mode == "c":
        return NotImplemented
    mapping = mapped.base
    if id(mapping) not in files:
        # The mapping itself is kept, because the `id` of an object that is gone may be used again.
        files[id(mapping)] = mapping, _mapped_file(mapped)
    _, file = files[id(mapping)]
    if file is None:
        return NotImplemented
    mode = "r" if mapped.mode == "r" else "r+"
    layout = (value.ctypes.data - mapped.ctypes.data, value.dtype, value.shape, value.strides)
    return _map, (type(value), os.path.abspath(mapped.filename), file, mode, mapped.offset, mapped.nbytes, *layout)


def _mapped_file(mapped: Any) -> _FileNumber | None:
    """Returns the number of the file of an array. Returns ``None`` if the file that has its name now is another one or
    is shorter, because the program has replaced, removed or truncated the file of the array."""
    import numpy

    try:
        with open(mapped.filename, "rb") as file:
            if os.path.getsize(file.fileno()) < mapped.offset + mapped.nbytes:
                return None
            # Alternative considered: the device and the inode of `fstat`. For a file of an overlay, as containers have
            # them, the kernel lists a mapping with other numbers.
            again = numpy.memmap(file, numpy.uint8, "r", shape=(1,))
            kinds = _files_at(mapped.ctypes.data, again.ctypes.data)
            return _FileNumber.of(file.fileno()) if len(kinds) == 1 else None
    except (OSError, ValueError):
        return None


def _files_at(*addresses: int) -> set[tuple[str, str]]:
    """Returns the devices and inodes of the files that are mapped at the addresses, as the kernel lists them."""
    found = set()
    with open("/proc/self/maps") as lines:
        for line in lines:
            part, _, _, device, inode, *_ = line.split(maxsplit=5)
            start, end = (int(address, 16) for address in part.split("-"))
            if any(start <= address < end for address in addresses):
                found.add((device, inode))
    return found


def _map(
    kind: type,
    path: str,
    number: _FileNumber,
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
        if _FileNumber.of(file.fileno()) != number:
            raise RuntimeError(
                f"the file {path} was replaced after main had sent the dataset to the workers, so a worker cannot map"
                " it: write a new version to another name, and make the dataset again"
            )
        content = numpy.memmap(file, numpy.uint8, mode, offset, (size,))
    return numpy.ndarray(shape, dtype, content, start, strides).view(kind)


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """Tells `multiprocessing` that main is starting a process, because it pickles locks, queues and shared values only
    then."""
    before = context.get_spawning_popen()
    context.set_spawning_popen(_Start())
    try:
        yield
    finally:
        context.set_spawning_popen(before)


class _Start:
    """The start of a process, as `multiprocessing.reduction.DupFd` sees it."""

    def duplicate_for_child(self, descriptor: int) -> int:
        return descriptor

    def DupFd(self, descriptor: int) -> "_Descriptor":
        return _Descriptor(descriptor)


class _Descriptor:
    """A file descriptor of main, which a worker opens again. Its owner in main keeps it open."""

    def __init__(self, descriptor: int) -> None:
        self._path = f"/proc/{os.getpid()}/fd/{descriptor}"
        self._mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE

    def detach(self) -> int:
        return os.open(self._path, self._mode | os.O_CLOEXEC)
