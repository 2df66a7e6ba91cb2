"""Python runs this file when it starts, because `upstream.py` puts its folder first on PYTHONPATH.

It replaces the DataLoader of PyTorch and of torchdata by the class that the environment variable UPSTREAM_LOADER
names, in this process and, since they inherit the environment, in all processes that this one starts.
"""

import importlib
import importlib.machinery
import inspect
import os
import sys

PLACES = {"torch.utils.data": "DataLoader", "torchdata.stateful_dataloader": "StatefulDataLoader"}
LOADER = os.environ.get("UPSTREAM_LOADER", "")
PACKAGE, _, NAME = LOADER.rpartition(".")


def accepting_all_arguments(loader: type) -> type:
    """Returns `loader`, or a subclass that ignores the arguments of torchdata's loader that `loader` does not have."""
    if "snapshot_every_n_steps" in inspect.signature(loader.__init__).parameters:
        return loader

    class Accepting(loader):
        def __init__(self, *args, snapshot_every_n_steps=1, **kwargs):
            super().__init__(*args, **kwargs)

        def __class_getitem__(cls, item):
            return loader[item]

    return Accepting


class Finder:
    """Finds modules as Python does, and replaces the loaders once the modules they are in have been executed."""

    def __init__(self) -> None:
        self.executed: set[str] = set()

    def find_spec(self, name, path=None, target=None):
        if name not in PLACES and name not in ("torch", PACKAGE):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                self.executed.add(name)
                self.replace()

            spec.loader.exec_module = exec_module
        return spec

    def replace(self) -> None:
        if "torch" not in self.executed:
            return  # It imports `torch.utils.data` when most of it is not there yet.
        if PACKAGE not in sys.modules:
            importlib.import_module(PACKAGE)  # Calls `replace` at its end.
        if PACKAGE not in self.executed:
            return
        loader = getattr(sys.modules[PACKAGE], NAME)
        for place in PLACES.keys() & self.executed:
            if place == PACKAGE:
                continue
            stateful = PLACES[place] == "StatefulDataLoader"
            setattr(sys.modules[place], PLACES[place], accepting_all_arguments(loader) if stateful else loader)


if LOADER:
    sys.meta_path.insert(0, Finder())
