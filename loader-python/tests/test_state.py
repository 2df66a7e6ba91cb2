"""`state_dict` and `load_state_dict`."""

import io
import itertools
import json
import os
import random
import signal
import threading
import warnings

import numpy
import pytest
import torch
import torch.distributed.checkpoint
from PIL import Image
from torch_datasets import Draws, Rows, Stream
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

from loader import DataLoader, ImageFolder, JsonLines, RustLoader, transforms
from loader._data import _epoch_log
from loader._main import _state

KINDS = {
    "in sequence": lambda **arguments: DataLoader(Rows(40), batch_size=4, **arguments),
    "shuffled by the global generator": lambda **arguments: DataLoader(
        Rows(40), batch_size=4, shuffle=True, **arguments
    ),
    "shuffled by a generator": lambda **arguments: DataLoader(
        Rows(40), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1), **arguments
    ),
    "a stream": lambda **arguments: DataLoader(Stream((20, 20)), batch_size=4, **arguments),
}


def numbers(batches):
    return [batch.flatten()[0].item() for batch in batches]


def saved(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_taken_after_break_has_the_rest_of_the_epoch(kind, num_workers):
    """The loop has dropped the iterator when the state is asked for."""
    torch.manual_seed(3)
    loader = KINDS[kind](num_workers=num_workers)
    found = []
    for batch in loader:
        found.append(batch)
        if len(found) == 3:
            break
    state = saved(loader.state_dict())
    torch.manual_seed(3)
    expected = numbers(KINDS[kind](num_workers=num_workers))
    other = KINDS[kind](num_workers=num_workers)
    other.load_state_dict(state)
    assert numbers(found) + numbers(other) == expected
    assert len(list(other)) == 10


@pytest.mark.parametrize("kind", ["in sequence", "shuffled by a generator"])
def test_a_map_style_dataset_may_go_on_with_other_workers(kind):
    iterator = iter(loader := KINDS[kind](num_workers=2))
    found = [next(iterator) for _ in range(5)]
    other = KINDS[kind](num_workers=0)
    other.load_state_dict(saved(loader.state_dict()))
    assert numbers(found) + numbers(other) == numbers(KINDS[kind]())


class Texts(Rows):
    def __getitem__(self, key):
        return super().__getitem__(int(key))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_keys_that_are_texts_resume_in_a_later_epoch_of_persistent_workers(num_workers):
    def make(num_workers):
        keys = [str(number) for number in range(39, -1, -1)]
        return DataLoader(
            Texts(40), batch_size=4, sampler=keys, num_workers=num_workers, persistent_workers=num_workers > 0
        )

    loader = make(2)
    whole = [numbers(loader), numbers(loader)][1]
    iterator = iter(loader)
    found = numbers([next(iterator) for _ in range(3)])
    other = make(num_workers)
    other.load_state_dict(saved(loader.state_dict()))
    assert found + numbers(other) == whole


def test_a_state_from_the_end_of_an_epoch_begins_the_next():
    loader = KINDS["shuffled by a generator"]()
    list(loader)
    other = KINDS["shuffled by a generator"]()
    other.load_state_dict(saved(loader.state_dict()))
    assert numbers(other) == numbers(loader)


def test_a_loader_that_has_loaded_a_state_returns_that_state():
    iterator = iter(loader := KINDS["in sequence"]())
    next(iterator)
    state = loader.state_dict()
    other = KINDS["in sequence"]()
    other.load_state_dict(state)
    assert other.state_dict() == state


@pytest.mark.parametrize("make", [DataLoader, RustLoader], ids=["DataLoader", "RustLoader"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iterator_that_misses_a_loaded_state_warns(make, num_workers, tmp_path):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"x": row}) + "\n" for row in range(12)))
    loader = make(JsonLines(tmp_path / "rows.jsonl"), batch_size=4, num_workers=num_workers)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    # Nothing is wrong as long as the program leaves the iterator.
    loader.load_state_dict(state)
    assert sum(1 for _ in loader) == 2
    loader.load_state_dict(state)
    left = iter(loader)
    loader.load_state_dict(state)
    with pytest.warns(RuntimeWarning, match=r"goes on without that state: call load_state_dict\(\) before iter\(\)"):
        next(left)
    # It warns once.
    next(left)
    assert sum(1 for _ in left) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # An iterator without further batches does not go on.
        loader.load_state_dict(state)
        ended = iter(loader)
        assert [next(ended) is None, next(ended) is None] == [False, False]
        loader.load_state_dict(state)
        assert next(ended, None) is None
        # No batch is lost if the warning is an exception.
        left = iter(loader)
        loader.load_state_dict(state)
        with pytest.raises(RuntimeWarning, match="goes on without that state"):
            next(left)
        assert sum(1 for _ in left) == 2


def test_what_is_no_state_is_refused():
    loader = DataLoader(Rows(3))
    next(iter(loader))
    state = loader.state_dict()
    cases = {
        "no state of a loader": [{}, [], None],
        "has version 2": [state | {"version": 2}],
        "has no text 'content'": [{"version": _state.VERSION}, state | {"content": None}],
        "has no text 'hash'": [{key: value for key, value in state.items() if key != "hash"}],
        "damaged or edited": [state | {"content": state["content"].replace('"returned": 1', '"returned": 2')}],
    }
    for message, refused in cases.items():
        for each in refused:
            with pytest.raises(ValueError, match=message):
                DataLoader(Rows(3)).load_state_dict(each)


@pytest.mark.parametrize("taken", [0, 3, 10, 11])
@pytest.mark.parametrize("kind", ["in sequence", "shuffled by a generator", "a stream", "of Rust"])
def test_a_distributed_checkpoint_has_the_whole_state(kind, taken, tmp_path):
    """It restores only what the keys of the state of the new loader name, which has loaded nothing."""

    def make():
        if kind == "of Rust":
            return RustLoader(JsonLines(rows, output="numpy"), batch_size=4, shuffle=True)
        return KINDS[kind]()

    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"n": {number}}}\n' for number in range(40)))
    interrupted, resumed = make(), make()
    batches = iter(interrupted)
    for _ in range(taken):
        next(batches, None)
    checkpoint = tmp_path / "checkpoint"
    torch.distributed.checkpoint.save({"loader": interrupted}, checkpoint_id=checkpoint)
    torch.distributed.checkpoint.load({"loader": resumed}, checkpoint_id=checkpoint)
    # With the eleventh call of `next`, the epoch has ended.
    expected = list(batches if taken < 11 else interrupted)
    assert len(expected) == 10 - taken % 11
    assert str(list(resumed)) == str(expected)


class Counted(IterableDataset):
    """Pairs of the epoch and a number. Each worker counts its epochs."""

    def __init__(self, length: int) -> None:
        self.length, self.epoch, self.given = length, 0, 0

    def __iter__(self):
        info = get_worker_info()
        while self.given < self.length:
            self.given += 1
            yield self.epoch, self.given + (1000 * info.id if info else 0)
        self.epoch, self.given = self.epoch + 1, 0

    def state_dict(self):
        return {"epoch": self.epoch, "given": self.given}

    def load_state_dict(self, state):
        self.epoch, self.given = state["epoch"], state["given"]


class Noisy(Dataset):
    """Row `i` is `i` and a number from the generator of the process, whose state is the dataset's."""

    def __len__(self):
        return 30

    def __getitem__(self, index):
        return index, torch.rand(()).item()

    def state_dict(self):
        return {"generator": torch.get_rng_state()}

    def load_state_dict(self, state):
        torch.set_rng_state(state["generator"])


class Turning(Sampler):
    """Begins one later in each epoch."""

    def __init__(self) -> None:
        self.epoch, self.given = 0, 0

    def __iter__(self):
        while self.given < 20:
            self.given += 1
            yield (self.epoch + self.given) % 20
        self.epoch, self.given = self.epoch + 1, 0

    def __len__(self):
        return 20

    def state_dict(self):
        return {"epoch": self.epoch, "given": self.given}

    def load_state_dict(self, state):
        self.epoch, self.given = state["epoch"], state["given"]


STATEFUL = {
    "a dataset": lambda **arguments: DataLoader(Noisy(), batch_size=4, shuffle=True, collate_fn=list, **arguments),
    "a stream": lambda **arguments: DataLoader(Counted(22), batch_size=4, collate_fn=list, **arguments),
    "a stream without its last batches": lambda **arguments: DataLoader(
        Counted(22), batch_size=4, drop_last=True, collate_fn=list, **arguments
    ),
    "a stream of samples": lambda **arguments: DataLoader(Counted(6), batch_size=None, **arguments),
    "a sampler": lambda **arguments: DataLoader(Rows(20), 4, sampler=Turning(), collate_fn=plain, **arguments),
    "a sampler of batches": lambda **arguments: DataLoader(
        Rows(20), batch_sampler=torch.utils.data.BatchSampler(Turning(), 3, False), collate_fn=plain, **arguments
    ),
}

WORKERS = {
    "no workers": {},
    "workers": {"num_workers": 2},
    "persistent workers": {"num_workers": 2, "persistent_workers": True},
    "persistent workers that are far ahead": {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 8},
}


def plain(rows):
    return [row.tolist() for row in rows]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kind", STATEFUL)
def test_states_go_on_as_the_run_that_was_not_interrupted(kind, workers):
    """In the second epoch: at its beginning, within it, after its last batch, and at its end."""
    make = STATEFUL[kind]
    torch.manual_seed(5)
    loader = make(**WORKERS[workers])
    list(loader)
    states, found = [], []
    iterator = iter(loader)
    while True:
        states.append((json.dumps(loader.state_dict()), torch.get_rng_state()))
        batch = next(iterator, None)
        if batch is None:
            break
        found.append(batch)
    states.append((json.dumps(loader.state_dict()), torch.get_rng_state()))
    following = list(loader)
    assert len(found) > 3
    for step, (state, generator) in enumerate(states):
        if step not in (0, 1, 3, len(found), len(found) + 1):
            continue
        torch.set_rng_state(generator)
        other = make(**WORKERS[workers])
        other.load_state_dict(json.loads(state))
        epochs = [list(other), list(other)]
        expected = [found[step:], following] if step <= len(found) else [following]
        if kind == "a dataset" and step <= len(found):
            # The number of draws of the program itself is another one.
            epochs, expected = epochs[:1], expected[:1]
        assert epochs[: len(expected)] == expected, f"after {step} of {len(found)} batches"


def test_an_iterable_dataset_needs_the_same_number_of_workers():
    loader = KINDS["a stream"](num_workers=2)
    next(iter(loader))
    other = KINDS["a stream"](num_workers=1)
    other.load_state_dict(loader.state_dict())
    for kind in (ValueError, AssertionError):
        with pytest.raises(kind, match="num_workers=2.*num_workers=1"):
            iter(other)


def test_a_state_from_before_the_first_epoch_has_its_order():
    torch.manual_seed(1)
    loader = KINDS["shuffled by the global generator"]()
    state = loader.state_dict()
    expected = numbers(loader)
    torch.manual_seed(2)
    other = KINDS["shuffled by the global generator"]()
    other.load_state_dict(state)
    after = torch.get_rng_state()
    assert numbers(other) == expected
    assert torch.equal(torch.get_rng_state(), after)


def test_a_generator_that_the_program_has_restored_too_goes_on():
    torch.manual_seed(1)
    loader = KINDS["shuffled by the global generator"]()
    state, generator = loader.state_dict(), torch.get_rng_state()
    expected = numbers(loader), numbers(loader)
    other = KINDS["shuffled by the global generator"]()
    torch.set_rng_state(generator)
    other.load_state_dict(state)
    assert (numbers(other), numbers(other)) == expected


class Faulty:
    """Has no state from the tenth time on that it is asked."""

    asked = 0

    def state_dict(self):
        self.asked += 1
        if self.asked > 10:
            raise BlockingIOError("not now")
        return {"lock": threading.Lock()} if self.asked == 10 else {}

    def load_state_dict(self, state):
        pass


class FaultyRows(Faulty, Rows):
    pass


class FaultyStream(Faulty, Stream):
    pass


class FaultyItems(Faulty):
    def __init__(self):
        self.items = iter(range(40))

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.items)


class FaultyIterator(IterableDataset):
    def __iter__(self):
        return FaultyItems()


class FaultySampler(Faulty, Sampler):
    def __iter__(self):
        yield from range(40)

    def __len__(self):
        return 40


FAULTY = {
    "a dataset": lambda **arguments: DataLoader(FaultyRows(40), **arguments),
    "a stream": lambda **arguments: DataLoader(FaultyStream((40,)), **arguments),
    "an iterator": lambda **arguments: DataLoader(FaultyIterator(), **arguments),
    "a sampler": lambda **arguments: DataLoader(Rows(40), sampler=FaultySampler(), **arguments),
}


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}])
@pytest.mark.parametrize("kind", FAULTY)
def test_an_error_of_a_state_does_not_fail_the_batch_but_the_state(kind, workers):
    loader = FAULTY[kind](**workers)
    errors = []
    for _batch in loader:
        try:
            loader.state_dict()
        except RuntimeError as error:
            errors.append(error)
    assert 20 < len(errors) < 40
    assert any("pickle" in str(error) and isinstance(error.__cause__, TypeError) for error in errors)
    assert all(("sampler" if kind == "a sampler" else "dataset") in str(error) for error in errors)
    assert isinstance(errors[-1].__cause__, BlockingIOError)
    place = "in DataLoader worker process 0" if workers and kind != "a sampler" else "in the DataLoader"
    assert place in str(errors[-1].__cause__)
    assert "not now" in str(errors[-1])
    if workers and kind != "a sampler" and "persistent_workers" not in workers:
        # The worker has ended, and its state with it.
        loader.state_dict()
    elif kind != "an iterator":
        with pytest.raises(RuntimeError, match="not now"):
            loader.state_dict()


@pytest.fixture(params=["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"])
def bit_generator(request):
    before = numpy.random.get_bit_generator()
    numpy.random.set_bit_generator(getattr(numpy.random, request.param)(1))
    yield
    numpy.random.set_bit_generator(before)


class DrawsWithNumPy(Sampler):
    def __iter__(self):
        yield from numpy.random.permutation(40).tolist()

    def __len__(self):
        return 40


def test_a_state_has_any_bit_generator_of_numpy(bit_generator):
    loader = DataLoader(Rows(40), 4, sampler=DrawsWithNumPy())
    iterator = iter(loader)
    found = numbers([next(iterator), next(iterator)])
    state = saved(loader.state_dict())
    expected = numbers(iterator)
    numpy.random.standard_normal()
    program = numpy.random.get_state(legacy=False)
    other = DataLoader(Rows(40), 4, sampler=DrawsWithNumPy())
    other.load_state_dict(state)
    assert numbers(other) == expected
    assert str(numpy.random.get_state(legacy=False)) == str(program)
    assert len(set(found + expected)) == 10


class Shuffled(IterableDataset):
    """The numbers of a worker's share in random order, which `iter` draws."""

    def __iter__(self):
        return iter(self.order())

    def order(self):
        info = get_worker_info()
        numbers = list(range(info.id if info else 0, 40, info.num_workers if info else 1))
        random.shuffle(numbers)
        return [numbers[place] for place in torch.randperm(len(numbers))]


class ShuffledLate(Shuffled):
    """Draws the order when the first number is taken."""

    def __iter__(self):
        yield from self.order()


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("dataset", [Shuffled, ShuffledLate])
def test_a_stream_that_shuffles_and_has_no_state_is_read_again_in_the_same_order(dataset, workers):
    """In the first and in the second epoch, in a program whose generators have other states."""

    def make():
        return DataLoader(dataset(), batch_size=3, collate_fn=list, **WORKERS[workers])

    loader = make()
    for epoch in range(2):
        iterator = iter(loader)
        torch.rand(1)
        found = [next(iterator) for _ in range(5)]
        state = saved(loader.state_dict())
        whole = found + list(iterator)
        assert sorted(number for batch in whole for number in batch) == list(range(40))
        random.seed(80 + epoch)
        torch.manual_seed(80 + epoch)
        program = random.getstate(), torch.get_rng_state().tolist()
        other = make()
        other.load_state_dict(state)
        iterator = iter(other)
        found.append(next(iterator))
        # The state of a run that was resumed.
        state = saved(other.state_dict())
        assert found + list(iterator) == whole
        if not WORKERS[workers]:
            assert (random.getstate(), torch.get_rng_state().tolist()) == program
        last = make()
        last.load_state_dict(state)
        assert found + list(last) == whole


def test_a_persistent_worker_that_replaces_another_reads_a_shuffled_stream_in_the_same_order():
    loader = DataLoader(ShuffledLate(), batch_size=4, num_workers=1, persistent_workers=True, prefetch_factor=1)
    list(loader)
    iterator = iter(loader)
    found = [next(iterator) for _ in range(3)]
    os.kill(iterator._workers[0].pid, signal.SIGKILL)
    with pytest.warns(RuntimeWarning, match="worker 0"):
        found += list(iterator)
    assert sorted(torch.cat(found).tolist()) == list(range(40))


def test_a_part_of_an_entry_does_not_hide_the_entries_after_it():
    log = _epoch_log.EpochLog()
    file = log.fileno()
    _epoch_log.append(file, _epoch_log.GENERATORS, 0, 5, b"zero")
    size = os.stat(file).st_size
    _epoch_log.append(file, _epoch_log.GENERATORS, 1, 5, b"one")
    assert log.generators(5) == {0: b"zero", 1: b"one"}
    _epoch_log.append(file, _epoch_log.GENERATORS, 2, 5, bytes(1000))
    os.truncate(file, 2 * size + 100)
    assert 2 not in log.generators(5)
    _epoch_log.append(file, _epoch_log.GENERATORS, 3, 5, b"three")
    assert log.generators(5) == {0: b"zero", 1: b"one", 3: b"three"}
    assert _epoch_log.find_generators(file, 3, 5) == b"three"
    assert _epoch_log.find_generators(file, 2, 5) is None


def test_the_log_keeps_the_last_states_when_it_frees_the_epochs_before():
    log = _epoch_log.EpochLog()
    file = log.fileno()
    for epoch in range(20):
        _epoch_log.append(file, _epoch_log.GENERATORS, 0, epoch, bytes(5000))
        for worker in (0, 1):
            _epoch_log.append(file, _epoch_log.LAST_STATE, worker, epoch, b"%d of %d" % (worker, epoch))
        log.begin_epoch(epoch + 1)
        for worker in (0, 1):
            assert _epoch_log.find_last_state(file, worker, epoch + 1) == b"%d of %d" % (worker, epoch)
    # Worker 0 ends epoch 20 after main has left it.
    log.begin_epoch(21)
    _epoch_log.append(file, _epoch_log.LAST_STATE, 0, 20, b"!")
    assert _epoch_log.find_last_state(file, 0, 22) == log.last_states(22)[0] == b"!"
    assert _epoch_log.find_generators(file, 0, 10) is None
    assert os.fstat(file).st_size > 100_000 and os.fstat(file).st_blocks * 512 <= 16_384


class Eager(Sampler):
    """Draws the whole order of an epoch in `iter`."""

    def __init__(self, generator: torch.Generator | None) -> None:
        self.generator = generator

    def __iter__(self):
        return iter(torch.randperm(20, generator=self.generator).reshape(5, 4).tolist())

    def __len__(self):
        return 5


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("is_own", [True, False])
def test_the_epoch_after_a_resumed_one_has_its_order(num_workers, is_own):
    """The sampler and the loader draw from the same generator."""

    def make():
        generator = torch.Generator().manual_seed(3) if is_own else None
        return DataLoader(Rows(20), batch_sampler=Eager(generator), generator=generator, num_workers=num_workers)

    torch.manual_seed(3)
    loader = make()
    iterator = iter(loader)
    found = numbers([next(iterator), next(iterator)])
    state = saved(loader.state_dict())
    expected = [found + numbers(iterator), numbers(loader)]
    torch.manual_seed(3)
    other = make()
    other.load_state_dict(state)
    iterator = iter(other)
    found += numbers([next(iterator)])
    state = saved(other.state_dict())
    assert [found + numbers(iterator), numbers(other)] == expected
    torch.manual_seed(3)
    last = make()
    last.load_state_dict(state)
    assert [found + numbers(last), numbers(last)] == expected


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", ["in sequence", "shuffled by the global generator"])
def test_a_resume_within_an_epoch_leaves_the_global_generator(kind, num_workers):
    torch.manual_seed(3)
    loader = KINDS[kind](num_workers=num_workers)
    iterator = iter(loader)
    next(iterator)
    state, program = saved(loader.state_dict()), torch.get_rng_state()
    list(iterator)
    following = numbers(loader)
    other = KINDS[kind](num_workers=num_workers)
    other.load_state_dict(state)
    torch.set_rng_state(program)
    list(other)
    assert torch.equal(torch.get_rng_state(), program)
    assert numbers(other) == following

    # A program that has seeded it as at its beginning goes on as the run that was not interrupted.
    torch.manual_seed(3)
    other = KINDS[kind](num_workers=num_workers)
    other.load_state_dict(state)
    list(other)
    assert torch.equal(torch.get_rng_state(), program)


@pytest.fixture
def photos(tmp_path):
    """A folder of images."""
    (tmp_path / "all").mkdir()
    for number in range(8):
        image = numpy.random.default_rng(number).integers(0, 256, (32, 32, 3), dtype=numpy.uint8)
        Image.fromarray(image).save(tmp_path / "all" / f"{number}.png")
    return tmp_path


@pytest.mark.parametrize("is_persistent", [True, False])
@pytest.mark.parametrize("is_rust", [True, False])
def test_seeds_of_samples_go_on_between_epochs(photos, is_rust, is_persistent):
    def make():
        dataset = ImageFolder(photos, transforms.RandomResizedCrop(8)) if is_rust else Draws(8)
        generator = torch.Generator().manual_seed(3)
        arguments = {"generator": generator, "persistent_workers": is_persistent, "seed_samples": not is_rust}
        return DataLoader(dataset, 4, shuffle=True, num_workers=1, **arguments)

    def of_epoch(loader):
        return [batch[0 if is_rust else 1].tolist() for batch in loader]

    loader = make()
    first = of_epoch(loader)
    state = saved(loader.state_dict())
    expected = [of_epoch(loader), of_epoch(loader)]
    assert first != expected[0] != expected[1]
    other = make()
    other.load_state_dict(state)
    assert [of_epoch(other), of_epoch(other)] == expected


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_without_persistent_workers_resumes_between_their_epochs(num_workers):
    def make(num_workers, is_persistent):
        arguments = {"num_workers": num_workers, "persistent_workers": is_persistent}
        generator = torch.Generator().manual_seed(3)
        return DataLoader(Draws(8), 4, shuffle=True, seed_samples=True, generator=generator, **arguments)

    loader = make(2, True)
    list(loader)
    state = saved(loader.state_dict())
    other = make(num_workers, False)
    other.load_state_dict(state)
    assert str(list(other)) == str(list(loader))


def test_new_persistent_workers_do_not_draw_the_numbers_of_the_first_epoch_again():
    def make():
        return DataLoader(Draws(8), 4, num_workers=1, persistent_workers=True)

    loader = make()
    first = [batch[1].tolist() for batch in loader]
    other = make()
    other.load_state_dict(saved(loader.state_dict()))
    assert [batch[1].tolist() for batch in other] != first


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_state_is_still_there_after_the_workers_were_shut_down(num_workers):
    loader = DataLoader(Rows(40), 4, num_workers=num_workers)
    iterator = iter(loader)
    found = numbers([next(iterator), next(iterator)])
    iterator._shutdown_workers()
    states = [loader.state_dict()]
    iterator._shutdown_workers()
    del iterator
    states.append(loader.state_dict())
    for state in states:
        other = DataLoader(Rows(40), 4)
        other.load_state_dict(saved(state))
        assert found + numbers(other) == numbers(loader)


class Counting(Rows):
    """Gives the number of samples that this copy has given."""

    given = 0

    def __getitem__(self, index):
        self.given += 1
        return self.given

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


@pytest.mark.parametrize("is_persistent", [False, True])
def test_a_dataset_with_a_state_goes_on_after_a_failure(is_persistent):
    def make():
        return DataLoader(Counting(40), 4, num_workers=1, persistent_workers=is_persistent, on_worker_death="fail")

    loader = make()
    first = list(loader)
    found = [] if is_persistent else first
    iterator = iter(loader)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        for batch in iterator:
            found.append(batch)
            os.kill(iterator._workers[0].pid, signal.SIGKILL)
    other = make()
    other.load_state_dict(saved(loader.state_dict()))
    found += list(other)
    expected = range(41, 81) if is_persistent else [*range(1, 41), *range(1, 41)]
    assert torch.cat(found).tolist() == list(expected)


def test_a_state_after_a_death_between_two_epochs_has_the_last_states_of_the_dataset():
    def make():
        return DataLoader(Counting(8), 4, num_workers=1, persistent_workers=True, on_worker_death="fail")

    loader = make()
    iterator = iter(loader)
    found = [*iterator]
    os.kill(iterator._workers[0].pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="is killed by signal: Killed"):
        iter(loader)
    other = make()
    other.load_state_dict(saved(loader.state_dict()))
    assert torch.cat([*found, *other]).tolist() == list(range(1, 17))


def test_a_warning_tells_of_states_that_begin_again_after_a_death_between_two_epochs():
    loader = DataLoader(Counting(8), 4, num_workers=1, persistent_workers=True)
    iterator = iter(loader)
    list(iterator)
    os.kill(iterator._workers[0].pid, signal.SIGKILL)
    with pytest.warns(RuntimeWarning, match="new workers load the next epoch.*each new worker begins with the state"):
        assert torch.cat([*loader]).tolist() == list(range(1, 9))


class Epochs(IterableDataset):
    """Gives the number of the epoch in the hundreds. Dies once in its first sample of epoch 2, if `file` is given."""

    def __init__(self, file=None):
        self.file, self.epoch, self.given = file, 0, 4

    def __iter__(self):
        if self.given == 4:
            self.epoch, self.given = self.epoch + 1, 0
        while self.given < 4:
            if self.epoch == 2 and self.file is not None and not self.file.exists():
                self.file.touch()
                os._exit(1)
            self.given += 1
            yield 100 * self.epoch + self.given

    def state_dict(self):
        return {"epoch": self.epoch, "given": self.given}

    def load_state_dict(self, state):
        self.epoch, self.given = state["epoch"], state["given"]


@pytest.mark.parametrize("is_between", [True, False])
def test_a_persistent_worker_that_takes_the_place_of_another_has_the_state_of_the_last_epoch(is_between, tmp_path):
    dataset = Epochs(None if is_between else tmp_path / "died")
    loader = DataLoader(dataset, 2, num_workers=1, persistent_workers=True)
    found = []
    with pytest.warns(RuntimeWarning, match="worker"):
        for epoch in range(4):
            batches = iter(loader)
            found += torch.cat([*batches]).tolist()
            if is_between and epoch < 3:
                os.kill(batches._workers[0].pid, signal.SIGKILL)
    assert found == [100 * epoch + given for epoch in (1, 2, 3, 4) for given in (1, 2, 3, 4)]


class Unavailable(IterableDataset):
    """Numbers that cannot be read as long as a file exists."""

    def __init__(self, file):
        self.file = file

    def __iter__(self):
        if os.path.exists(self.file):
            raise ConnectionError("the storage does not answer")
        return iter(range(8))


def test_a_state_after_an_epoch_that_an_error_has_cut_short_has_the_rest(tmp_path):
    file = tmp_path / "unavailable"
    file.touch()
    # Without workers, `iter` raises the error, as PyTorch's loader does.
    loader = DataLoader(Unavailable(file), batch_size=4, num_workers=1)
    batches = iter(loader)
    with pytest.raises(ConnectionError):
        next(batches)
    with pytest.warns(RuntimeWarning, match="epoch 0 ended before all of its data was read"):
        assert next(batches, None) is None
    state = saved(loader.state_dict())
    file.unlink()
    other = DataLoader(Unavailable(file), batch_size=4, num_workers=1)
    other.load_state_dict(state)
    assert numbers(other) == [0, 4]
    # The next epoch is whole.
    assert numbers(other) == [0, 4]


class BeginsWhereLoaded(IterableDataset):
    """Begins at the position that it has loaded, and at its start in each later epoch. Such a position may be the end,
    after which the epoch has no samples."""

    def __init__(self):
        self.start, self.given = 0, 0

    def __iter__(self):
        self.given, self.start = self.start, 0
        while self.given < 12:
            self.given += 1
            yield self.given

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.start = state["given"]


class SamplerThatBeginsWhereLoaded(BeginsWhereLoaded, Sampler):
    def __len__(self):
        return 12


BEGIN_WHERE_LOADED = {
    "a stream": lambda **arguments: DataLoader(BeginsWhereLoaded(), 3, **arguments),
    "a sampler": lambda **arguments: DataLoader(Rows(20), 3, sampler=SamplerThatBeginsWhereLoaded(), **arguments),
    "torchdata's sampler": lambda **arguments: DataLoader(Rows(12), 3, sampler=torchdatas_sampler(), **arguments),
}


def torchdatas_sampler():
    sampler = pytest.importorskip(
        "torchdata.stateful_dataloader.sampler", reason="SKIPPED: torchdata is not installed"
    )
    return sampler.StatefulDistributedSampler(range(12), 1, 0)


@pytest.mark.parametrize("workers", ["no workers", "workers", "persistent workers"])
@pytest.mark.parametrize("kind", BEGIN_WHERE_LOADED)
def test_no_epoch_is_empty_after_a_state_from_an_end(kind, workers):
    """States from the second epoch: before its first batch, within it, after its last batch, and from its end."""

    def epochs_after(place):
        loader = BEGIN_WHERE_LOADED[kind](**WORKERS[workers])
        list(loader)
        iterator = iter(loader)
        length = sum(1 for _ in itertools.islice(iterator, place))
        state = loader.state_dict()
        other = BEGIN_WHERE_LOADED[kind](**WORKERS[workers])
        other.load_state_dict(state)
        return length, [sum(map(len, other)) for _ in range(3)]

    shards = 2 if kind == "a stream" and workers != "no workers" else 1
    whole = 12 * shards
    for place in (0, 1, 4 * shards, 4 * shards + 1):
        got, epochs = epochs_after(place)
        first = whole - 3 * got if place <= 4 * shards else whole
        assert epochs == [first, whole, whole], f"after {place} batches"


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_epoch_without_batches_after_one_with_some_is_a_warning(num_workers):
    loader = DataLoader(Rows(4), sampler=iter(range(4)), num_workers=num_workers)
    assert len(list(loader)) == 4
    with pytest.warns(RuntimeWarning, match="epoch 1 had no batches, and the epoch before had 4"):
        assert list(loader) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(loader) == []
        # A rest without batches is no such epoch.
        loader = KINDS["a stream"](num_workers=num_workers)
        iterator = iter(loader)
        state = [loader.state_dict() for _ in itertools.islice(iterator, 10)][-1]
        other = KINDS["a stream"](num_workers=num_workers)
        other.load_state_dict(state)
        assert [len(list(other)), len(list(other))] == [0, 10]
