"""The C interface, and elements of vendors behind it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from support.cpp import WARNINGS, CppRuntime, cpp_runtime, translate_module  # noqa: E402, F401
from torch import nn  # noqa: E402

from nnstretch.export.cpp.project import write_project  # noqa: E402
from nnstretch.files.package_data import package_data  # noqa: E402
from nnstretch.report.load.trace import read_trace_file  # noqa: E402

HOME = package_data("cpp")
C99 = ["-std=c99", *WARNINGS]
KINDS = (
    "SUPPORTS_NOTHING",
    "FAILS",
    "REFUSES_TO_PREPARE",
    "WRONG_NUMBERS",
    "OTHER_VERSION",
    "NO_FUNCTION",
    "SYMBOL_OF_ANOTHER_NAME",
    "TYPE_OF_THE_HOST",
    "CHANGES_ITS_MIND",
    "FAILS_BESIDE_OTHERS",
)


def network() -> nn.Module:
    """Return a network with a branch, a sum and a product."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 3, padding=1)
            self.left = nn.Conv2d(8, 8, 1)
            self.right = nn.Conv2d(8, 8, 3, padding=1)
            self.head = nn.Linear(8, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.relu(self.stem(x))
            x = self.left(x) + torch.relu(self.right(x))
            return self.head(x.mean((2, 3)))

    torch.manual_seed(0)
    return Branches()


@pytest.fixture(scope="module")
def built(cpp_runtime: CppRuntime, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """Build the runner of the network."""
    folder = tmp_path_factory.mktemp("branches") / "net"
    write_project(translate_module(network(), torch.zeros(1, 3, 9, 9), name="a.b"), folder)
    cpp_runtime.build(folder)
    return folder


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build an element library for each thing that may be wrong with one."""
    folder = tmp_path_factory.mktemp("elements")
    paths: dict[str, Path] = {}
    for kind in KINDS:
        paths[kind] = folder / f"{kind.lower()}.so"
        assert shared_library(HOME / "tests" / "bad_element.c", paths[kind], f"-DKIND={kind}")
    return paths


def shared_library(source: Path, target: Path, *options: str) -> bool:
    """Compile an element as strict C99; return whether that worked."""
    command = [
        "cc",
        *C99,
        "-shared",
        "-fPIC",
        f"-I{HOME / 'include'}",
        str(source),
        "-o",
        str(target),
        *options,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False).returncode == 0


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the built network."""
    command = [str(folder / "build" / "run"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def c99_program(name: str, built: Path, runtime: CppRuntime, folder: Path) -> Path:
    """Build a program of `cpp/tests` that calls the network, as strict C99."""
    source, part = HOME / "tests" / f"{name}.c", folder / f"{name}.o"
    command = ["cc", *C99, "-c", f"-I{HOME / 'include'}", "-DMODEL=nns_model_a_b", str(source)]
    done = subprocess.run([*command, "-o", part], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return runtime.link([built / "network.cpp", part], folder / name, built)


@pytest.mark.slow
def test_a_c99_program_runs_networks_and_layers(
    built: Path,
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
) -> None:
    program = c99_program("c_program", built, cpp_runtime, tmp_path)
    trace, twins = tmp_path / "t.json", tmp_path / "twins.json"
    command = [str(program), str(built / "weights.bin"), str(trace), str(twins)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.stdout == "ok\n", ended.stderr
    spans = read_trace_file(json.loads(trace.read_text()), "t.json")
    assert set(spans.threads.values()) == {"cpu0", "cpu1"}
    assert len({event.args.request for event in spans.slices}) >= 3
    both = read_trace_file(json.loads(twins.read_text()), "twins.json")
    assert {event.name.partition("/")[0] for event in both.slices} == {"a.b#0", "a.b#1"}


@pytest.mark.slow
def test_a_c99_program_hears_what_is_wrong(
    built: Path,
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
) -> None:
    program = c99_program("c_refusals", built, cpp_runtime, tmp_path)
    command = [str(program), str(built / "weights.bin")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.stdout == "ok\n", ended.stderr


def test_layer_calls_of_a_c99_program_go_where_they_are_supported(
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
) -> None:
    part, program = tmp_path / "c_session.o", tmp_path / "c_session"
    source = str(HOME / "tests" / "c_session.c")
    command = ["cc", *C99, "-c", f"-I{HOME / 'include'}", source, "-o", str(part)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    cpp_runtime.link([part], program)
    command = [str(program), str(tmp_path / "costs.json")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.stdout == "ok\n", ended.stderr


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("SUPPORTS_NOTHING", "element npu1 can run no task of a.b, it supports none"),
        ("FAILS", ": element npu1 failed: the unit\\x0ais on \\x1b[31mfire"),
        ("REFUSES_TO_PREPARE", "and failed to prepare it: the unit\\x0ais on \\x1b[31mfire"),
        ("WRONG_NUMBERS", "and computes something else: off by"),
        ("OTHER_VERSION", "it is of version 8 of the interface, this runtime has 1"),
        ("NO_FUNCTION", "it lacks a name, a type, or the functions supports and run"),
        ("SYMBOL_OF_ANOTHER_NAME", "it has no symbol nns_element_entry"),
        ("TYPE_OF_THE_HOST", "its type is cpu, which is the host's"),
        ("CHANGES_ITS_MIND", "element npu1 said before that it supports conv2d"),
    ],
)
def test_bad_elements_of_vendors_are_one_line(
    built: Path, libraries: dict[str, Path], tmp_path: Path, kind: str, words: str
) -> None:
    costs: tuple[str, ...] = ()
    if kind in ("FAILS", "CHANGES_ITS_MIND"):
        # Costs from a file: nothing is measured, and the element's first failure is an inference's.
        assert run(built, "--profile", str(tmp_path / "c.json")).returncode == 0
        table = json.loads((tmp_path / "c.json").read_text())
        for row in table["costs_us"].values():
            row["npu"] = 0.5
        (tmp_path / "c.json").write_text(json.dumps(table))
        costs = ("--costs", str(tmp_path / "c.json"), "--repeat", "60")
    done = run(built, "--elements", f"cpu,library:{libraries[kind]}", *costs)
    assert done.returncode == 1, done
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_arrays_stay_until_what_computes_on_them_has_ended(
    built: Path, libraries: dict[str, Path], tmp_path: Path
) -> None:
    costs = tmp_path / "c.json"
    assert run(built, "--profile", str(costs)).returncode == 0
    table = json.loads(costs.read_text())
    for call, row in table["costs_us"].items():
        if call.startswith("conv2d"):
            row |= {"npu": 1e5, "cpu": 1e9}
    costs.write_text(json.dumps(table))
    library = f"library:{libraries['FAILS_BESIDE_OTHERS']}"
    words = ["--elements", f"cpu,{library},{library}", "--costs", str(costs)]
    words += ["--repeat", "8", "--places", "4"]
    done = subprocess.run(
        [str(built / "build" / "run"), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "MALLOC_PERTURB_": "165"},  # Memory that is free holds other numbers.
    )
    assert done.returncode == 1, done
    assert "element npu1 failed" in done.stderr


def test_units_of_a_vendor_are_counted(built: Path, libraries: dict[str, Path]) -> None:
    library = f"library:{libraries['SUPPORTS_NOTHING']}"
    done = run(built, "--elements", ",".join(["cpu", library, library, library]))
    assert "it has 2 units" in done.stderr


def test_costs_of_an_element_that_supports_nothing_are_not_written(
    built: Path, libraries: dict[str, Path], tmp_path: Path
) -> None:
    library, costs = f"library:{libraries['SUPPORTS_NOTHING']}", tmp_path / "c.json"
    for elements in (library, f"cpu,{library}"):
        done = run(built, "--elements", elements, "--profile", str(costs))
        assert done.returncode == 1
        assert done.stderr.rstrip().endswith("supports no call of a.b")
        assert not costs.exists()


@pytest.mark.slow
def test_an_element_that_agrees_on_no_number_and_infinity_is_no_liar(
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
) -> None:
    class Logarithm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.log(x))  # No number wherever what is drawn is negative.

    folder, library = tmp_path / "net", tmp_path / "libnpu.so"
    write_project(translate_module(Logarithm(), torch.zeros(3, 6), name="a.b"), folder)
    cpp_runtime.build(folder)
    assert shared_library(HOME / "examples" / "linear_element.c", library)
    done = run(
        folder, "--elements", f"cpu,library:{library}", "--profile", str(tmp_path / "c.json")
    )
    assert done.returncode == 0, done.stderr


def test_openblas_computes_the_products_of_a_network(built: Path, tmp_path: Path) -> None:
    library = tmp_path / "libgemm.so"
    if not shared_library(HOME / "examples" / "openblas_element.c", library, "-lopenblas"):
        pytest.skip("OpenBLAS is not installed (Debian: libopenblas-dev)")
    elements = f"cpu,library:{library},library:{library}"
    costs = tmp_path / "costs.json"
    assert run(built, "--elements", elements, "--profile", str(costs)).returncode == 0
    table = json.loads(costs.read_text())
    assert {call.split()[0] for call, row in table["costs_us"].items() if "gemm" in row} == {
        "matmul"
    }
    for row in table["costs_us"].values():
        if "gemm" in row:
            row["gemm"] = 0.01
    costs.write_text(json.dumps(table))
    outputs: list[np.ndarray] = []
    for used in ("cpu", elements):
        y, trace = tmp_path / "y.npy", tmp_path / "t.json"
        options = ("--output", str(y), "--trace", str(trace), "--costs", str(costs))
        done = run(built, "--elements", used, *options)
        assert done.returncode == 0, done.stderr
        outputs.append(np.load(y))
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-5, atol=1e-6)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    places = {event["name"]: names[event["tid"]] for event in events if event["ph"] == "X"}
    assert places["head"].startswith("gemm")


def test_a_second_library_of_a_type_is_compared_too(
    built: Path, libraries: dict[str, Path], tmp_path: Path
) -> None:
    linear = tmp_path / "libnpu.so"
    assert shared_library(HOME / "examples" / "linear_element.c", linear)
    elements = f"cpu,library:{linear}"
    measured = run(built, "--elements", elements, "--measure", str(tmp_path / "times.json"))
    assert measured.returncode == 0, measured.stderr
    done = run(built, "--elements", f"{elements},library:{libraries['WRONG_NUMBERS']}")
    assert done.returncode == 1
    assert "element npu2 says that it supports conv2d" in done.stderr
    assert "and computes something else" in done.stderr
