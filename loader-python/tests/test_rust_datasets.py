"""Rust datasets: workers load them without Python code."""

import copy
import csv
import gc
import importlib.util
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import processes
import pytest
import torch
import torch.utils.data
import torchvision
from torch_datasets import same
from PIL import Image
from torchvision.transforms import v2

import loader
from loader import DataLoader, transforms
from loader.datasets import CLASSES

TOP = Path(__file__).resolve().parents[2]
TRAIN = [
    transforms.RandomResizedCrop(24),
    transforms.RandomHorizontalFlip(),
    transforms.Normalize([0.5, 0.4, 0.3], torch.tensor([0.2, 0.3, 0.4])),
]


@pytest.fixture(scope="session")
def photos(tmp_path_factory) -> Path:
    """A folder with 13 images of three classes. PNG, so that each library decodes the same pixels."""
    root = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(7)
    for number in range(13):
        pixels = random.integers(0, 256, (40 + number, 60 - number, 3), dtype=np.uint8)
        folder = root / ("cat", "dog", "eel")[number % 3]
        folder.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number:02}.png")
    return root


def of_epoch(dataset, num_workers, **arguments):
    arguments = {"batch_size": 4, "generator": torch.Generator().manual_seed(3), **arguments}
    return list(DataLoader(dataset, num_workers=num_workers, **arguments))


def is_in_slot(tensor) -> bool:
    ranges = [
        line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:" in line
    ]
    return any(int(start, 16) <= tensor.data_ptr() < int(end, 16) for start, end in ranges)


def test_an_image_folder_lists_what_torchvision_lists(photos):
    ours, theirs = loader.ImageFolder(photos), torchvision.datasets.ImageFolder(photos)
    assert len(ours) == len(theirs) == 13
    assert ours.classes == theirs.classes == ["cat", "dog", "eel"]
    assert ours.class_to_idx == theirs.class_to_idx
    assert ours.samples == ours.imgs == theirs.samples
    assert ours.targets == theirs.targets


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    "steps",
    [
        [v2.CenterCrop(32)],
        [v2.CenterCrop((50, 20)), v2.RandomHorizontalFlip(1.0)],
        [v2.CenterCrop(32), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)],
    ],
    ids=["crop", "flip", "normalize"],
)
def test_batches_equal_torchvisions(photos, steps, num_workers):
    transform = v2.Compose(steps if len(steps) == 4 else [*steps, torchvision.transforms.ToTensor()])
    theirs = torch.utils.data.DataLoader(torchvision.datasets.ImageFolder(photos, transform), batch_size=4)
    batches = of_epoch(loader.ImageFolder(photos, transform), num_workers)
    for (images, labels), (expected, expected_labels) in zip(batches, theirs, strict=True):
        torch.testing.assert_close(images, expected, rtol=0, atol=1e-6)
        same(labels, expected_labels)


def test_resized_pixels_are_those_of_pillow(photos):
    steps = [v2.Resize((31, 17)), v2.PILToTensor()]
    theirs = torchvision.datasets.ImageFolder(photos, v2.Compose(steps))
    ours = loader.ImageFolder(photos, steps)
    for (image, label), (expected, expected_label) in zip(ours, theirs, strict=True):
        assert (image.dtype, label) == (torch.uint8, expected_label)
        # Rounding in fixed point may differ by one.
        assert (image.int() - expected.int()).abs().max() <= 1


def test_batches_are_the_same_for_any_number_of_workers(photos):
    dataset = loader.ImageFolder(photos, TRAIN)
    expected = of_epoch(dataset, 0, shuffle=True)
    for num_workers in (1, 2):
        same(of_epoch(dataset, num_workers, shuffle=True), expected)
    images, labels = expected[0]
    assert (images.shape, images.dtype, labels.dtype) == ((4, 3, 24, 24), torch.float32, torch.int64)
    # Another epoch, or another seed, has other random numbers.
    again = list(DataLoader(dataset, batch_size=13, generator=torch.Generator().manual_seed(4)))
    assert not torch.equal(again[0][0], torch.cat([images for images, _ in of_epoch(dataset, 0)]))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_order_is_that_of_pytorchs_sampler(photos, num_workers):
    dataset = loader.ImageFolder(photos, TRAIN)

    def order(of, loader_class, **arguments):
        generator = torch.Generator().manual_seed(11)
        return [loader_class(of, batch_size=3, shuffle=True, generator=generator, **arguments) for _ in range(1)][0]

    theirs = order(torch.arange(13), torch.utils.data.DataLoader, num_workers=0)
    ours = order(dataset, DataLoader, num_workers=num_workers)
    for _ in range(2):
        indices = [batch.tolist() for batch in theirs]
        assert [labels.tolist() for _, labels in ours] == [[dataset.targets[i] for i in batch] for batch in indices]


def test_samplers_and_nested_subsets_choose_the_samples(photos):
    dataset = loader.ImageFolder(photos, TRAIN)
    inner = torch.utils.data.Subset(dataset, [12, 3, 5, 7])
    outer = torch.utils.data.Subset(inner, torch.tensor([3, 0]))
    for num_workers in (0, 1):
        ((_, labels),) = of_epoch(outer, num_workers)
        assert labels.tolist() == [dataset.targets[7], dataset.targets[12]]
        batches = of_epoch(dataset, num_workers, batch_size=1, batch_sampler=[[np.int64(4), -1], [0]])
        assert [labels.tolist() for _, labels in batches] == [[dataset.targets[4], dataset.targets[12]], [0]]
    with pytest.raises(IndexError, match="index 13 is out of range: the dataset has 13 samples"):
        of_epoch(dataset, 1, batch_size=1, batch_sampler=[[13]])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_without_batch_size_samples_are_those_of_the_dataset(photos, num_workers):
    dataset = loader.ImageFolder(photos, [transforms.CenterCrop(8)])
    samples = of_epoch(dataset, num_workers, batch_size=None)
    assert len(samples) == 13
    for (image, label), (expected, expected_label) in zip(samples, dataset, strict=True):
        same((image, label), (expected, expected_label))
    with pytest.raises(IndexError):
        dataset[13]


def test_workers_run_no_python_libraries(photos):
    batches = iter(DataLoader(loader.ImageFolder(photos, TRAIN), batch_size=1, num_workers=2))
    next(batches)
    found = {pid: command for pid, command in processes.children().items() if "_native" in command}
    assert len(found) == 2
    for pid, command in found.items():
        assert " -I -S " in command
        mapped = Path(f"/proc/{pid}/maps").read_text().replace(sys.prefix, "")
        assert "_native" in mapped and "torch" not in mapped and "numpy" not in mapped
    del batches


# A worker may be killed before it has answered, too.
@pytest.mark.filterwarnings("ignore:worker .* (another process takes its place|did not start):RuntimeWarning")
def test_killed_workers_change_nothing(photos):
    dataset = loader.ImageFolder(photos, TRAIN)
    sampler = [index % 13 for index in range(130)]
    expected = of_epoch(dataset, 0, sampler=sampler)
    batches, killed = [], 0
    for batch in DataLoader(dataset, 4, sampler=sampler, num_workers=2, generator=torch.Generator().manual_seed(3)):
        batches.append(batch)
        if len(batches) in (3, 11):
            for pid, command in processes.children().items():
                if " -I -S " in command and not command.startswith("Z"):
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
    assert killed >= 2
    same(batches, expected)


def test_tensors_are_views_that_outlive_the_loader(photos):
    dataset = loader.ImageFolder(photos, [transforms.CenterCrop(32)])
    expected = [dataset[index][0] for index in range(4)]
    images = next(iter(DataLoader(dataset, batch_size=4, num_workers=1)))[0]
    row = images[2]
    del images, dataset
    gc.collect()
    assert torch.equal(row, expected[2])
    row += 1  # They can be written to.
    assert torch.equal(row, expected[2] + 1)
    assert is_in_slot(row)


def test_batches_are_not_copied(photos):
    batches = iter(
        DataLoader(loader.ImageFolder(photos, [transforms.CenterCrop(64)], output="dlpack"), 4, num_workers=1)
    )
    array, _ = next(batches)
    tensor, other = torch.from_dlpack(array), torch.from_numpy(np.asarray(array))
    assert tensor.data_ptr() == other.data_ptr()
    assert is_in_slot(tensor)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_numpy_and_dlpack_have_the_values_of_tensors(photos, num_workers):
    steps = [transforms.CenterCrop(16)]
    expected = of_epoch(loader.ImageFolder(photos, steps), num_workers)
    arrays = of_epoch(loader.ImageFolder(photos, steps, output="numpy"), num_workers)
    exported = of_epoch(loader.ImageFolder(photos, steps, output="dlpack"), num_workers)
    for torch_batch, numpy_batch, dlpack_batch in zip(expected, arrays, exported, strict=True):
        for tensor, array, export in zip(torch_batch, numpy_batch, dlpack_batch, strict=True):
            same(torch.from_numpy(array), tensor)
            assert (export.dtype, export.shape) == (str(array.dtype), array.shape)
            for imported in (np.from_dlpack(export), np.asarray(memoryview(export))):
                same(imported, array)
            # A consumer that knows no versions of DLPack.
            same(torch.utils.dlpack.from_dlpack(export.__dlpack__()), tensor)
    with pytest.raises(ValueError, match="'torch', 'numpy' or 'dlpack'"):
        loader.ImageFolder(photos, output="jax")


def test_a_pickle_or_a_config_makes_the_same_dataset_again(photos):
    dataset = loader.ImageFolder(photos, TRAIN)
    again = pickle.loads(pickle.dumps(dataset))
    assert type(again) is loader.ImageFolder and again.config == dataset.config
    assert repr(again) == repr(dataset) and "random_resized_crop" in repr(dataset)
    generic = loader.dataset("image-folder", path=photos, transform=dataset.config["transform"])
    assert type(generic) is loader.ImageFolder and generic.config == dataset.config
    # PyTorch's own loader can read it too.
    same(
        list(torch.utils.data.DataLoader(loader.ImageFolder(photos, [transforms.CenterCrop(8)]), 4)),
        of_epoch(loader.ImageFolder(photos, [transforms.CenterCrop(8)]), 0),
    )


def test_persistent_workers_transform_each_epoch_anew_and_resume(photos):
    dataset = loader.ImageFolder(photos, TRAIN)

    def make():
        generator = torch.Generator().manual_seed(5)
        return DataLoader(dataset, 3, shuffle=True, num_workers=2, generator=generator, persistent_workers=True)

    epochs = [[*batches] for batches in [make()] for batches in (batches, batches)]
    assert not torch.equal(epochs[0][0][0], epochs[1][0][0])
    first = make()
    batches = iter(first)
    begun = [next(batches), next(batches)]
    state = first.state_dict()
    resumed = make()
    resumed.load_state_dict(state)
    same(begun + list(resumed), epochs[0])
    del batches


def test_transforms_that_do_not_exist_are_refused(photos):
    known = (
        "the supported transforms are CenterCrop, Compose, ConvertImageDtype, Normalize, PILToTensor,"
        " RandomHorizontalFlip"
    )
    for unknown in (v2.ColorJitter(0.5), [v2.Resize(8), v2.RandomRotation(3)], lambda image: image):
        with pytest.raises(TypeError, match=known):
            loader.ImageFolder(photos, unknown)
    with pytest.raises(ValueError, match="interpolation"):
        loader.ImageFolder(photos, v2.Resize(8, interpolation=v2.InterpolationMode.NEAREST))
    with pytest.raises(ValueError, match="a size of 0 pixels is out of range"):
        loader.ImageFolder(photos, transforms.Resize(0))
    with pytest.raises(ValueError, match="normalise must be the last step"):
        loader.ImageFolder(photos, [TRAIN[2], TRAIN[0]])


def test_python_code_for_workers_is_refused(photos):
    dataset = loader.ImageFolder(photos, TRAIN)
    for argument in ("collate_fn", "worker_init_fn"):
        with pytest.raises(ValueError, match=f"{argument} is Python code"):
            iter(DataLoader(dataset, **{argument: print}))


@pytest.mark.filterwarnings("ignore:.*skipped:RuntimeWarning")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_errors_name_the_file(photos, tmp_path, num_workers):
    for problem in (FileNotFoundError, ValueError):
        folder = tmp_path / problem.__name__
        if problem is ValueError:
            folder.write_text("no folder")
        with pytest.raises(problem, match=str(folder)):
            loader.ImageFolder(folder)
    folder = tmp_path / "broken" / "class"
    folder.mkdir(parents=True)
    (folder / "bad.png").write_bytes(b"no image")
    with pytest.raises(RuntimeError, match="bad.png"):
        of_epoch(loader.ImageFolder(folder.parent), num_workers)
    with pytest.raises(RuntimeError, match="bad.png"):
        loader.ImageFolder(folder.parent)[0]
    lines = tmp_path / "rows.jsonl"
    lines.write_text('{"a": 1}\n{"a": \n')
    with pytest.raises(RuntimeError, match="rows.jsonl.*line 2"):
        of_epoch(loader.JsonLines(lines), num_workers)
    same(of_epoch(loader.JsonLines(lines), num_workers, on_bad_sample="skip"), [{"a": torch.tensor([1])}])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_json_lines_rows_have_nested_fields_and_the_given_dtypes(tmp_path, num_workers):
    rows = [
        {"text": f"row {i}", "label": i, "x": [i, 0.5], "more": {"ok": i % 2 == 0}, "tags": ["a", i]} for i in range(5)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataset = loader.JsonLines(tmp_path / "rows.jsonl", dtypes={"label": "int16"})
    first, second = of_epoch(dataset, num_workers, batch_size=3)
    assert list(first) == ["text", "label", "x", "more", "tags"]
    assert first["text"] == ["row 0", "row 1", "row 2"]
    same(second["label"], torch.tensor([3, 4], dtype=torch.int16))
    same(first["x"], torch.tensor([[0, 0.5], [1, 0.5], [2, 0.5]], dtype=torch.float64))
    same(second["more"], {"ok": torch.tensor([False, True])})
    assert first["tags"] == [["a", 0], ["a", 1], ["a", 2]]
    assert dataset[4]["label"] == 4 and dataset[-1]["text"] == "row 4" and dataset[0]["more"] == {"ok": True}

    stream = loader.JsonLinesStream(tmp_path / "rows.jsonl")
    assert sorted(text for batch in of_epoch(stream, num_workers) for text in batch["text"]) == [
        row["text"] for row in rows
    ]
    assert [sample["label"] for sample in stream] == [0, 1, 2, 3, 4]
    assert [sample["label"] for sample in of_epoch(stream, 0, batch_size=None)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_csv_rows_have_the_given_types(tmp_path, num_workers):
    with open(tmp_path / "rows.csv", "w", newline="") as file:
        csv.writer(file).writerows([["name", "n"], ["a", 1], ["b", 2], ["c", 3]])
    first, second = of_epoch(loader.Csv(tmp_path / "rows.csv", types={"n": "int64"}), num_workers, batch_size=2)
    assert first["name"] == ["a", "b"]
    same(second["n"], torch.tensor([3]))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_tar_samples_have_their_decoded_files(tmp_path, num_workers):
    with tarfile.open(tmp_path / "train.tar", "w") as archive:
        for number in range(4):
            image = io.BytesIO()
            Image.fromarray(np.full((6, 5, 3), number, dtype=np.uint8)).save(image, "png")
            for name, content in (
                ("png", image.getvalue()),
                ("cls", str(number).encode()),
                ("bin", bytes([number] * number)),
            ):
                member = tarfile.TarInfo(f"{number}.{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    dataset = loader.Tar(tmp_path / "train.tar", images={"png": {"dtype": "uint8"}})
    first, second = of_epoch(dataset, num_workers, batch_size=2)
    same(second["png"], torch.tensor([2, 3], dtype=torch.uint8)[:, None, None, None].expand(2, 3, 6, 5).contiguous())
    same(first["cls"], torch.tensor([0, 1]))
    assert second["bin"] == [b"\2\2", b"\3\3\3"]
    with pytest.raises(TypeError):
        len(dataset)
    indexed = loader.IndexedTar(tmp_path / "train.tar", fields=["cls"], index="none")
    assert len(indexed) == 4 and indexed[2]["cls"] == 2


@pytest.mark.parametrize("num_workers", [0, 1])
def test_tokens_are_windows_and_arrays_are_rows_of_files(tmp_path, num_workers):
    np.arange(41, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    dataset = loader.Tokens(tmp_path / "tokens.bin", 11, dtype="uint16")
    batches = of_epoch(dataset, num_workers, batch_size=2)
    same(batches[1]["tokens"], torch.stack([torch.arange(20, 31), torch.arange(30, 41)]))
    np.savez(tmp_path / "rows.npz", x=np.arange(6, dtype=np.float16).reshape(3, 2), y=np.arange(3, dtype=np.uint32))
    (batch,) = of_epoch(loader.Arrays(tmp_path / "rows.npz"), num_workers)
    same(batch["x"], torch.arange(6, dtype=torch.float16).reshape(3, 2))
    same(batch["y"], torch.arange(3, dtype=torch.int64).to(torch.uint32))
    assert torch.equal(batch["y"].to(torch.int64), torch.arange(3))


NUMBERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64")


@pytest.mark.parametrize("dtype", [*NUMBERS, "bool"])
def test_each_dtype_arrives_in_torch_and_numpy(tmp_path, dtype):
    rows = np.array([0, 1, 1], dtype=dtype)
    np.savez(tmp_path / "rows.npz", x=rows)
    for output, expected in (("torch", torch.from_numpy(rows)), ("numpy", rows)):
        (batch,) = of_epoch(loader.Arrays(tmp_path / "rows.npz", output=output), 1)
        same(batch["x"], expected)
    # PyTorch refuses NumPy's `ulonglong`, so the array must have the type `uint64`.
    same(torch.from_numpy(batch["x"]), torch.from_numpy(rows))


def test_sequences_are_padded_and_bfloat16_arrives(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"t": [1, 2, 3], "b": 0.5}\n{"t": [4], "b": 3}\n')
    dataset = loader.JsonLines(tmp_path / "rows.jsonl", pad={"t": -1}, dtypes={"b": "bfloat16"})
    (batch,) = of_epoch(dataset, 1)
    same(batch["t"], loader.Padded(torch.tensor([[1, 2, 3], [4, -1, -1]]), torch.tensor([3, 1])))
    same(batch["b"], torch.tensor([0.5, 3], dtype=torch.bfloat16))
    (exported,) = of_epoch(
        loader.JsonLines(tmp_path / "rows.jsonl", dtypes={"b": "bfloat16"}, fields=["b"], output="dlpack"), 1
    )
    same(torch.from_dlpack(exported["b"]), batch["b"])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_parquet_rows_are_the_same_by_index_and_in_order(num_workers):
    files = TOP / "loader-data/tests/formats/fixtures/parquet"
    dataset = loader.Parquet(files / "train-*.parquet", fields=["label", "x"])
    stream = loader.ParquetStream(files / "train-*.parquet", fields=["label", "x"])
    batches = of_epoch(dataset, num_workers, batch_size=8)
    assert sum(len(batch["label"]) for batch in batches) == len(dataset) == len(stream)
    same(of_epoch(stream, num_workers, batch_size=8), batches)
    same(dataset[9]["x"], batches[1]["x"][1])


def test_mix_has_all_its_parts_and_cached_the_same_samples(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"from": "{name}", "n": {n}}}\n' for n in range(4)))
    parts = [loader.JsonLines(tmp_path / f"{name}.jsonl", index="none") for name in "ab"]
    (batch,) = of_epoch(loader.Mix([(parts[0], 0.5), (parts[1], 0.5)], num_samples=6), 1, batch_size=6)
    assert sorted(set(batch["from"])) == ["a", "b"] and len(batch["from"]) == 6
    cached = loader.Cached(parts[0], tmp_path / "cache")
    for num_workers in (1, 0):
        same(of_epoch(cached, num_workers), of_epoch(parts[0], num_workers))


class Relabelled(loader.ImageFolder):
    """Adds an attribute of its own to each label."""

    def __init__(self, root, offset):
        super().__init__(root, [transforms.CenterCrop(8)])
        self.offset = offset

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image, label + self.offset


class Reversed(loader.JsonLinesStream):
    """Gives the rows of its worker from the last to the first."""

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        if info is None:
            return iter([*super().__iter__()][::-1])
        plain = loader.dataset(**self.config)
        share = {"rank": info.id, "world_size": info.num_workers, "seed": info.seed - info.id}
        return iter([*loader.RustLoader(plain, batch_size=None, **share)][::-1])


class Slotted(Relabelled):
    """Has an attribute in a slot."""

    __slots__ = ("first",)

    def __init__(self, root, offset):
        super().__init__(root, offset)
        self.first = self.samples[0]


class Reopens(Relabelled):
    """Chooses the attributes of its pickle."""

    def __init__(self, root, offset):
        super().__init__(root, offset)
        self.handle = sys.stdout

    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items() if name != "handle"}

    def __setstate__(self, state):
        self.__dict__ = state
        self.handle = "opened again"


class Counted(loader.JsonLinesStream):
    """Knows its number of samples."""

    def __len__(self):
        return 6


class OfTorch(loader.JsonLinesStream, torch.utils.data.IterableDataset):
    """Inherits the methods of PyTorch's datasets too."""


@pytest.fixture
def rows(tmp_path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"n": {n}}}\n' for n in range(6)))
    return path


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_methods_that_a_subclass_overrides_load_the_samples(photos, rows, num_workers):
    dataset = Relabelled(photos, 100)
    expected = [label + 100 for label in loader.ImageFolder(photos).targets]
    assert torch.cat([labels for _, labels in of_epoch(dataset, num_workers)]).tolist() == expected
    subset = torch.utils.data.Subset(dataset, [12, 0])
    assert [labels.tolist() for _, labels in of_epoch(subset, num_workers)] == [[expected[12], expected[0]]]

    more = rows.with_name("more.jsonl")
    more.write_text('{"n": 6}\n{"n": 7}\n')
    found = [batch["n"].tolist() for batch in of_epoch(Reversed([rows, more]), num_workers, batch_size=8)]
    # Each of two workers has a file.
    assert found == ([[7, 6, 5, 4, 3, 2, 1, 0]] if num_workers == 0 else [[5, 4, 3, 2, 1, 0], [7, 6]])


@pytest.mark.parametrize("kind", [Counted, OfTorch])
def test_a_stream_whose_iter_is_not_overridden_is_shared_among_rust_workers(rows, kind):
    numbers = [int(row["n"]) for row in DataLoader(kind(rows), batch_size=None, num_workers=2)]
    assert sorted(numbers) == [0, 1, 2, 3, 4, 5]
    assert len(loader.Mix([(kind(rows), 1.0)]).config["parts"]) == 1


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda dataset: pickle.loads(pickle.dumps(dataset))])
def test_a_copy_of_a_subclass_has_its_attributes(photos, copied):
    for kind in (Relabelled, Slotted, Reopens):
        dataset = kind(photos, 100)
        again = copied(dataset)
        assert type(again) is kind and again.offset == 100
        same(again[12], dataset[12])
        assert of_epoch(again, 0)[0][1].tolist() == of_epoch(dataset, 0)[0][1].tolist()
    assert copied(Slotted(photos, 100)).first == Slotted(photos, 100).samples[0]
    assert copied(Reopens(photos, 100)).handle == "opened again"


@pytest.mark.parametrize("kind", [loader.ImageFolder, Relabelled, Slotted])
def test_a_pickle_leaves_out_what_the_description_gives(photos, kind):
    dataset = kind(photos) if kind is loader.ImageFolder else kind(photos, 100)
    before = pickle.dumps(dataset)
    assert dataset.samples and dataset.targets and dataset.classes and dataset.class_to_idx
    assert pickle.dumps(dataset) == before


def test_overrides_are_refused_where_no_python_code_loads(photos, rows, tmp_path):
    images, stream = Relabelled(photos, 100), Reversed(rows)
    for make in (
        lambda: loader.Mix([(stream, 1.0)]),
        lambda: loader.Cached(images, tmp_path / "cache"),
        lambda: loader.Packed(stream, 4, field="n"),
        lambda: loader.dataset("cached", dataset=images, folder=tmp_path / "cache"),
        lambda: loader.RustLoader(images),
    ):
        with pytest.raises(TypeError, match="overrides __(getitem|iter)__, which is Python code"):
            make()
    for make in (lambda: loader.RustLoader([1]), lambda: loader.Mix([([1], 1.0)]), lambda: loader.Packed([1], 4)):
        with pytest.raises(TypeError, match=r"^\[1\] is no Rust dataset.*give a dataset of `loader.datasets`"):
            make()


def test_attributes_that_would_have_no_effect_cannot_be_set(photos):
    class Named(loader.ImageFolder):
        pass

    of_images = ("samples", "targets", "imgs", "classes", "class_to_idx", "config")
    of_torchvision = ("transform", "target_transform")
    for dataset, refused, allowed in (
        (loader.ImageFolder(photos), of_images + of_torchvision + ("loader", "root", "output"), ("name", "_own")),
        (Named(photos), of_images + of_torchvision, ("loader", "root", "tokenizer")),
        (Relabelled(photos, 100), of_images, of_torchvision + ("root", "tokenizer")),
    ):
        kind = type(dataset).__name__
        for name in refused:
            with pytest.raises(AttributeError, match=f"'{name}' of {kind} cannot be set.*make another dataset"):
                setattr(dataset, name, [])
        for name in allowed:
            setattr(dataset, name, "set")
            assert getattr(copy.copy(dataset), name) == "set"
        assert len(dataset.samples) == len(copy.copy(dataset).samples) == 13


@pytest.mark.parametrize("name", ["find_classes", "make_dataset"])
def test_methods_by_which_torchvision_lists_images_are_refused(name):
    with pytest.raises(TypeError, match=f"Lists has the method {name}.*torch.utils.data.Subset"):
        type("Lists", (loader.ImageFolder,), {name: lambda *arguments: None})


@pytest.mark.parametrize("of", [DataLoader, torch.utils.data.DataLoader])
def test_a_stream_in_one_of_several_workers_says_how_to_share_it(rows, of):
    class Inside(torch.utils.data.IterableDataset):
        def __init__(self, reads):
            self.stream, self.reads = loader.Mix([(loader.JsonLines(rows), 1.0)], shuffle=True), reads

        def __iter__(self):
            if self.reads == "the stream":
                return iter(self.stream)
            if self.reads != "the same loader" or not hasattr(self, "loader"):
                info = torch.utils.data.get_worker_info()
                share = {"rank": info.id, "world_size": info.num_workers} if self.reads != "all" else {}
                seed = info.seed - info.id
                self.loader = loader.RustLoader(self.stream, batch_size=None, seed=seed, **share)
            return iter(self.loader)

    def epochs(reads, num_workers):
        batches = of(Inside(reads), batch_size=None, num_workers=num_workers, persistent_workers=True)
        return [[int(row["n"]) for row in batches] for _ in range(2)]

    torch.manual_seed(5)
    with pytest.raises(RuntimeError, match="each of the 2 workers would read all.*If the program.*None, seed=info.seed - info"):
        epochs("the stream", 2)
    everything = [0, 1, 2, 3, 4, 5]
    for epoch in epochs("the stream", 1):
        assert sorted(epoch) == everything
    first, second = epochs("the same loader", 2)
    assert sorted(first) == sorted(second) == everything and first != second
    for epoch in epochs("the same loader", 8):
        assert sorted(epoch) == everything, "two workers have no rows"
    # A new loader in each epoch gives the first epoch again, because persistent workers keep their seed.
    first, second = epochs("a new loader", 2)
    assert sorted(first) == everything and first == second
    first, _ = epochs("all", 2)
    assert sorted(first) == sorted(everything * 2)
    assert first[::2] == first[1::2]


def test_a_rust_loader_imports_no_pytorch(photos):
    """NumPy only: the process imports no torch."""
    script = f"""
import sys, loader
from loader import transforms
dataset = loader.ImageFolder({str(photos)!r}, [transforms.CenterCrop(8)], output="numpy")
batches = loader.RustLoader(dataset, batch_size=4, shuffle=True, seed=3, num_workers=1)
assert len(batches) == 4
found = [(images.shape, labels.tolist()) for images, labels in batches]
assert [shape for shape, _ in found] == [(4, 3, 8, 8)] * 3 + [(1, 3, 8, 8)]
again = loader.RustLoader(dataset, batch_size=4, shuffle=True, seed=3)
rows = iter(again)
next(rows)
state = again.state_dict()
again.load_state_dict(state)
assert [labels.tolist() for _, labels in again] == [labels for _, labels in found[1:]]
assert again.state_dict()["epoch"] == 1
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_config_gives_the_samples_of_the_command(photos, tmp_path):
    (tmp_path / "run.toml").write_text(
        f"[dataset]\nkind = 'image-folder'\npath = '{photos}'\nsize = 16\n"
        "[loader]\nbatch_size = 5\nshuffle = true\nseed = 9\nnum_workers = 2\ndigest = true\n"
    )
    from_config = loader.from_config(tmp_path / "run.toml")
    orders = [[labels.tolist() for _, labels in from_config] for _ in range(2)]
    assert orders[0] != orders[1] and sorted(sum(orders[0], [])) == sorted(from_config.dataset.targets)
    programs = [Path(folder) / "debug/loader" for folder in (os.environ.get("CARGO_TARGET_DIR", ""), TOP / "target")]
    program = next((program for program in programs if program.exists()), None)
    if program is None:
        pytest.skip("SKIPPED: the command `loader` is not built, so its digest is not compared")
    command = [program, "run", tmp_path / "run.toml", "--epochs", "2", "--json"]
    events = [json.loads(line) for line in subprocess.run(command, check=True, capture_output=True).stdout.splitlines()]
    theirs = [event["sample_digest"] for event in events if event["event"] == "epoch"]
    assert json.loads(from_config.state_dict()["engine"])["digest_before"]["sum"] == theirs[-1]


@pytest.mark.parametrize("kind", sorted(CLASSES))
def test_constructors_have_the_options_of_their_kinds(kind):
    schema = json.loads((TOP / "docs/loader.schema.json").read_text())
    kinds = {of["properties"]["kind"]["const"]: of["properties"] for of in schema["definitions"]["Dataset"]["anyOf"]}
    assert set(CLASSES) == {*kinds, "image-folder"} == set(loader._native.RustDataset.kinds)
    if kind in ("image-folder", "mix", "cached"):
        return
    constructor = CLASSES[kind].__init__.__annotations__
    (unpacked,) = [hint.__args__[0] for name, hint in constructor.items() if name == "options"]
    own = {name for name in constructor if name not in ("options", "output", "return")}
    assert {*unpacked.__annotations__, *own, "kind"} == set(kinds[kind])


def test_unknown_options_kinds_and_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match="unknown field `batch`, expected one of `path`"):
        loader.Parquet(tmp_path, batch=3)
    with pytest.raises(ValueError, match="unknown variant `parket`, expected one of `image-folder`"):
        loader.dataset("parket", path=tmp_path)
    with pytest.raises(FileNotFoundError, match="rows.csv"):
        loader.Csv(tmp_path / "rows.csv")


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("of", [loader.JsonLines, loader.JsonLinesStream])
def test_set_epoch_keeps_the_state_of_its_epoch(rows, of, num_workers):
    def make():
        options = {"shuffle": of is loader.JsonLines, "seed": 5, "num_workers": num_workers}
        return loader.RustLoader(of(rows, output="numpy"), batch_size=2, **options)

    def numbers(batches):
        return [batch["n"].tolist() for batch in batches]

    def epochs_from(number):
        found = []
        for epoch in range(number, 4):
            resumed.set_epoch(epoch)
            found.append(numbers(resumed))
        return found

    first, resumed = make(), make()
    whole = [numbers(first) for _ in range(4)]
    first.set_epoch(2)
    batches = iter(first)
    next(batches)
    resumed.load_state_dict(first.state_dict())
    assert epochs_from(2) == [whole[2][1:], whole[3]]
    # After the last batch, before the end of the iterator, nothing is left of the epoch.
    for _ in whole[2][1:]:
        next(batches)
    state = first.state_dict()
    resumed.load_state_dict(state)
    assert epochs_from(state["epoch"]) == [[], whole[3]]
    # A state of another epoch is dropped.
    resumed.load_state_dict(state)
    resumed.set_epoch(1)
    again = make()
    again.load_state_dict(resumed.state_dict())
    assert numbers(again) == numbers(resumed) == whole[1]
    assert again.state_dict()["epoch"] == 2
    for no_state in ({}, {"of": "another loader"}, state | {"engine": "{}"}):
        with pytest.raises(ValueError, match="no state of a loader|cannot be used: missing field"):
            again.load_state_dict(no_state)
    damaged = [state | {"engine": state["engine"].replace('"epoch":2', '"epoch":1')}, {"engine": state["engine"]}]
    damaged += [state | {"epoch": epoch} for epoch in (1, 3, -1, None, "2")]
    for each in damaged:
        with pytest.raises(ValueError, match="damaged or edited"):
            again.load_state_dict(each)


def test_a_rust_loader_ends_the_workers_of_an_iterator_that_is_left(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("number\n" + "".join(f"{number}\n" for number in range(100)))
    rows = loader.RustLoader(loader.Csv(path, output="numpy"), batch_size=2, num_workers=1)
    before = processes.children().keys()
    for _ in rows:
        assert len(processes.children().keys() - before) == 1
        break
    gone = processes.wait_until(lambda: processes.children().keys() == before, 5)
    assert gone, "the worker of the iterator that was left stays"
    # The state is that of the iterator that was left.
    state = rows.state_dict()
    rows.load_state_dict(state)
    assert [int(batch["number"][0]) for batch in rows] == list(range(2, 100, 2))
    assert rows.state_dict()["epoch"] == 1


#: A process of its own has JAX: JAX warns of each fork of its process, and PyTorch's loaders in other tests fork theirs.
WITH_JAX = """
import gc, sys
import jax, numpy as np
import loader

path, num_workers = sys.argv[1], int(sys.argv[2])
rows = loader.Csv(path, output="dlpack", dtypes={"number": "float32"})
kept = []
for batch in loader.RustLoader(rows, batch_size=40, num_workers=num_workers):
    array = batch["number"]
    kept.append(jax.dlpack.from_dlpack(array))
    assert kept[-1].unsafe_buffer_pointer() == np.frombuffer(array, np.float32).ctypes.data, "JAX has a copy"
del array, batch
gc.collect()
# No slot was used again while JAX has its array.
assert [int(array[0]) for array in kept] == list(range(0, 4000, 40))
assert float(sum(array.sum() for array in kept)) == sum(range(4000))
print("shared")
"""


@pytest.mark.parametrize("num_workers", [0, 1])
def test_jax_shares_the_memory_of_a_batch_and_keeps_it(num_workers, tmp_path):
    if importlib.util.find_spec("jax") is None:
        pytest.skip("SKIPPED: JAX is not installed")
    path = tmp_path / "rows.csv"
    path.write_text("number\n" + "".join(f"{number}\n" for number in range(4000)))
    assert processes.run("-c", WITH_JAX, path, num_workers) == "shared\n"
