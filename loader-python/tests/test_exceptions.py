"""Exceptions of the user's code: their class, their text and the worker's traceback reach main at the place of their
batch."""

import gc
import threading
import time
import warnings
import weakref

import pytest
import torch
import torch.utils.data
from torch_datasets import Items, Rows, Stream
from torch.utils.data import IterableDataset

from loader import DataLoader, _errors

WORKERS = pytest.mark.parametrize("num_workers", [0, 1])


class Custom(Exception):
    """An exception of the user's own."""


class ManyArguments(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


class ByName(Exception):
    message = "a message"

    def __init__(self, *, message):
        super().__init__(message)


class Failing(Rows):
    """Raises for odd indices."""

    def __init__(self, length, kind, **arguments):
        super().__init__(length)
        self.kind, self.arguments = kind, arguments

    def __getitem__(self, index):
        if index % 2:
            failing_line_of_the_dataset(self.kind(**self.arguments) if self.arguments else self.kind)
        return super().__getitem__(index)


def failing_line_of_the_dataset(exception):
    raise exception


class FailingIter(IterableDataset):
    def __iter__(self):
        raise Custom("cannot begin")


class FailingLater(IterableDataset):
    def __iter__(self):
        yield 1
        yield 2
        raise Custom("cannot go on")


def outcomes(loader):
    """Returns what each `next` gives: the first number of the batch, or the exception."""
    iterator, found = iter(loader), []
    while True:
        try:
            found.append(next(iterator)[0, 0].item())
        except StopIteration:
            return found
        except Exception as error:
            found.append(error)


@WORKERS
@pytest.mark.parametrize(
    "exception", [Custom("a reason"), ValueError("a\nb"), NotImplementedError(), OSError(2, "gone")], ids=repr
)
def test_an_exception_keeps_its_class_and_its_place(num_workers, exception):
    found = outcomes(DataLoader(Failing(4, exception), num_workers=num_workers))
    assert [item if isinstance(item, int) else type(item) for item in found] == [0, type(exception), 2, type(exception)]
    for line in str(exception).splitlines():
        assert line in str(found[1])


def test_the_text_of_a_worker_s_exception_is_pytorch_s():
    def text(kind):
        return str(outcomes(kind(Failing(2, Custom("a reason")), num_workers=1))[1])

    ours, theirs = text(DataLoader).splitlines(), text(torch.utils.data.DataLoader).splitlines()
    assert (
        ours[:2]
        == theirs[:2]
        == ["Caught Custom in DataLoader worker process 0.", "Original Traceback (most recent call last):"]
    )
    assert ours[-1] == theirs[-1] == "test_exceptions.Custom: a reason"
    assert any("failing_line_of_the_dataset" in line for line in ours)
    assert any("failing_line_of_the_dataset" in line for line in theirs)


def test_without_workers_main_raises_the_dataset_s_own_exception():
    exception = Custom("a reason")
    found = outcomes(DataLoader(Failing(2, exception)))
    assert found[1] is exception
    assert "failing_line_of_the_dataset" in [entry.name for entry in traceback_of(found[1])]


def traceback_of(exception):
    import traceback

    return traceback.extract_tb(exception.__traceback__)


@pytest.mark.parametrize(
    "dataset, name, kind",
    [
        (Failing(2, KeyError("a key")), "KeyError", KeyError),
        (Failing(2, ManyArguments, first=1, second=2), "ManyArguments", RuntimeError),
        (Failing(2, ByName, message="text"), "ByName", ByName),
    ],
    ids=["KeyError", "ManyArguments", "ByName"],
)
def test_classes_that_take_other_arguments_are_raised_as_by_pytorch(dataset, name, kind):
    (_, error) = outcomes(DataLoader(dataset, num_workers=1))
    assert type(error) is kind
    assert f"Caught {name} in DataLoader worker process 0.\nOriginal Traceback" in str(error)


class Local(Rows):
    """Raises an exception whose class main cannot find."""

    def __getitem__(self, index):
        class Unknown(Exception):
            pass

        raise Unknown("nobody knows")


def test_a_class_that_main_cannot_find_becomes_a_runtime_error():
    (error,) = outcomes(DataLoader(Local(1), num_workers=1))
    assert type(error) is RuntimeError
    assert "Caught Unknown" in str(error) or "Unknown: nobody knows" in str(error)


@WORKERS
@pytest.mark.parametrize("batch_size", [2, None])
def test_an_exception_of_iter_is_raised(num_workers, batch_size):
    with pytest.raises(Custom, match="cannot begin"):
        list(DataLoader(FailingIter(), num_workers=num_workers, batch_size=batch_size))


@WORKERS
def test_an_exception_of_a_stream_comes_after_the_samples_before_it(num_workers):
    iterator = iter(DataLoader(FailingLater(), num_workers=num_workers))
    assert [next(iterator).item(), next(iterator).item()] == [1, 2]
    with pytest.raises(Custom, match="cannot go on"):
        next(iterator)


def fail_to_collate(samples):
    raise Custom(f"cannot collate {len(samples)}")


@WORKERS
@pytest.mark.parametrize("dataset", [Rows(4), Stream((4,))], ids=["map-style", "iterable"])
def test_exceptions_of_collate_fn(num_workers, dataset):
    with pytest.raises(Custom, match="cannot collate 2"):
        list(DataLoader(dataset, num_workers=num_workers, batch_size=2, collate_fn=fail_to_collate))


def fail_to_begin(worker):
    raise Custom(f"worker {worker} cannot begin")


@pytest.mark.parametrize("dataset", [Rows(4), Stream((4,))], ids=["map-style", "iterable"])
def test_exceptions_of_worker_init_fn(dataset):
    with pytest.raises(Custom, match="worker 0 cannot begin"):
        list(DataLoader(dataset, num_workers=1, worker_init_fn=fail_to_begin))


class Unpicklable:
    def __reduce__(self):
        raise Custom("this stays here")


def unpicklable(_):
    return Unpicklable()


def test_a_batch_that_cannot_be_pickled_is_an_exception_at_its_place():
    with pytest.raises(Custom, match="this stays here"):
        list(DataLoader(Rows(2), num_workers=1, collate_fn=unpicklable))
    with pytest.raises(TypeError, match="generator"):
        list(DataLoader(Rows(2), num_workers=1, collate_fn=iterate))


def iterate(samples):
    return (sample for sample in samples)


class Unreadable:
    """Can be pickled, but not be read."""

    def __reduce__(self):
        return fail_to_begin, ("0, again",)


def unreadable(_):
    return Unreadable()


def test_a_batch_that_main_cannot_read_is_an_exception_in_main():
    iterator = iter(DataLoader(Rows(2), num_workers=1, collate_fn=unreadable))
    for _ in range(2):
        with pytest.raises(Custom, match="worker 0, again cannot begin"):
            next(iterator)


def test_batches_after_an_exception_are_complete_with_many_workers():
    found = outcomes(DataLoader(Failing(41, Custom("x")), batch_size=1, num_workers=2, shuffle=False))
    assert [item for item in found if isinstance(item, int)] == list(range(0, 41, 2))
    assert sum(isinstance(item, Custom) for item in found) == 20


def test_a_stop_iteration_of_a_dataset_is_no_silent_end():
    """PyTorch ends the loop as if the epoch were complete."""
    with pytest.raises((RuntimeError, StopIteration)) as error:
        iterator = iter(DataLoader(Failing(2, StopIteration("early")), num_workers=1))
        next(iterator), next(iterator)
    assert error.type is RuntimeError or "early" in str(error.value)


class StopsStream(IterableDataset):
    def __iter__(self):
        yield 1


def stop(samples):
    raise StopIteration("of collate_fn")


@WORKERS
@pytest.mark.parametrize(
    "dataset, collate_fn",
    [(Failing(2, StopIteration("of the dataset")), None), (Rows(2), stop), (StopsStream(), stop)],
    ids=["dataset", "collate_fn", "collate_fn of a stream"],
)
def test_a_stop_iteration_of_user_code_is_a_runtime_error(num_workers, dataset, collate_fn):
    with pytest.raises(RuntimeError) as error:
        list(DataLoader(dataset, collate_fn=collate_fn, num_workers=num_workers))
    if num_workers == 0:
        assert type(error.value.__cause__) is StopIteration
        assert "raise another exception" in str(error.value)


class Leaves(Rows):
    def __getitem__(self, index):
        raise SystemExit(3)


def test_a_system_exit_of_a_dataset_does_not_end_main():
    with pytest.raises(RuntimeError, match="Caught SystemExit in DataLoader worker process 0"):
        list(DataLoader(Leaves(2), num_workers=1))


@WORKERS
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("batch_size", [1, 2], ids=["map-style", "with __getitems__"])
def test_keyboard_interrupt_and_system_exit_are_no_bad_samples(num_workers, kind, batch_size):
    dataset = (Failing if batch_size == 1 else FailingMany)(4, kind("a reason"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeError if num_workers else kind, match="a reason"):
            list(DataLoader(dataset, batch_size=batch_size, num_workers=num_workers, on_bad_sample="skip"))


class FailingMany(Failing):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Interrupted(IterableDataset):
    def __iter__(self):
        yield 1
        raise KeyboardInterrupt


def test_an_interrupted_stream_is_no_bad_sample():
    iterator = iter(DataLoader(Interrupted(), on_bad_sample="skip"))
    next(iterator)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)


@WORKERS
@pytest.mark.parametrize(
    "dataset",
    [Failing(3, ValueError("a\n\x1b[31mreason\u202e")), FailingMany(3, ValueError("a\n\x1b[31mreason\u202e"))],
    ids=lambda each: type(each).__name__,
)
def test_the_warning_of_a_skipped_sample_is_one_line_and_escaped(num_workers, dataset):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [batch[0, 0].item() for batch in DataLoader(dataset, num_workers=num_workers, on_bad_sample="skip")] == [
            0,
            2,
        ]
    expected = r"sample 1 of batch 1 is skipped: ValueError: a \u{1b}[31mreason\u{202e}"
    assert [str(each.message) for each in caught] == [expected]


@WORKERS
def test_the_warning_of_a_skipped_item_is_one_line(num_workers):
    with pytest.warns(
        RuntimeWarning, match=r"^sample 2 of shard 0, batch \d is skipped: test_exceptions.Custom: cannot go on$"
    ):
        assert len(list(DataLoader(FailingLater(), num_workers=num_workers, on_bad_sample="skip"))) == 2


@WORKERS
def test_an_exception_with_a_very_long_text_arrives(num_workers):
    (error,) = [
        each
        for each in outcomes(DataLoader(Failing(2, Custom("x" * 1_000_000 + " end")), num_workers=num_workers))
        if not isinstance(each, int)
    ]
    assert type(error) is Custom
    assert str(error).rstrip().endswith("end")


def test_chained_exceptions_keep_their_causes():
    (error,) = [each for each in outcomes(DataLoader(Chained([0]), num_workers=1)) if not isinstance(each, int)]
    assert "ZeroDivisionError" in str(error)
    assert "direct cause" in str(error)


class Chained(Items):
    def __getitem__(self, index):
        try:
            return 1 / 0
        except ZeroDivisionError as error:
            raise Custom("because") from error


class Unhashed:
    """A sample whose pickling raises an exception."""

    def __init__(self, exception):
        self.exception = exception

    def __reduce__(self):
        raise self.exception


class OfUnhashed(Rows):
    def __init__(self, exception):
        super().__init__(3)
        self.exception = exception

    def __getitem__(self, index):
        if index == 0:
            raise ValueError("the first sample")
        return Unhashed(self.exception) if index == 1 else index


def test_a_sample_that_cannot_be_hashed_raises_its_own_error(capfd):
    loader = DataLoader(OfUnhashed(TypeError("no pickle")), digest=True, on_bad_sample="skip", collate_fn=list)
    iterator = iter(loader)
    with pytest.raises(RuntimeError, match="no pickle"):
        next(iterator)
    with pytest.warns(RuntimeWarning, match="the first sample"):
        assert list(iterator) == [[2]]
    assert "panicked" not in capfd.readouterr().err


def test_ctrl_c_while_a_sample_is_hashed_reaches_the_program():
    iterator = iter(DataLoader(OfUnhashed(KeyboardInterrupt()), digest=True, sampler=[2, 1, 2], collate_fn=list))
    assert next(iterator) == [2]
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert next(iterator) == [2]


class RaisesOnce(Rows):
    def __getitem__(self, index):
        if index == 3:
            raise Custom("the third")
        return super().__getitem__(index)


def test_ctrl_c_while_an_exception_is_described_is_no_bad_sample(monkeypatch):
    def describe(_exception):
        raise KeyboardInterrupt("pressed")

    monkeypatch.setattr(_errors, "describe", describe)
    with pytest.raises(KeyboardInterrupt, match="pressed"):
        list(DataLoader(RaisesOnce(8), on_bad_sample="skip"))


class InterruptsMain(Exception):
    """Main is interrupted when it makes the exception again."""

    def __init__(self, text):
        if text != "in the worker":
            raise KeyboardInterrupt("pressed")
        super().__init__(text)


class RaisesInterruptsMain(Rows):
    def __getitem__(self, index):
        raise InterruptsMain("in the worker")


def test_ctrl_c_while_main_makes_an_exception_again_reaches_the_program():
    with pytest.raises(KeyboardInterrupt, match="pressed"):
        list(DataLoader(RaisesInterruptsMain(2), num_workers=1))


class Refuses(Rows):
    """Refuses sample 0 with an exception that `kept` refers to weakly."""

    kept = None

    def __getitem__(self, index):
        if index == 0:
            error = Custom("an old one")
            type(self).kept = weakref.ref(error)
            raise error
        return super().__getitem__(index)


@pytest.mark.filterwarnings("ignore:.*sample:RuntimeWarning")
def test_the_exception_of_a_skipped_sample_is_released_after_the_batch():
    batches = iter(DataLoader(Refuses(4), batch_size=2, on_bad_sample="skip"))
    assert len(next(batches)) == 1
    gc.collect()
    assert Refuses.kept() is None


class FromThread(Items):
    def __getitem__(self, index):
        raise ValueError(f"sample {index}")


def test_two_threads_get_the_exceptions_of_their_own_batches():
    batches = iter(DataLoader(FromThread(list(range(2000)))))
    found = []

    def read():
        while True:
            try:
                next(batches)
            except StopIteration:
                return
            except ValueError as error:
                found.append(str(error))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == sorted(f"sample {index}" for index in range(2000))
