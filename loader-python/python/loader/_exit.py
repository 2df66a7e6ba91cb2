"""Closes the open iterators when the interpreter ends, while it can still run Python code."""

import atexit
import os
import weakref

from . import _native

_open: "weakref.WeakSet[_native.BatchIterator]" = weakref.WeakSet()


def close_at_exit(batches: _native.BatchIterator) -> None:
    """Closes the iterator at the end of the interpreter, if it is still open then."""
    _open.add(batches)


@atexit.register
def _close_all() -> None:
    for batches in list(_open):
        batches.close_at_exit()


# The iterators are main's. A forked child must not wait for a thread of main that uses one.
os.register_at_fork(after_in_child=_open.clear)
