"""The sides that take part: this loader and its peers, what each needs, and how to run it."""

import dataclasses
import json
import pathlib
import subprocess
import sys

from side_by_side.cases import DECODER, OURS, RUST, Case

HERE = pathlib.Path(__file__).resolve().parents[1]  # commands run in this folder, so paths in the results are relative
VENV = HERE / ".venv"
RUST_PEER = "peers/dataloader-rs"


@dataclasses.dataclass
class Side:
    """A loader: its name, and the command that takes a workload and its options."""

    name: str
    title: str
    command: list[str] = dataclasses.field(default_factory=list)
    options: list[str] = dataclasses.field(default_factory=list)
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    general: bool = True  # False: takes part only in cases that name it
    counted: str | None = None  # the program that counts allocations
    programs: dict[str, list[str]] = dataclasses.field(default_factory=dict)  # this loader's command in the program of each framework

    def takes_part(self, case: Case) -> bool:
        return self.general if case.sides is None else self.name in case.sides

    def of(self, case: Case) -> list[str]:
        """Returns the command for a case."""
        program = [self.counted] if case.counted and self.counted else self.command
        program = self.programs.get(case.program, program)
        further = case.ours if self.name in (OURS, DECODER) else case.peers
        return [*program, case.command or case.workload, *case.options, *further, *self.options]


@dataclasses.dataclass
class PythonPeer:
    """A peer in Python, which may or may not be installed."""

    name: str
    title: str
    script: str
    modules: list[str]
    packages: list[str]
    options: list[str] = dataclasses.field(default_factory=list)
    general: bool = True


# PyTorch does not decode images itself: one side uses torchvision, another one Pillow.
PYTHON_PEERS = [
    PythonPeer("pytorch", "PyTorch", "peers/pytorch.py", ["torch", "numpy"], ["torch"]),
    PythonPeer(
        "torchvision",
        "PyTorch + torchvision",
        "peers/pytorch.py",
        ["torch", "torchvision"],
        ["torchvision"],
        ["--pipeline", "torchvision"],
        general=False,
    ),
    PythonPeer(
        "memmap",
        "PyTorch, scaled images in a memory map",
        "peers/pytorch.py",
        ["torch", "torchvision"],
        ["torchvision"],
        ["--pipeline", "memmap"],
        general=False,
    ),
    PythonPeer(
        "pillow",
        "PyTorch + Pillow",
        "peers/pytorch.py",
        ["torch", "torchvision", "PIL"],
        ["pillow"],
        ["--pipeline", "pillow"],
        general=False,
    ),
    PythonPeer(
        "python-rust",
        "this loader from Python",
        "peers/pytorch.py",
        ["loader", "torch"],
        ["torch"],
        ["--package", "loader", "--pipeline", "rust"],
        general=False,
    ),
    PythonPeer(
        "pytorch-batches",
        "PyTorch, whole batches",
        "peers/pytorch.py",
        ["torch", "pyarrow"],
        ["pyarrow"],
        ["--whole-batches"],
        general=False,
    ),
    PythonPeer("hf", "HF datasets", "peers/hf_datasets.py", ["datasets", "torch"], ["datasets"], general=False),
    PythonPeer("webdataset", "webdataset", "peers/webdataset_loader.py", ["webdataset"], ["webdataset"], general=False),
    PythonPeer("grain", "Grain", "peers/grain_loader.py", ["grain"], ["grain"]),
    PythonPeer("tf.data", "tf.data", "peers/tf_data.py", ["tensorflow"], ["tensorflow-cpu"]),
    PythonPeer("spdl", "SPDL", "peers/spdl_loader.py", ["spdl.pipeline"], ["spdl"]),
]
# In the order of the tables.
TITLES = {OURS: "this loader", RUST: "this loader in Rust", DECODER: "the decoder alone"} | {peer.name: peer.title for peer in PYTHON_PEERS} | {"dataloader-rs": "dataloader-rs", "burn": "burn", "loop": "a loop", "thread": "a thread and a channel", "threads": "as many threads as workers"}
# A program of each framework, in which this loader runs beside its peers: the package, the peers, options of the build.
FRAMEWORKS = {
    "burn": ("burn-core", ["burn"], ["--features", "vision"]),
    "candle": ("candle-core", ["loop", "thread", "threads"], []),
}
# Each list is installed by a separate call, so that a peer without a build for this machine does not stop the others.
INSTALLED = [["torch==2.15.0", "torchvision", "torchdata", "pillow", "numpy"], ["pyarrow", "datasets", "webdataset"], ["grain"], ["tensorflow-cpu"], ["spdl"]]


def install() -> None:
    subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    for packages in INSTALLED:
        done = subprocess.run([VENV / "bin/python", "-m", "pip", "install", "--quiet", *packages])
        if done.returncode != 0:
            print(f"{', '.join(packages)}: not installed", file=sys.stderr)


def find(python: pathlib.Path, cases: list[Case]) -> tuple[list[Side], dict[str, str]]:
    """Returns the sides that can take part in the cases, this loader first, and the reasons why other sides cannot."""
    general = {"dataloader-rs"} | {peer.name for peer in PYTHON_PEERS if peer.general}
    wanted = {name for case in cases for name in (general if case.sides is None else case.sides)}
    sides, missing = [ours(cases)], {}
    for peer in PYTHON_PEERS:
        if peer.name not in wanted:
            continue
        try:
            sides.append(python_side(python, peer))
        except Missing as reason:
            missing[peer.title] = str(reason)
    if "dataloader-rs" in wanted:
        try:
            sides.append(rust_side())
        except Missing as reason:
            missing["dataloader-rs"] = str(reason)
    for framework, (package, peers, options) in FRAMEWORKS.items():
        if not wanted.isdisjoint(peers):
            try:
                program, version = rust_peer(f"peers/{framework}", f"{framework}-bench", package, options)
            except Missing as reason:
                missing[framework] = str(reason)
                continue
            sides[0].programs[framework] = [program, "--loader", "ours"]
            versions = {framework: version}
            sides += [Side(peer, TITLES[peer], [program, "--loader", peer], [], versions, general=False) for peer in peers]
    if DECODER in wanted:
        sides.append(Side(DECODER, TITLES[DECODER], sides[0].command, ["--decoder"], general=False))
    if RUST in wanted:
        sides.append(Side(RUST, TITLES[RUST], sides[0].command, general=False))
    if any(case.program == "python" for case in cases):
        peer = next(peer for peer in PYTHON_PEERS if peer.name == "pytorch")
        package = dataclasses.replace(peer, modules=["loader", "torch"], packages=[])
        try:
            sides[0].programs["python"] = [*python_side(python, package).command, "--package", "loader"]
        except Missing as reason:
            missing["python"] = str(reason)
    return sides, missing


class Missing(Exception):
    """Why a peer cannot take part."""


def ours(cases: list[Case]) -> Side:
    if all(case.program and RUST not in (case.sides or ()) for case in cases):
        return Side(OURS, TITLES[OURS])
    names = ["loader-bench", "loader-bench-counted"] if any(case.counted for case in cases) else ["loader-bench"]
    bins = [option for name in names for option in ("--bin", name)]
    built = build(["--package", "loader-benchmarks", "--features", "formats", *bins])
    return Side(OURS, TITLES[OURS], [built["loader-bench"]], counted=built.get("loader-bench-counted"))


def python_side(python: pathlib.Path, peer: PythonPeer) -> Side:
    if not (HERE / peer.script).exists():
        raise Missing(f"no {peer.script}")
    code = f"import importlib.metadata as installed, json, platform, {', '.join(peer.modules)}\n"
    code += f"versions = {{name: installed.version(name) for name in {peer.packages}}}\n"
    code += "print(json.dumps({**versions, 'python': platform.python_version()}))"
    try:
        found = subprocess.run([python, "-c", code], capture_output=True, text=True)
    except OSError as error:
        raise Missing(str(error)) from error
    if found.returncode != 0:
        raise Missing(last_line(found.stderr))
    # Suppresses PyTorch's warning about more workers than processors, which is intended here.
    command = [str(python), "-W", "ignore", peer.script]
    versions = json.loads(found.stdout.splitlines()[-1])
    return Side(peer.name, peer.title, command, peer.options, versions, peer.general)


def rust_side() -> Side:
    program, version = rust_peer(RUST_PEER, "dataloader-rs-bench", "dataloader-rs")
    return Side("dataloader-rs", TITLES["dataloader-rs"], [program], versions={"dataloader-rs": version})


def rust_peer(folder: str, program: str, package: str, further: list[str] | None = None) -> tuple[str, str]:
    """Builds a peer in Rust, and returns its program and the version of the package that it measures."""
    manifest = f"{folder}/Cargo.toml"
    if not (HERE / manifest).exists():
        raise Missing(f"no {manifest}")
    try:
        # This peer is a separate workspace, because its dependencies are not those of the project.
        built = build(["--manifest-path", manifest, "--target-dir", f"{folder}/target", *(further or [])])
    except subprocess.CalledProcessError as error:
        raise Missing(str(error)) from error
    return str(pathlib.Path(built[program]).relative_to(HERE)), locked_version(HERE / folder / "Cargo.lock", package)


def build(options: list[str]) -> dict[str, str]:
    """Builds programs and returns their paths by name."""
    command = ["cargo", "build", "--release", "--message-format", "json", *options]
    built = subprocess.run(command, cwd=HERE, stdout=subprocess.PIPE, text=True, check=True)
    messages = [json.loads(text) for text in built.stdout.splitlines()]
    return {
        message["target"]["name"]: message["executable"]
        for message in messages
        if message.get("reason") == "compiler-artifact" and message.get("executable")
    }


def locked_version(lock: pathlib.Path, package: str) -> str:
    lines = lock.read_text().splitlines()
    for name, version in zip(lines, lines[1:]):
        if name.replace("_", "-") == f'name = "{package}"':
            return version.partition('"')[2].rstrip('"')
    return "unknown"


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no message"
