"""The exported folder: its text, its weights, what is refused, and the verb."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from support.cpp import (  # noqa: E402
    CppRuntime,
    assert_close,
    cpp_runtime,  # noqa: F401
    outputs_in_cpp,
    outputs_in_torch,
    translate_module,
)
from torch import nn  # noqa: E402

from nnstretch.cli import main  # noqa: E402
from nnstretch.errors import BadInput, UnsupportedOp  # noqa: E402
from nnstretch.export.cpp.memory import plan_arena  # noqa: E402
from nnstretch.export.cpp.project import write_project  # noqa: E402
from nnstretch.export.cpp.source import write_source  # noqa: E402


class Residual(nn.Module):
    """A block whose sum and activation belong into a convolution, and a join."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.side = nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the block."""
        x = torch.relu(self.norm(self.first(x)))
        y = torch.relu(self.second(x) + x)
        return torch.cat((y, self.side(y)), 1)


GOLDEN = """\
  const View input = net.input("x", {1, 3, 8, 8});
  const View cat = net.output("cat", {1, 12, 8, 8});

  net.begin_task("first");
  // first: Conv2d, 1x3x8x8 -> 1x8x8x8, 13,824 MACs
  const View conv2d = Network::arena(0, {1, 8, 8, 8});
  {
    Conv2d operation;
    operation.stride = {1, 1};
    operation.padding = {1, 1, 1, 1};
    operation.activation = {Function::relu, 0.0F, 0.0F};
    net.call("first", operation,
             {input,
              net.weight("first.weight.folded", {8, 3, 3, 3}),
              net.weight("first.weight.shift", {8})},
             conv2d);
  }

  net.begin_task("second");
  // second: Conv2d, 1x8x8x8, 1x8x8x8 -> 1x8x8x8, 37,376 MACs
  {
    Conv2d operation;
    operation.stride = {1, 1};
    operation.padding = {1, 1, 1, 1};
    operation.activation = {Function::relu, 0.0F, 0.0F};
    net.call("second", operation,
             {conv2d,
              net.weight("second.weight", {8, 8, 3, 3}),
              net.weight("second.bias", {8}),
              conv2d},
             Network::view(cat, 0, {1, 8, 8, 8}, {512, 64, 8, 1}));
  }
"""


def test_text_is_readable_with_sums_activations_and_joins_inside_the_layers() -> None:
    program = translate_module(Residual(), torch.zeros(1, 3, 8, 8))
    _, source, _ = write_source(program, plan_arena(program.groups))
    body = source[source.index("  const View") :]
    assert (
        body.replace("const View x ", "const View input ")
        .replace("{x,", "{input,")
        .startswith(GOLDEN)
    ), body
    assert [call.operation for call in program.calls] == ["Conv2d"] * 3


def test_missing_operators_are_named_all_at_once_with_counts_and_places() -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cumsum(torch.sort(x)[0], 1) + torch.cumsum(x, 1)

    with pytest.raises(UnsupportedOp, match=r"sort.*cumsum \(2 times, in cumsum, cumsum_1\)"):
        translate_module(Odd(), torch.zeros(2, 3))


def test_a_second_export_changes_no_byte_and_other_folders_are_refused(tmp_path: Path) -> None:
    program = translate_module(Residual(), torch.zeros(1, 3, 8, 8))
    folder = tmp_path / "net"
    write_project(program, folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    (folder / "build").mkdir()
    write_project(program, folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    kept = [folder / name for name in ("build/run", "example/photo.npy", "runtime/src/mine.txt")]
    stale = [folder / name for name in ("example/input1.npy", "runtime/src/kernels/old.cpp")]
    for path in (*kept, *stale):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    write_project(program, folder)
    after = {path for path in folder.rglob("*") if path.is_file()}
    assert after == before.keys() | set(kept)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    with pytest.raises(BadInput, match="holds something else"):
        write_project(program, other)
    assert [path.name for path in other.iterdir()] == ["thesis.txt"]


KEYWORDS = """
    alignas alignof and_eq asm bitand bitor char16_t char32_t compl const_cast decltype dynamic_cast
    explicit export noexcept not_eq nullptr or_eq reinterpret_cast static_assert static_cast
    thread_local typeid typename union virtual wchar_t xor_eq
"""
TEXT_NAMES = """
    Conv2d Scalar Binary Copy Numbers Arithmetic Reduction Interpolation Pooling Function View NAN
    HUGE_VALF INFINITY NULL EOF errno linux unix kFingerprint kArenaFloats int64_t index y1
"""


class Named(nn.Module):
    """A layer by a name that no comment of C++ can hold, after inputs by words of C++."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(
            {
                "two\nint lines\\": nn.Linear(3, 4),
                "*/ ??/": nn.Linear(3, 4),
                "größe": nn.Linear(3, 4),
            }
        )

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Add what every layer makes of every input."""
        return torch.stack([m(x * 2) for x in tensors for m in self.layers.values()]).sum(0)


def forward_of(names: Sequence[str]) -> Callable[..., torch.Tensor]:
    """Return a `forward` whose inputs have these names."""
    words = ", ".join(names)
    scope: dict[str, object] = {"base": Named}
    exec(f"def forward(self, {words}):\n  return base.forward(self, {words})", scope)
    return cast(Callable[..., torch.Tensor], scope["forward"])


@pytest.mark.slow
def test_inputs_and_layers_by_any_name_are_text_that_compiles(
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    for words in (KEYWORDS, TEXT_NAMES):
        names = words.split()
        module = type("Words", (Named,), {"forward": forward_of(names)})()
        inputs = [torch.randn(2, 3) for _ in names]
        computed = outputs_in_cpp(cpp_runtime, module, inputs, tmp_path)
        assert_close(computed, outputs_in_torch(module, inputs))


@pytest.fixture(scope="module")
def built(cpp_runtime: CppRuntime, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """Build a small network."""
    torch.manual_seed(0)
    module = Residual()
    folder = tmp_path_factory.mktemp("residual") / "net"
    write_project(translate_module(module, torch.zeros(1, 3, 8, 8)), folder)
    cpp_runtime.build(folder)
    x = torch.randn(1, 3, 8, 8)
    np.save(folder / "x.npy", x.numpy())
    np.save(folder / "y.npy", outputs_in_torch(module, [x])[0])
    return folder


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the built network."""
    command = [str(folder / "build" / "run"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


POLICIES = [
    "rr",
    "met",
    "eft",
    "etf",
    "heft_rt",
    "mct",
    "olb",
    "min_min",
    "least_slack",
    "least_slack_drop",
    "planned",
]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("elements", ["cpu,emulated:dsp", "cpu,cpu,emulated:dsp", "cpu,cpu,cpu"])
def test_every_policy_and_pool_gives_the_same_bits(
    built: Path, tmp_path: Path, policy: str, elements: str
) -> None:
    alone, shared = tmp_path / "alone.npy", tmp_path / "shared.npy"
    x, portable = str(built / "x.npy"), ("--kernels", "portable")
    assert run(built, "--input", x, "--output", str(alone), *portable).returncode == 0
    several = ("--elements", elements, "--repeat", "40", "--places", "7", *portable)
    costs = tmp_path / "costs.json"
    assert run(built, "--profile", str(costs)).returncode == 0
    table = json.loads(costs.read_text())
    for row in table["costs_us"].values():
        row["dsp"] = 50.0
    costs.write_text(json.dumps(table))
    done = run(
        built,
        *("--input", x, "--output", str(shared), "--policy", policy, "--costs", str(costs)),
        *(*several, "--trace", str(tmp_path / "t.json"), "--json"),
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(shared), np.load(alone))
    np.testing.assert_allclose(np.load(alone), np.load(built / "y.npy"), atol=1e-5)
    spans = [e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if "dur" in e]
    assert len(spans) == 3 * 40
    result = json.loads(done.stdout)
    assert result["inferences"] == 40
    assert result["too_late"] == 0


def test_measured_tasks_are_a_workload_of_simulate(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = tmp_path / "graph.json"
    done = run(built, "--elements", "cpu,cpu", "--graph", str(graph))
    assert done.returncode == 0, done.stderr
    costs = json.loads(graph.read_text())["cost"]
    assert list(costs) == ["first", "second", "side"]
    assert all(set(row) == {"cpu0", "cpu1"} and row["cpu0"] > 0 for row in costs.values())
    workload = tmp_path / "workload.yaml"
    workload.write_text(
        "applications:\n- {name: net, model: graph.json, arrivals: {period_ms: 1}, instances: 20}\n"
    )
    assert main(["simulate", str(workload), "--policy", "eft", "--json"]) == 0
    (application,) = json.loads(capsys.readouterr().out)["apps"]
    alone_us = sum(row["cpu0"] for row in costs.values())
    assert application["latency_ms"]["p50"] == pytest.approx(alone_us / 1000, rel=0.01)


def test_measured_times_and_their_spread_are_costs_of_simulate(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = tmp_path / "times.json"
    for words in (("--graph", str(tmp_path / "graph.json")), ("--measure", str(times))):
        done = run(built, "--elements", "cpu,cpu", *words)
        assert done.returncode == 0, done.stderr
    table = json.loads(times.read_text())
    assert {(row["task"], row["processor"]) for row in table["tasks"]} == {
        (task, cpu) for task in ("first", "second", "side") for cpu in ("cpu0", "cpu1")
    }
    assert table["handover_us"] <= table["wake_us"]
    for row in table["tasks"]:
        assert len(row["samples_us"]) > 20
        assert row["samples_us"] == sorted(row["samples_us"])
        assert min(row["beside"], row["switched"], row["crowded"]) > 0
    assert (table["few_under_way"], table["many_under_way"]) == (3, 16)
    assert all(0.1 <= factor <= 1000 for factor in table["pace"]), "none of so small a network"
    times.write_text(json.dumps(table | {"wake_us": 0, "handover_us": 0}))
    arrivals = "model: graph.json, arrivals: {period_ms: 50}, instances: 40"
    workload = tmp_path / "workload.yaml"
    workload.write_text(f"applications:\n- {{name: network, {arrivals}}}\n")
    assert main(["simulate", str(workload), "--costs", str(times), "--json"]) == 0
    (application,) = json.loads(capsys.readouterr().out)["apps"]
    alone_ms = [
        sum(row["samples_us"][index] for row in table["tasks"][::2]) / 1000 for index in (0, -1)
    ]
    assert alone_ms[0] <= application["latency_ms"]["p50"] <= alone_ms[1]
    assert application["latency_ms"]["p99"] > application["latency_ms"]["p50"]
    twice = ["--costs", str(times), "--costs", str(times)]
    assert main(["simulate", str(workload), *twice]) == 1
    assert "first of network on cpu0, twice" in capsys.readouterr().err


def test_an_output_is_compared_with_a_file(built: Path, tmp_path: Path) -> None:
    files = ("--input", str(built / "x.npy"), "--expect")
    done = run(built, *files, str(built / "y.npy"))
    assert done.returncode == 0, done.stderr
    assert "output 0 differs from" in done.stdout
    np.save(tmp_path / "off.npy", np.load(built / "y.npy") * np.float32(1.001))
    done = run(built, *files, str(tmp_path / "off.npy"))
    assert done.returncode == 1
    assert "off.npy, output 0 differs by 1.0e-03 of the largest magnitude" in done.stderr


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


def test_small_outputs_are_compared_as_the_export_compares_them(
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
) -> None:
    """To 1e-4 of 1: what is left of larger numbers that cancel has no more digits."""
    folder, x = tmp_path / "net", np.full((1, 4), 1e-3, np.float32)
    write_project(translate_module(Doubled(), torch.from_numpy(x)), folder)
    cpp_runtime.build(folder)
    np.save(folder / "x.npy", x)
    for shift, code in ((9e-5, 0), (1.1e-4, 1)):
        np.save(folder / "y.npy", 2 * x + np.float32(shift))
        done = run(folder, "--input", str(folder / "x.npy"), "--expect", str(folder / "y.npy"))
        assert done.returncode == code, done.stderr


def compile_commands(project: Path, folder: Path, *options: str) -> dict[str, list[str]]:
    """Return the words of the compiler's command by source."""
    options = ("-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", "-DNNSTRETCH_ONEDNN=OFF", *options)
    command = ["cmake", "-S", str(project), "-B", str(folder), *options]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    entries = json.loads((folder / "compile_commands.json").read_text())
    return {Path(entry["file"]).name: entry["command"].split() for entry in entries}


def test_every_file_is_compiled_as_the_standard_that_it_needs(built: Path, tmp_path: Path) -> None:
    """Compilers differ in what they take without being told."""
    files = compile_commands(built, tmp_path, "-DNNSTRETCH_TOGETHER=OFF")
    assert {"network.cpp", "run.cpp", "runtime.cpp"} <= set(files)
    assert [name for name, words in files.items() if "-std=c++17" not in words] == []


@pytest.mark.slow
@pytest.mark.parametrize(("strict", "options"), [(False, ()), (True, ("-DNNSTRETCH_STRICT=ON",))])
def test_a_warning_stops_a_build_only_where_that_is_asked_for(
    built: Path, tmp_path: Path, strict: bool, options: tuple[str, ...]
) -> None:
    """A later compiler knows new warnings: g++ 13 refused what g++ 12 took."""
    files = compile_commands(built, tmp_path, *options)
    assert all("-Wconversion" in words for words in files.values())
    assert [name for name, words in files.items() if ("-Werror" in words) != strict] == []


def test_verb_writes_a_folder_and_says_what_was_not_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.py").write_text(
        "import torch\n"
        "def net():\n"
        "    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())\n"
    )
    out = tmp_path / "net"
    arguments = ["export", f"{tmp_path / 'm.py'}:net", "--format", "cpp", "--out", str(out)]
    status = main([*arguments, "--input", "1,3,8,8", "--no-build", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert status == 0
    assert result["bundle"] == str(out)
    assert result["not_built"] == "--no-build"
    assert result["max_abs_error"] is None
    assert [task["processor"] for task in result["subgraphs"]] == ["cpu"]
    assert (out / "network.cpp").is_file()
    assert main([*arguments, "--int8", "--calibration", "digits"]) == 1
    assert "only --format litert has it" in capsys.readouterr().err
