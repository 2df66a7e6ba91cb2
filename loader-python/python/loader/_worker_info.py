"""What a dataset can ask about its worker: ``get_worker_info``."""

import dataclasses
import importlib.util
import sys
from typing import Any

#: True in a worker process.
is_worker = False
#: True in a template that is a fork of main, and in its workers.
is_fork = False

_info: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Information about the worker process in which the dataset is, as PyTorch gives it.

    Attributes:
        id: Number of the worker, from 0.
        num_workers: Number of workers.
        seed: Seed of this worker: the base seed plus ``id``.
        dataset: The copy of the dataset in this worker.
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any


def get_worker_info() -> Any:
    """Returns the :class:`WorkerInfo` of this worker process, and ``None`` in any other process.

    ``torch.utils.data.get_worker_info()`` returns the same information.
    """
    return _info


def any_worker_info() -> Any:
    """Returns the information of this worker process, also of a worker of PyTorch's loader; otherwise ``None``."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return _info if worker is None else worker.get_worker_info()


def set_worker_info(info: WorkerInfo) -> None:
    """Sets the information of this process, for PyTorch too: at once if PyTorch is imported, otherwise when it is
    imported."""
    global _info
    _info = info
    if "torch.utils.data._utils.worker" in sys.modules:
        _tell_torch()
    else:
        sys.meta_path.insert(0, _TorchFinder())


def _tell_torch() -> None:
    worker = sys.modules["torch.utils.data._utils.worker"]
    worker._worker_info = worker.WorkerInfo(
        id=_info.id, num_workers=_info.num_workers, seed=_info.seed, dataset=_info.dataset
    )


class _TorchFinder:
    """Tells PyTorch about the worker as soon as PyTorch's module is imported, which a dataset may do late."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "torch.utils.data._utils.worker":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def then_tell(module: Any) -> None:
                execute(module)
                _tell_torch()

            spec.loader.exec_module = then_tell  # type: ignore[method-assign]
        return spec
