"""Lightning's trainer with this loader. This file is also the program of a rank."""

import json
import os
import sys
import warnings

import processes
import pytest
import torch
import torch.utils.data
from torch_datasets import Rows, Stream

import loader
from loader import DataLoader

lightning = pytest.importorskip("lightning.pytorch", reason="SKIPPED: lightning is not installed")

SAMPLES, BATCHES = 40, 10


class Model(lightning.LightningModule):
    """Notes the numbers of each batch, and saves a checkpoint after a number of steps."""

    def __init__(self, save_after=None, path=None):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen, self.save_after, self.path = [], save_after, path

    def training_step(self, batch, _number):
        numbers = batch if isinstance(batch, torch.Tensor) else batch["number"]
        self.seen.append(numbers.flatten(1)[:, 0].tolist() if numbers.dim() > 1 else numbers.tolist())
        return self.layer(torch.ones(1, 1)).sum()

    def on_train_batch_end(self, *_arguments):
        if self.global_step == self.save_after:
            self.trainer.save_checkpoint(self.path)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def trainer(folder, **arguments):
    arguments = {"max_epochs": 2, "accelerator": "cpu", "devices": 1} | arguments
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return lightning.Trainer(default_root_dir=folder, **quiet, **arguments)


def seen_with(loader_class, folder, **arguments):
    """Returns the numbers of the batches of a training run."""
    torch.manual_seed(5)
    model = Model()
    trainer(folder).fit(model, loader_class(Rows(SAMPLES), batch_size=4, shuffle=True, **arguments))
    return model.seen


WORKERS = {
    "in main": {},
    "workers": {"num_workers": 2},
    "persistent workers": {"num_workers": 2, "persistent_workers": True},
}


@pytest.mark.parametrize("how", WORKERS)
def test_a_trainer_sees_the_batches_that_pytorchs_loader_gives(how, tmp_path):
    found = seen_with(DataLoader, tmp_path, **WORKERS[how])
    assert found == seen_with(torch.utils.data.DataLoader, tmp_path, **WORKERS[how])
    assert len(found) == 2 * BATCHES


def checkpointed(make, folder, save_after):
    """Trains, and trains again from the checkpoint. Returns the batches of the first run, and of the second."""
    path = folder / "checkpoint.ckpt"
    torch.manual_seed(5)
    first, second = Model(save_after, path), Model()
    trainer(folder).fit(first, make())
    torch.manual_seed(99)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer(folder).fit(second, make(), ckpt_path=path)
    assert not [text for one in caught if "not resumable" in (text := str(one.message))]
    return first.seen, second.seen


@pytest.mark.parametrize("save_after", [3, 13])
@pytest.mark.parametrize("how", WORKERS)
def test_a_checkpoint_in_mid_epoch_has_the_state_of_the_loader(how, save_after, tmp_path):
    def make():
        return DataLoader(Rows(SAMPLES), batch_size=4, shuffle=True, **WORKERS[how])

    first, second = checkpointed(make, tmp_path, save_after)
    end = -(-save_after // BATCHES) * BATCHES
    assert second[: end - save_after] == first[save_after:end]
    assert len(second) == 2 * BATCHES - save_after


def test_a_stream_with_a_length_resumes(tmp_path):
    def make():
        return DataLoader(Stream((20, 20), length=SAMPLES), batch_size=4, num_workers=2)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*__len__.*")
        first, second = checkpointed(make, tmp_path, 3)
    assert second == first[3:]


def test_a_rust_loader_is_a_loader_of_a_trainer(tmp_path):
    rows = rows_in(tmp_path)

    def make():
        return loader.RustLoader(rows, batch_size=4, shuffle=True, seed=3, num_workers=2)

    first, second = checkpointed(make, tmp_path, 13)
    assert second == first[13:]
    assert sorted(sum(first[:BATCHES], [])) == list(range(SAMPLES))


def rows_in(folder):
    path = folder / "rows.csv"
    if not path.exists():
        path.write_text("number\n" + "".join(f"{number}\n" for number in range(SAMPLES)))
    return loader.Csv(path)


def main(folder):
    """A rank. Lightning makes each loader again, with a sampler of its own."""
    rank = int(os.environ["RANK"])
    found = {}
    for name, dataset in {"python": Rows(SAMPLES), "rust": loader.Csv(f"{folder}/rows.csv")}.items():
        made = DataLoader(
            dataset,
            batch_size=4,
            shuffle=True,
            num_workers=2,
            persistent_workers=True,
            seed_samples=True,
            max_bad_samples=3,
        )
        model = Model()
        runner = trainer(folder, devices=2, strategy="ddp")
        runner.fit(model, made)
        used = runner.train_dataloader
        assert type(used) is DataLoader and used is not made
        assert type(used.sampler) is torch.utils.data.DistributedSampler
        kept = {
            option: getattr(used, option)
            for option in ("seed_samples", "move_tasks", "max_bad_samples", "persistent_workers")
        }
        found[name] = {"seen": model.seen, "options": kept}
    with open(f"{folder}/rank-{rank}.json", "w") as file:
        json.dump(found, file)


def test_a_loader_that_lightning_makes_again_for_ranks_keeps_its_options(tmp_path):
    rows_in(tmp_path)
    processes.run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, __file__, tmp_path)
    of_ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    for name in ("python", "rust"):
        for epoch in range(2):
            of_epoch = [found[name]["seen"][5 * epoch : 5 * epoch + 5] for found in of_ranks]
            assert sorted(sum(of_epoch[0] + of_epoch[1], [])) == list(range(SAMPLES))
        for found in of_ranks:
            assert len(found[name]["seen"]) == 10
            options = {"seed_samples": True, "move_tasks": True, "max_bad_samples": 3, "persistent_workers": True}
            assert found[name]["options"] == options


if __name__ == "__main__":
    main(sys.argv[1])
