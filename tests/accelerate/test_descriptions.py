"""Descriptions of accelerators: every constant has a source; bad ones are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from nnstretch.accelerate.machine.accelerator_file import UNKNOWN, Number, entries
from nnstretch.accelerate.machine.load_accelerator import (
    known_accelerators,
    load_accelerator,
    read_accelerator,
    require_type,
)
from nnstretch.errors import BadInput, BrokenFile, NnstretchError, UnknownName
from nnstretch.files.package_data import package_data

SHIPPED = """
    ascend910-like ethos-u55-128 goya-like ipu-like nvdla-1024 nvdla-128 nvdla-2048 nvdla-256
    nvdla-32 nvdla-512 nvdla-64 stcp920 tpuv1 zigzag-tpu-like
"""


def test_all_machines_are_shipped() -> None:
    assert known_accelerators() == tuple(SHIPPED.split())


@pytest.mark.parametrize("name", known_accelerators())
def test_every_constant_has_a_source_and_a_kind(name: str) -> None:
    listed = dict(entries(read_accelerator(name)))
    assert len(listed) > 12
    for field, entry in listed.items():
        assert len(entry.source) > 4, field
        assert entry.kind in ("published", "derived", "assumed"), field
        if isinstance(entry, Number) and entry.value == UNKNOWN:
            assert entry.kind == "assumed", field


def test_the_printed_form_of_a_machine() -> None:
    assert str(load_accelerator("stcp920")) == (
        "stcp920: 4 clusters of 8 cores at 1 GHz, fp16, int8\n"
        "  matrix  64 x 32, fill 64 cycles\n"
        "  vector  64 lanes\n"
        "  local   1310720 B a core, 512 GB/s\n"
        "  global  8388608 B a cluster, 256 GB/s\n"
        "  ddr     34 GB/s a cluster, both directions at once"
    )


def test_a_description_may_limit_ports_and_instructions_in_flight(tmp_path: Path) -> None:
    number = "{value: 2, unit: count, source: data sheet, kind: published}"
    flying = changed(tmp_path, "ddr:", f"instructions_in_flight: {number}\nddr:")
    limited = load_accelerator(flying, ["instructions_in_flight=3"])
    assert limited.most_at_once == {"all": 3}
    assert str(limited).endswith("\n  at once 3 in all")
    assumed = load_accelerator("stcp920", ["global_buffer.ports=1", "instructions_in_flight=4"])
    assert assumed.most_at_once == {"all": 4, "global": 1}
    assert {"global_buffer.ports", "instructions_in_flight"} <= set(assumed.assumed)
    with pytest.raises(BadInput, match=r"unknown field 'global_buffer\.ports'"):
        load_accelerator("tpuv1", ["global_buffer.ports=1"])
    ported = changed(tmp_path, "local_buffer:", f"local_buffer:\n  ports: {number}")
    assert load_accelerator(ported).most_at_once == {"local": 2}
    assert load_accelerator("stcp920").most_at_once == {}
    none = changed(tmp_path, "local_buffer:", "local_buffer:\n  ports: " + number.replace("2", "0"))
    with pytest.raises(BadInput, match="ports is 0 count"):
        load_accelerator("stcp920", ["local_buffer.ports=0"])
    with pytest.raises(BrokenFile, match=r"local_buffer\.ports, 0 count, needed is a whole"):
        load_accelerator(none)


def test_a_description_may_let_layers_be_computed_from_ddr(tmp_path: Path) -> None:
    assert load_accelerator(changed(tmp_path, "ddr:", "fallback: ddr\nddr:")).ddr_fallback
    assert load_accelerator("stcp920", ["fallback=ddr"]).ddr_fallback
    assert not load_accelerator("stcp920").ddr_fallback


def test_the_machine_of_the_page_is_a_description(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "accelerator.md").read_text(encoding="utf-8")
    path = tmp_path / "mychip.yaml"
    path.write_text(page.partition("```yaml\n")[2].partition("```")[0], encoding="utf-8")
    with pytest.raises(BadInput, match=r"^ddr\.bandwidth of mychip never published"):
        load_accelerator(str(path))
    machine = load_accelerator(str(path), ["ddr.bandwidth=8.5GB/s"])
    assert machine.assumed == (
        "matrix.fill",
        "vector.simple",
        "vector.special",
        "ddr.bandwidth",
        "kernel_launch",
    )


def test_the_peak_is_the_published_one() -> None:
    machine = load_accelerator("stcp920")
    assert machine.macs_per_s("fp16") * 2 == 32.768e12
    assert machine.macs_per_s("int8") == 2 * machine.macs_per_s("fp16")
    assert load_accelerator("tpuv1").macs_per_s("int8") * 2 == pytest.approx(92e12, rel=0.01)


def test_assumed_values_are_listed() -> None:
    assert "kernel_launch" in load_accelerator("stcp920").assumed
    assert "clusters" in load_accelerator("stcp920", ["clusters=2"]).assumed
    assert load_accelerator("stcp920", ["local_buffer.size=64KiB"]).local.size_bytes == 65536


@pytest.mark.parametrize(("size", "size_bytes"), [("512B", 512), ("2KiB", 2048), ("1GiB", 1 << 30)])
def test_an_assumed_size_may_have_any_unit_of_sizes(size: str, size_bytes: int) -> None:
    machine = load_accelerator("stcp920", [f"local_buffer.size={size}"])
    assert machine.local.size_bytes == size_bytes


def test_a_property_is_assumed_as_true_or_false(tmp_path: Path) -> None:
    assert not load_accelerator("stcp920", ["ddr.both_directions=false"]).ddr.both_directions
    assert load_accelerator("tpuv1", ["matrix.whole_tiles=false"]).matrix.whole_tiles is False
    published = 'value: true, unit: bool, source: "P920 chip paper'
    path = changed(tmp_path, published, published.replace("true", "unknown"))
    with pytest.raises(BrokenFile, match="value is unknown and kind published"):
        load_accelerator(path)
    text = Path(path).read_text(encoding="utf-8")
    start, _, end = text.partition("value: unknown, unit: bool")
    assumed = end.replace("kind: published", "kind: assumed", 1)
    Path(path).write_text(f"{start}value: unknown, unit: bool{assumed}", encoding="utf-8")
    assert "ddr.both_directions of stcp920 never published" in refusal_of(path)
    machine = load_accelerator(path, ["ddr.both_directions=true"])
    assert (machine.ddr.both_directions, "ddr.both_directions" in machine.assumed) == (True, True)
    for value in ("maybe", "1", ""):
        refused = refusal_of("stcp920", [f"ddr.both_directions={value}"])
        assert refused.endswith("--assume, ddr.both_directions is true or false")


def test_a_field_that_is_assumed_twice_is_refused() -> None:
    with pytest.raises(BadInput, match="field 'clusters' is set twice"):
        load_accelerator("stcp920", ["clusters=2", "clock=1GHz", "clusters=4"])


@pytest.mark.parametrize("setting", ["local_buffer.size=4GHz", "clock=1KiB", "clock=GHz"])
def test_an_assumed_value_of_another_kind_is_refused(setting: str) -> None:
    with pytest.raises(BadInput, match="no number of its unit in"):
        load_accelerator("stcp920", [setting])


def changed(tmp_path: Path, old: str, new: str) -> str:
    text = (package_data("accelerators") / "stcp920.yaml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "value: 34.0, unit: GB/s",
            "value: 0, unit: GB/s",
            ("ddr.bandwidth, 0 GB/s, needed is a number of more than 0 in",),
        ),
        (
            "value: 34.0, unit: GB/s",
            "value: 1.0e-300, unit: B/s",
            ("ddr.bandwidth, 1e-300 B/s, needed is", "at least 1 B/s"),
        ),
        ("value: 1.0, unit: GHz", "value: 0.5, unit: Hz", ("clock, 0.5 Hz", "at least 1 Hz")),
        ("value: 1310720, unit: B", "value: 0.5, unit: B", ("size, 0.5 B", "at least 1 B")),
        ("lanes: {value: 64", "lanes: {value: 1.0e-300", ("lanes, 1e-300 lane", "0.001 lane")),
        ("cores: {value: 8", "cores: {value: 1e8", ("cores, 1e+08 count, needed", "65,536")),
        ("cores: {value: 8", "cores: {value: 1.5", ("cores, 1.5 count, needed is a whole",)),
        ("value: 34.0, unit: GB/s", "value: -3, unit: GB/s", ("ddr.bandwidth", "-3")),
        ("value: 34.0, unit: GB/s", "value: 34.0", ("ddr.bandwidth", "'unit' is missing")),
        ("value: 34.0, unit: GB/s", "value: 34.0, unit: MiB", ("ddr.bandwidth", "GB/s")),
        ("value: 34.0, unit: GB/s", "value: .nan, unit: GB/s", ("ddr.bandwidth", "nan")),
        ("value: 8, unit: MiB", "value: -8, unit: MiB", ("global_buffer.size", "-8")),
        ("ddr:", "drr:", ("unknown key 'drr'", "close to it: ddr")),
        ("format: 1", "format: 1\nfallback: disk", ("fallback", "disk", "ddr")),
        ("format: 1", "format: 2", ("unknown format 2",)),
        ("  lanes:", "  lanes: [", ("is no YAML",)),
        ("kind: published", "kind: guessed", ("unknown kind 'guessed'",)),
        ("clusters: {value: 4", "clusters: {value: unknown", ("value is unknown",)),
    ],
)
def test_a_wrong_description_is_refused_by_name(
    tmp_path: Path, old: str, new: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(BrokenFile) as refusal:
        load_accelerator(changed(tmp_path, old, new))
    for word in words:
        assert word in str(refusal.value), refusal.value
    assert "\n" not in str(refusal.value)


def refusal_of(*arguments: object) -> str:
    with pytest.raises(NnstretchError) as refusal:
        load_accelerator(*arguments)  # type: ignore[arg-type]
    return str(refusal.value)


def test_unknown_machines_and_fields_name_what_is_close() -> None:
    with pytest.raises(UnknownName, match="close to it: stcp920"):
        load_accelerator("stcp92")
    assert "close to it: clock" in refusal_of("stcp920", ["clok=3"])
    assert "write clock=NUMBER in GHz" in refusal_of("stcp920", ["clock=fast"])


def test_values_that_nobody_published_are_all_named() -> None:
    text = refusal_of("ascend910-like")
    assert "local_buffer.size, global_buffer.size of ascend910-like never published" in text
    assert "--assume FIELD=VALUE" in text
    assert "global_buffer" not in refusal_of("ascend910-like", (), "lb")
    given_sizes = ["local_buffer.size=1", "global_buffer.size=32"]
    assert load_accelerator("ascend910-like", given_sizes).shared_bytes == 32 << 20


def test_a_type_that_the_machine_lacks_is_refused() -> None:
    machine = load_accelerator("stcp920")
    assert require_type(machine, None) == "fp16"
    with pytest.raises(BadInput, match="no type fp32, stcp920, it computes in fp16, int8"):
        require_type(machine, "fp32")


@pytest.mark.parametrize(
    "setting",
    ["clock=0", "ddr.bandwidth=0", "matrix.rows=2.5", "clusters=0", "vector.lanes=0", "cores=1.5"],
)
def test_an_assumed_value_keeps_the_limits_of_its_field(setting: str) -> None:
    with pytest.raises(BadInput, match=f"needed is a .*number of .* in .*, --assume {setting}"):
        load_accelerator("stcp920", [setting])
