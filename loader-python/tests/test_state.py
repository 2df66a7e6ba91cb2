"""`state_dict` and `load_state_dict`."""

import io

import pytest
import torch
from torch_datasets import Rows, Stream

from loader import DataLoader

KINDS = {
    "in sequence": lambda **arguments: DataLoader(Rows(40), batch_size=4, **arguments),
    "shuffled by the global generator": lambda **arguments: DataLoader(Rows(40), batch_size=4, shuffle=True, **arguments),
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
def test_the_rest_of_an_epoch_after_break_is_the_rest(kind, num_workers):
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
        return DataLoader(Texts(40), batch_size=4, sampler=keys, num_workers=num_workers, persistent_workers=num_workers > 0)

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


def test_a_loaded_state_is_the_state():
    iterator = iter(loader := KINDS["in sequence"]())
    next(iterator)
    state = loader.state_dict()
    other = KINDS["in sequence"]()
    other.load_state_dict(state)
    assert other.state_dict()["position"]["returned"] == 1


def test_what_is_no_state_is_refused():
    for state in ({}, [], {"version": 1}, {"version": 99, "position": None}):
        with pytest.raises(ValueError):
            DataLoader(Rows(3)).load_state_dict(state)
