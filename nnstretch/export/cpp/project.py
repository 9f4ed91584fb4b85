"""The folder of an exported network: its source, its weights, the runtime, and how to build it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from nnstretch.errors import BadInput
from nnstretch.export.cpp.memory import ArenaPlan, plan_arena
from nnstretch.export.cpp.program import CppProgram
from nnstretch.export.cpp.source import identifier, signature, write_source
from nnstretch.export.cpp.weights_file import write_weights
from nnstretch.files.atomic import atomic_write
from nnstretch.files.package_data import package_data

MARKER = "export.json"
RUNTIME = "runtime"
RUNTIME_PARTS = ("CMakeLists.txt", "include", "src", "examples")
EARLIER_FILES = ("example/input*.npy", "example/output*.npy", "runtime/*/**/*.[ch]pp")
"""What an export of another network, or by another version, may have left in the folder."""
WRITTEN = (
    *(MARKER, "network.hpp", "network.cpp", "CMakeLists.txt", "CMakePresets.json", "README.md"),
    *("weights.bin", "example", "layers", RUNTIME),
)
"""Files and folders of an export."""
CMAKE = """\
cmake_minimum_required(VERSION 3.18)
project(exported_network CXX C)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
if(NOT TARGET nnstretch_runtime)
  add_subdirectory(runtime)
endif()

# Several networks may be parts of one program; the first is `network`, too.
add_library(network_@NAME@ STATIC network.cpp)
target_include_directories(network_@NAME@ PUBLIC .)
target_compile_options(network_@NAME@ PRIVATE ${NNSTRETCH_WARNINGS} $<$<CONFIG:Release>:-O1>)
target_link_libraries(network_@NAME@ PUBLIC nnstretch_runtime)
if(NOT TARGET network)
  add_library(network ALIAS network_@NAME@)
endif()

if(CMAKE_SOURCE_DIR STREQUAL CMAKE_CURRENT_SOURCE_DIR)
  add_executable(run runtime/src/run.cpp)
  target_include_directories(run PRIVATE runtime/src)
  target_compile_options(run PRIVATE ${NNSTRETCH_WARNINGS})
  target_link_libraries(run PRIVATE network)
endif()
"""


def preset(name: str, folder: str, variables: dict[str, str]) -> dict[str, object]:
    """Return a way to configure a build, as CMakePresets.json has it."""
    return {
        "name": name,
        "binaryDir": "${sourceDir}/" + folder,
        "cacheVariables": variables,
    }


PRESETS = {
    "version": 3,
    "configurePresets": [
        preset("release", "build", {"CMAKE_BUILD_TYPE": "Release"}),
        preset(
            "asan",
            "build-asan",
            {"CMAKE_BUILD_TYPE": "RelWithDebInfo", "NNSTRETCH_SANITIZE": "address"},
        ),
        preset(
            "tsan",
            "build-tsan",
            {"CMAKE_BUILD_TYPE": "RelWithDebInfo", "NNSTRETCH_SANITIZE": "thread"},
        ),
        preset(
            "cross",
            "build-cross",
            {
                "CMAKE_BUILD_TYPE": "Release",
                "CMAKE_SYSTEM_NAME": "Linux",
                "CMAKE_SYSTEM_PROCESSOR": "aarch64",
                "CMAKE_CXX_COMPILER": "aarch64-linux-gnu-g++",
                "CMAKE_C_COMPILER": "aarch64-linux-gnu-gcc",
            },
        ),
        preset(
            "android",
            "build-android",
            {
                "CMAKE_BUILD_TYPE": "Release",
                "CMAKE_TOOLCHAIN_FILE": (
                    "$env{ANDROID_NDK_HOME}/build/cmake/android.toolchain.cmake"
                ),
                "ANDROID_ABI": "arm64-v8a",
                # The first whose C library has aligned_alloc.
                "ANDROID_PLATFORM": "android-28",
            },
        ),
    ],
}
README = """\
# {name} in C++

{signature}; {tasks} tasks, {arena_mb:.2f} MB of working memory for each inference under way.
C++17 and CMake 3.18 (presets: 3.21), no dependencies but threads, no Python; oneDNN where CMake
finds it (Debian: libdnnl-dev and ocl-icd-opencl-dev; -DNNSTRETCH_ONEDNN=OFF does without).

    cmake --preset release -S . && cmake --build build
    build/run {example}

The second line computes what PyTorch computed when this was exported, and fails where it differs by
more than 1e-4 of the largest magnitude, or of 1 where that is larger. Your own arrays are float32
in C order (`--input x.npy --output y.npy`). `build/run --help` explains policies, processing
elements, traces and cost tables.

| file | what it is |
|---|---|
| `network.cpp`, `network.hpp` | the calls in forward order, a comment each |
| `weights.bin` | the weights: named, aligned, checked, mapped |
| `layers/` | layers as defined and as called, as JSON |
| `runtime/include/nnstretch/*.hpp` | C++: `runtime.hpp`, `costs.hpp`, `session.hpp` (layer calls) |
| `runtime/include/nnstretch/nnstretch.h` | for C and for accelerators |
| `runtime/src/` | kernels, scheduling, the runner |
| `runtime/examples/` | elements of vendors, to start from |

On another processor: `cmake --preset cross -S .` is for aarch64 with Debian's compiler, `--preset
android` for phones (ANDROID_NDK_HOME names the NDK; never tried); any other needs a toolchain file
(`cmake -S . -B build-board -DCMAKE_TOOLCHAIN_FILE=...`). Copy `run`,
`weights.bin` and `example/` to the board; compare there, too, and measure its own costs:

    ./run --weights weights.bin {example}
    ./run --weights weights.bin --profile costs.json

In a program of yours: `add_subdirectory` of this folder and the target `network_{identifier}`;
`make_network` from C++, `nns_open` with `nns_model_{identifier}()` from C.
"""


def write_project(
    program: CppProgram, folder: Path, beside: Mapping[str, bytes] | None = None
) -> ArenaPlan:
    """Write everything that the network needs to be built where no Python is.

    `beside`: other files, by their path in the folder. Files that would not change are left alone,
    builds in the folder stay; what only an earlier export wrote is removed. Raises BadInput where
    the folder holds something else.
    """
    check_folder(folder)
    arena = plan_arena(program.groups)
    header, source, fingerprint = write_source(program, arena)
    folder.mkdir(parents=True, exist_ok=True)
    marker = {"format": "cpp", "version": 1, "network": program.name}
    files = {
        MARKER: json.dumps(marker, indent=1) + "\n",
        "network.hpp": header,
        "network.cpp": source,
        "CMakeLists.txt": CMAKE.replace("@NAME@", identifier(program.name)),
        "CMakePresets.json": json.dumps(PRESETS, indent=1) + "\n",
        "README.md": readme(program, arena),
    }
    contents = {folder / name: text.encode() for name, text in files.items()}
    contents |= {folder / name: data for name, data in (beside or {}).items()}
    contents |= {folder / RUNTIME / path: data for path, data in runtime_files()}
    for path, data in contents.items():
        write_changed(path, data)
    for pattern in EARLIER_FILES:
        for path in set(folder.glob(pattern)) - contents.keys():
            path.unlink()
    with atomic_write(folder / "weights.bin") as aside:
        write_weights(aside, program.weights, fingerprint)
    return arena


def readme(program: CppProgram, arena: ArenaPlan) -> str:
    """Return the page that a C++ engineer reads first."""
    return README.format(
        name=program.name,
        identifier=identifier(program.name),
        signature=signature(program),
        tasks=len(program.groups),
        arena_mb=arena.size * 4 / 1e6,
        example=" ".join(example_words(program)),
    )


def example_words(program: CppProgram) -> Iterator[str]:
    """Yield the arguments by which `run` compares all outputs with what PyTorch computed."""
    for number in range(len(program.inputs)):
        yield f"--input example/input{number}.npy"
    for number in range(len(program.outputs)):
        yield f"--expect example/output{number}.npy"


def check_folder(folder: Path) -> None:
    """Refuse a target that holds something else than an earlier export. Raises BadInput."""
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"cannot write {folder}, --format cpp writes a folder, this is a file")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARKER).is_file():
        raise BadInput(
            f"cannot write {folder}, it holds something else than an exported network, name a new"
            " folder"
        )
    if not folder.absolute().parent.is_dir():
        raise BadInput(f"cannot write {folder}, no folder {folder.parent}, create it first")


def write_changed(path: Path, data: bytes) -> None:
    """Write a file unless it holds these bytes already, so that builds stay fresh."""
    same_size = path.is_file() and path.stat().st_size == len(data)
    if same_size and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as aside:
        aside.write_bytes(data)


def runtime_files() -> Iterator[tuple[Path, bytes]]:
    """Yield path and bytes of every file of the C++ runtime."""
    home = package_data("cpp")
    for part in RUNTIME_PARTS:
        root = home / part
        paths = sorted(root.rglob("*")) if root.is_dir() else [root]
        for path in paths:
            if path.is_file():
                yield path.relative_to(home), path.read_bytes()
