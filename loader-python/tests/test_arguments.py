"""Arguments: what is refused, with which exception and text, and what can be changed afterwards. As in PyTorch, word by
word."""

import inspect
import json
import re
import warnings

import numpy
import pytest
import torch
import torch.utils.data
from torch_datasets import Items, Rows, Stream

from loader import DataLoader

ROWS, STREAM = Rows(10), Stream((10,))


def nothing(*_):
    pass


REFUSED = [
    (ROWS, {"num_workers": -1}),
    (ROWS, {"timeout": -1}),
    (ROWS, {"prefetch_factor": 2}),
    (ROWS, {"num_workers": 1, "prefetch_factor": -1}),
    (ROWS, {"persistent_workers": True}),
    (ROWS, {"multiprocessing_context": "fork"}),
    (ROWS, {"num_workers": 1, "multiprocessing_context": "telepathy"}),
    (ROWS, {"num_workers": 1, "multiprocessing_context": object()}),
    (ROWS, {"sampler": range(3), "shuffle": True}),
    (ROWS, {"batch_sampler": [[1]], "batch_size": 2}),
    (ROWS, {"batch_sampler": [[1]], "batch_size": None}),
    (ROWS, {"batch_sampler": [[1]], "shuffle": True}),
    (ROWS, {"batch_sampler": [[1]], "sampler": range(3)}),
    (ROWS, {"batch_sampler": [[1]], "drop_last": True}),
    (ROWS, {"batch_sampler": [[1]], "sampler": range(3), "shuffle": True}),
    (ROWS, {"batch_size": None, "drop_last": True}),
    (ROWS, {"batch_size": 0}),
    (ROWS, {"batch_size": -3}),
    (ROWS, {"batch_size": 1.5}),
    (ROWS, {"batch_size": True}),
    (ROWS, {"drop_last": 1}),
    (Items([]), {"shuffle": True}),
    (STREAM, {"shuffle": True}),
    (STREAM, {"shuffle": "yes"}),
    (STREAM, {"sampler": range(3)}),
    (STREAM, {"batch_sampler": [[1]]}),
    (STREAM, {"sampler": range(3), "shuffle": True}),
    (ROWS, {"num_workers": -1, "timeout": -1, "batch_size": 0}),
    (ROWS, {"unheard_of": 1}),
]


@pytest.mark.parametrize("dataset, arguments", REFUSED, ids=lambda value: str(value) if isinstance(value, dict) else "")
def test_what_pytorch_refuses_is_refused_with_its_words(dataset, arguments):
    with pytest.raises(Exception) as theirs:
        torch.utils.data.DataLoader(dataset, **arguments)
    with pytest.raises(Exception) as ours:
        DataLoader(dataset, **arguments)
    assert ours.type is theirs.type
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("arguments", [{"prefetch_factor": 0, "num_workers": 1}, {"timeout": 1}], ids=str)
def test_what_pytorch_refuses_when_it_iterates_is_refused_then(arguments):
    loader = DataLoader(ROWS, **arguments)
    # PyTorch raises this class too. The text is our own, because PyTorch's names a private class or is empty.
    with pytest.raises(AssertionError, match=next(iter(arguments))):
        iter(loader)


def test_positional_arguments_are_in_pytorch_s_order():
    generator = torch.Generator()
    given = (ROWS, 2, None, range(4), None, 1, list, False, True, 3.0, nothing, None, generator)
    theirs, ours = torch.utils.data.DataLoader(*given), DataLoader(*given)
    for name in (
        "dataset",
        "batch_size",
        "num_workers",
        "collate_fn",
        "pin_memory",
        "drop_last",
        "timeout",
        "worker_init_fn",
        "generator",
    ):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.sampler == theirs.sampler == range(4)


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_some_attributes_cannot_be_set_afterwards(name):
    with pytest.raises(ValueError) as theirs:
        setattr(torch.utils.data.DataLoader(ROWS), name, None)
    with pytest.raises(ValueError) as ours:
        setattr(DataLoader(ROWS), name, None)
    assert str(ours.value) == str(theirs.value)


def test_other_attributes_count_from_the_next_iteration():
    loader = DataLoader(ROWS, batch_size=5)
    loader.num_workers, loader.prefetch_factor, loader.collate_fn = 1, 2, list
    assert [len(batch) for batch in loader] == [5, 5]
    assert isinstance(next(iter(loader)), list)


@pytest.mark.parametrize("arguments", [{"num_workers": 1000}, {"num_workers": 0, "pin_memory": True}], ids=str)
def test_warnings_are_those_of_pytorch(arguments):
    def given(kind):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made = kind(ROWS, **arguments)
            if made.num_workers == 0:
                iter(made)
        return [(warning.category, str(warning.message)) for warning in caught]

    if torch.cuda.is_available() and arguments.get("pin_memory"):
        pytest.skip("SKIPPED: with a GPU there is no warning")
    theirs = given(torch.utils.data.DataLoader)
    assert theirs
    assert given(DataLoader) == theirs


@pytest.mark.parametrize(
    "batch_size, drop_last", [(1, False), (3, False), (3, True), (20, False), (20, True), (None, False)]
)
@pytest.mark.parametrize("dataset", [ROWS, Stream((10,), length=10)], ids=["map-style", "iterable"])
def test_the_length_is_the_number_of_batches(dataset, batch_size, drop_last):
    arguments = {"batch_size": batch_size, "drop_last": drop_last}
    loader = DataLoader(dataset, **arguments)
    assert len(loader) == len(torch.utils.data.DataLoader(dataset, **arguments)) == len(list(loader))


def test_a_stream_without_a_length_has_none():
    with pytest.raises(TypeError):
        len(DataLoader(STREAM))
    with pytest.raises(TypeError):
        len(iter(DataLoader(STREAM)))


def test_an_iterator_has_a_length_and_cannot_be_pickled():
    iterator = iter(DataLoader(ROWS, batch_size=3))
    assert len(iterator) == 4
    assert iter(iterator) is iterator
    with pytest.raises(NotImplementedError, match="cannot be pickled"):
        iterator.__getstate__()


def test_the_class_is_a_subclass_of_pytorchs():
    assert isinstance(DataLoader(ROWS), torch.utils.data.DataLoader)
    assert DataLoader[torch.Tensor]


def test_the_documentation_has_each_argument_in_order():
    names = list(inspect.signature(DataLoader).parameters)
    documented = re.findall(r"^ {4}(\w+): ", inspect.getdoc(DataLoader).partition("Args:\n")[2], re.MULTILINE)
    assert documented == names


def test_integers_of_numpy_are_integers():
    two = numpy.int64(2)
    loader = DataLoader(
        list(range(8)), two, num_workers=two, prefetch_factor=two, max_bad_samples=two, on_bad_sample="skip"
    )
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert json.dumps(loader.state_dict())
