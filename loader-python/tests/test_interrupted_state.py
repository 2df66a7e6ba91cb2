"""The state after an exception ended the iteration: a loader that continues from it loses no sample."""

import functools
import signal

import pytest
import torch
from torch_datasets import Rows

from loader import DataLoader
from loader._main import _base


class Interrupts(Rows):
    """Sample 7 raises what Ctrl-C raises."""

    def __getitem__(self, index):
        if index == 7 and self.raises:
            raise KeyboardInterrupt
        return super().__getitem__(index)


class Sampler:
    """Raises before number 13."""

    def __init__(self, raises):
        self.raises = raises

    def __len__(self):
        return 20

    def __iter__(self):
        for index in range(20):
            if index == 13 and self.raises is not None:
                raise self.raises
            yield index


class Unreadable:
    """A batch that main cannot unpickle if it begins with number 6."""

    def __init__(self, rows):
        self.rows = torch.stack(rows)

    def __reduce__(self):
        return (interrupt, ()) if int(self.rows[0][0]) == 6 else (torch.tensor, (self.rows.tolist(),))


def interrupt():
    raise KeyboardInterrupt


def numbers_until_the_exception(loader, exception):
    numbers = []
    with pytest.raises(exception):
        for batch in loader:
            numbers += batch[:, 0].tolist()
    return numbers


def numbers(loader):
    return [number for batch in loader for number in batch[:, 0].tolist()]


def test_ctrl_c_in_the_dataset():
    dataset = Interrupts(20)
    dataset.raises = True
    loader = DataLoader(dataset, batch_size=2)
    before = numbers_until_the_exception(loader, KeyboardInterrupt)
    dataset.raises = False
    loader.load_state_dict(loader.state_dict())
    assert before == list(range(6))
    assert numbers(loader) == list(range(6, 20))


@pytest.mark.parametrize("exception", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_exception_of_the_sampler(num_workers, exception):
    sampler = Sampler(exception)
    loader = DataLoader(Rows(20), batch_size=2, sampler=sampler, num_workers=num_workers)
    before = numbers_until_the_exception(loader, exception)
    sampler.raises = None
    loader.load_state_dict(loader.state_dict())
    assert before + numbers(loader) == list(range(20))


def test_ctrl_c_while_main_unpickles_a_batch():
    loader = DataLoader(Rows(20), batch_size=2, num_workers=2, collate_fn=Unreadable)
    before = numbers_until_the_exception(loader, KeyboardInterrupt)
    rest = DataLoader(Rows(20), batch_size=2, num_workers=2)
    rest.load_state_dict(loader.state_dict())
    assert before == list(range(6))
    assert numbers(rest) == list(range(6, 20))


class ReadOnce(Unreadable):
    """A batch whose unpickling in main is interrupted the first time, if it begins with number 6."""

    def __reduce__(self):
        function = interrupt_once if int(self.rows[0][0]) == 6 else torch.tensor
        return function, (self.rows.tolist(),)


INTERRUPTED = []


def interrupt_once(rows):
    if not INTERRUPTED:
        INTERRUPTED.append(True)
        raise KeyboardInterrupt
    return torch.tensor(rows)


def test_a_batch_whose_unpickling_ctrl_c_has_interrupted_comes_next():
    INTERRUPTED.clear()
    batches = iter(DataLoader(Rows(20), batch_size=2, num_workers=1, collate_fn=ReadOnce))
    assert numbers_until_the_exception(batches, KeyboardInterrupt) == list(range(6))
    assert numbers(batches) == list(range(6, 20))


class Handler:
    """Handlers of a signal, of every kind, that raise an ordinary exception."""

    def __call__(self, number, frame):
        raise TimeoutError

    def method(self, number, frame):
        raise TimeoutError

    def with_an_argument(self, _argument, number, frame):
        raise TimeoutError


def once(*args):
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    raise TimeoutError


HANDLERS = {
    "function that removes itself": once,
    "method": Handler().method,
    "object": Handler(),
    "partial": functools.partial(Handler().with_an_argument, 1),
}


class Signalled(Unreadable):
    """A batch during whose unpickling in main a signal comes the first time, if it begins with number 6."""

    def __reduce__(self):
        function = signal_once if int(self.rows[0][0]) == 6 else torch.tensor
        return function, (self.rows.tolist(),)


def signal_once(rows):
    if not INTERRUPTED:
        INTERRUPTED.append(True)
        signal.raise_signal(signal.SIGUSR1)
    return torch.tensor(rows)


@pytest.fixture(params=HANDLERS)
def handler(request):
    before = signal.signal(signal.SIGUSR1, HANDLERS[request.param])
    INTERRUPTED.clear()
    yield
    signal.signal(signal.SIGUSR1, before)


def test_a_batch_whose_unpickling_a_handler_has_ended_comes_next(handler):
    batches = iter(DataLoader(Rows(20), batch_size=2, num_workers=1, collate_fn=Signalled))
    assert numbers_until_the_exception(batches, TimeoutError) == list(range(6))
    assert numbers(batches) == list(range(6, 20))


def test_the_state_after_the_exception_of_a_handler_has_the_batch(handler):
    loader = DataLoader(Rows(20), batch_size=2, num_workers=1, collate_fn=Signalled)
    assert numbers_until_the_exception(loader, TimeoutError) == list(range(6))
    loader.load_state_dict(loader.state_dict())
    assert numbers(loader) == list(range(6, 20))


class NeverReadable(Unreadable):
    """A batch that main cannot unpickle, however often it tries, if it begins with number 6."""

    def __reduce__(self):
        return (fail, ()) if int(self.rows[0][0]) == 6 else (torch.tensor, (self.rows.tolist(),))


def fail():
    # As a program calls its handler itself.
    Handler()(signal.SIGUSR1, None)


def test_a_batch_that_cannot_be_unpickled_is_left_out(handler):
    batches = iter(DataLoader(Rows(20), batch_size=2, num_workers=1, collate_fn=NeverReadable))
    assert numbers_until_the_exception(batches, TimeoutError) == list(range(6))
    assert numbers(batches) == list(range(8, 20))


def test_a_batch_that_ctrl_c_has_kept_ends_with_its_iterator():
    INTERRUPTED.clear()
    loader = DataLoader(Rows(20), batch_size=2, num_workers=1, collate_fn=ReadOnce)
    batches = iter(loader)
    assert numbers_until_the_exception(batches, KeyboardInterrupt) == list(range(6))
    batches._shutdown_workers()
    assert list(batches) == []
    loader.load_state_dict(loader.state_dict())
    assert numbers(loader) == list(range(6, 20))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_interrupted_sampler_is_no_end_of_the_epoch(num_workers):
    sampler = Sampler(KeyboardInterrupt)
    loader = DataLoader(Rows(20), batch_size=2, sampler=sampler, num_workers=num_workers)
    batches = iter(loader)
    before = numbers_until_the_exception(batches, KeyboardInterrupt)
    # The batches that the sampler has given before come next, also the one that Ctrl-C has kept from the program.
    before += numbers_until_the_exception(batches, RuntimeError)
    assert before == list(range(12))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the sampler was interrupted"):
            next(batches)
    sampler.raises = None
    loader.load_state_dict(loader.state_dict())
    assert numbers(loader) == list(range(12, 20))


@pytest.mark.parametrize("exception", [KeyboardInterrupt, TimeoutError])
def test_a_signal_while_main_pins_a_batch(exception, handler, monkeypatch):
    def pin(batch, _device):
        if int(batch[0, 0]) == 6 and not INTERRUPTED:
            INTERRUPTED.append(True)
            signal.raise_signal(signal.SIGUSR1 if exception is TimeoutError else signal.SIGINT)
        return batch

    monkeypatch.setattr(_base, "pin_memory", pin)
    batches = iter(DataLoader(Rows(20), batch_size=2, num_workers=1))
    batches._pin_memory = True  # the argument has no effect without a GPU
    assert numbers_until_the_exception(batches, exception) == list(range(6))
    assert numbers(batches) == list(range(6, 20))


def test_the_order_is_drawn_from_the_generators_as_they_are_at_the_first_batch():
    torch.manual_seed(5)
    loader = DataLoader(Rows(20), batch_size=2, shuffle=True)
    batches = iter(loader)
    torch.rand(3)
    begun = loader.state_dict()
    rows = numbers(batches)[:2]
    within = numbers_after(loader)
    resumed = DataLoader(Rows(20), batch_size=2, shuffle=True)
    resumed.load_state_dict(begun)
    assert numbers(resumed)[:2] == rows
    resumed.load_state_dict(within[1])
    assert numbers(resumed) == within[2]


def numbers_after(loader):
    """Returns the first two rows of an epoch before which the program draws, the state after them, and the other
    rows."""
    batches = iter(loader)
    torch.rand(5)
    first = next(batches)[:, 0].tolist()
    return first, loader.state_dict(), numbers(batches)


class Counted(Rows):
    """A sample is its key and the number of samples that the dataset has loaded. The sample of the key `bad` raises
    `error`."""

    def __init__(self, bad=None, error=ValueError):
        super().__init__(12)
        self.bad, self.error, self.loaded = bad, error, 0

    def __getitem__(self, key):
        self.loaded += 1
        if key == self.bad:
            raise self.error("a bad sample")
        return key, self.loaded

    def state_dict(self):
        return {"loaded": self.loaded}

    def load_state_dict(self, state):
        self.loaded = state["loaded"]


class ShuffledTexts:
    """Draws an order of keys that are texts."""

    def __len__(self):
        return 12

    def __iter__(self):
        return iter([f"key {number}" for number in torch.randperm(12).tolist()])


@pytest.mark.parametrize("calls_again", [False, True])
@pytest.mark.parametrize("failed", [0, 2])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.filterwarnings("ignore:.*sample:RuntimeWarning")
def test_a_state_after_too_many_bad_samples_resumes_at_their_batch(num_workers, failed, calls_again):
    def make(bad, seed):
        torch.manual_seed(seed)
        return DataLoader(
            Counted(bad), 2, sampler=ShuffledTexts(), num_workers=num_workers, on_bad_sample="skip", max_bad_samples=0
        )

    whole = list(make(None, seed=1))
    loader = make(whole[failed][0][1], seed=1)
    batches = iter(loader)
    before = [next(batches) for _ in range(failed)]
    with pytest.raises(RuntimeError, match="max_bad_samples"):
        next(batches)
    if calls_again:
        assert next(batches, None) is None
    resumed = make(None, seed=2)
    resumed.load_state_dict(loader.state_dict())
    assert str(before + list(resumed)) == str(whole)


def test_ctrl_c_in_a_dataset_with_a_state():
    loader = DataLoader(Counted(7, KeyboardInterrupt), 2)
    before = []
    with pytest.raises(KeyboardInterrupt):
        before.extend(loader)
    resumed = DataLoader(Counted(), 2)
    resumed.load_state_dict(loader.state_dict())
    assert str(before + list(resumed)) == str(list(DataLoader(Counted(), 2)))


def test_ctrl_c_twice_while_main_pins_a_batch_of_a_dataset_with_a_state(monkeypatch):
    interrupts = []

    def pin(batch, _device):
        if int(batch[0][0]) == 6 and len(interrupts) < 2:
            interrupts.append(True)
            signal.raise_signal(signal.SIGINT)
        return batch

    monkeypatch.setattr(_base, "pin_memory", pin)
    loader = DataLoader(Counted(), 2)
    batches, before = iter(loader), []
    batches._pin_memory = True  # the argument has no effect without a GPU
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            before.extend(batches)
    resumed = DataLoader(Counted(), 2)
    resumed.load_state_dict(loader.state_dict())
    assert str(before + list(resumed)) == str(list(DataLoader(Counted(), 2)))


class NamedRows(Rows):
    """Its keys are texts."""

    def __getitem__(self, key):
        return key


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_state_before_the_first_batch_has_keys_that_are_texts(num_workers):
    def make():
        return DataLoader(NamedRows(12), 4, sampler=ShuffledTexts(), num_workers=num_workers)

    loader = make()
    for _ in range(2):
        batches = iter(loader)
        state = loader.state_dict()
        whole = list(batches)
        resumed = make()
        resumed.load_state_dict(state)
        assert list(resumed) == whole
