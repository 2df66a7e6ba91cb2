"""Trains a small convolutional network on photographs, with torchvision and PyTorch's loader, or with this package.

    pip install ./loader-python torch torchvision
    python loader-python/examples/train_photos.py                      # pictures of clouds
    python loader-python/examples/train_photos.py FOLDER --workers 4   # one sub-folder for each class
    python loader-python/examples/train_photos.py FOLDER --workers 4 --package torch

Only the two imports differ. The last line of the output is JSON with the images per second of loading alone, and of
loading and training together.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torchvision import models
from torchvision.io import write_jpeg
from torchvision.transforms import v2

SIZE = 224
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def imports(package):
    if package == "torch":
        from torch.utils.data import DataLoader
        from torchvision.datasets import ImageFolder
    else:
        from loader import DataLoader, ImageFolder
    return DataLoader, ImageFolder


def loader_of(package, folder, batch_size, workers):
    DataLoader, ImageFolder = imports(package)
    steps = [
        v2.RandomResizedCrop(SIZE),
        v2.RandomHorizontalFlip(),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
    ]
    train = ImageFolder(folder, v2.Compose(steps))
    generator = torch.Generator().manual_seed(7)
    return DataLoader(train, batch_size, shuffle=True, num_workers=workers, drop_last=True, generator=generator)


def network(name, classes):
    torch.manual_seed(1)
    if name == "resnet18":
        return models.resnet18(num_classes=classes)
    layers = []
    for inside, outside in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inside, outside, 3, stride=4, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def rate_of_loading(loader):
    """Returns the images per second of an epoch without training."""
    started = time.perf_counter()
    images = sum(len(labels) for _, labels in loader)
    return images / (time.perf_counter() - started)


def train_epoch(loader, net, optimizer, device):
    """Returns the mean loss, and the images per second of loading and training together."""
    started, images, losses = time.perf_counter(), 0, []
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(net(inputs.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        images += len(labels)
        losses.append(loss.item())
    return sum(losses) / len(losses), images / (time.perf_counter() - started)


def make_photos(folder, count=128, classes=4):
    """Writes JPEGs of clouds. Each class has a colour of its own, which the network can learn."""
    generator = torch.Generator().manual_seed(3)
    colours = torch.randint(0, 128, (classes, 3, 1, 1), generator=generator)
    for number in range(count):
        target = Path(folder, f"class-{number % classes}")
        target.mkdir(exist_ok=True)
        clouds = nn.functional.interpolate(128 * torch.rand(1, 3, 24, 32, generator=generator), (375, 500), mode="bilinear")
        pixels = clouds[0] + colours[number % classes]
        write_jpeg(pixels.to(torch.uint8), str(target / f"{number:04}.jpg"))


def run(folder, options):
    loader = loader_of(options.package, folder, options.batch_size, options.workers)
    if len(loader) == 0:
        raise SystemExit(f"{folder} has fewer images than a batch of {options.batch_size}")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = network(options.network, len(loader.dataset.classes)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    alone, trained, losses = [], [], []
    for epoch in range(options.epochs):
        alone.append(rate_of_loading(loader))
        loss, rate = train_epoch(loader, net, optimizer, device)
        trained.append(rate)
        losses.append(loss)
        print(f"epoch {epoch}: loss {loss:.3f}, {rate:.0f} images/s; loading alone {alone[-1]:.0f} images/s", flush=True)
    # The first epoch begins with cold caches.
    last = {"loading_images_per_second": alone[-1], "training_images_per_second": trained[-1]}
    print(json.dumps({"package": options.package, **last, "losses": losses}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", help="photographs in one sub-folder for each class; by default, pictures of clouds")
    parser.add_argument("--package", choices=["loader", "torch"], default="loader")
    parser.add_argument("--network", choices=["small", "resnet18"], default="small")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    if options.folder is not None:
        return run(options.folder, options)
    with tempfile.TemporaryDirectory() as folder:
        make_photos(folder)
        run(folder, options)


if __name__ == "__main__":
    main()
