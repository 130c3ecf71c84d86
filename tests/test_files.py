"""Inputs from files and results into files."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file

from streamgraph.builder import Graph
from streamgraph.calls import torch_dtype, type_text
from streamgraph.errors import BindingError, Problem, RunnerError
from streamgraph.files import load_input, load_inputs, save_outputs
from streamgraph.model import DTYPE_BYTES, Kind, Program, Tensor, TensorType, parse_type


def declared(type: str | None = None, name: str = "x", **options: Any) -> Tensor:
    return Tensor(name, Kind.INPUT, parse_type(type) if type else None, **options)


def problem_of(path: Path | str, tensor: Tensor) -> Problem:
    with pytest.raises(BindingError) as error:
        load_input(str(path), tensor)
    (problem,) = error.value.problems
    assert problem.code == "SG506"
    return problem


# --- round trips ---


@given(st.sampled_from([*DTYPE_BYTES]), st.lists(st.integers(0, 3), max_size=3), st.booleans())
@settings(max_examples=60, deadline=None)
def test_what_is_saved_loads_bit_for_bit(tmp_path_factory: pytest.TempPathFactory, dtype: str, shape: list[int], flipped: bool) -> None:
    folder = tmp_path_factory.mktemp("saved")
    kind = TensorType(dtype, tuple(shape))
    value = torch.arange(kind.elements, dtype=torch.float32).reshape(shape).to(torch_dtype(kind))
    if flipped:
        value = value.mT if value.dim() > 1 else value.expand(2, *shape)[1]
    (file,) = save_outputs({"h@3": value}, folder)
    assert file.name == ("h@3.pt" if dtype in ("bf16", "f8e4m3", "f8e5m2") else "h@3.npy")
    loaded = load_input(str(file), declared(type_text(value)))
    assert loaded.is_contiguous()
    assert torch.equal(loaded.to(torch.complex128), value.to(torch.complex128))


def test_saving_a_part_of_a_large_tensor_saves_the_part(tmp_path: Path) -> None:
    large = torch.zeros(1 << 20, dtype=torch.bfloat16)
    (file,) = save_outputs({"part": large[:4]}, tmp_path)
    assert file.stat().st_size < 10_000


def test_the_directory_is_made_and_files_are_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    save_outputs({"x": torch.zeros(1)}, folder)
    save_outputs({"x": torch.ones(1), "layer.weight": torch.ones(1)}, folder)
    assert sorted(file.name for file in folder.iterdir()) == ["layer.weight.npy", "x.npy"]
    assert np.load(folder / "x.npy").tolist() == [1.0]


@pytest.mark.parametrize("name", ["../x", "a/b", "a\\b", "", ".", "..", "x\0", "x ", " x", "x:y", "/x", ".x", "x.", "x\n"])
def test_names_that_are_no_file_names_are_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "inner"
    with pytest.raises(RunnerError) as error:
        save_outputs({name: torch.zeros(1), "fine": torch.zeros(1)}, folder)
    assert [problem.code for problem in error.value.problems] == ["SG610"]
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["fine.npy"]


def test_names_of_devices_are_no_file_names(tmp_path: Path) -> None:
    files = save_outputs({"con": torch.zeros(1), "COM1.x": torch.zeros(1), "console": torch.zeros(1)}, tmp_path)
    assert [file.name for file in files] == ["con_.npy", "COM1.x_.npy", "console.npy"]


def test_a_directory_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunnerError, match="cannot be written") as error:
        save_outputs({"x": torch.zeros(1), "y": torch.zeros(1)}, tmp_path / "file")
    assert len(error.value.problems) == 2


# --- .npy ---


def test_npy_in_foreign_byte_order_and_fortran_order(tmp_path: Path) -> None:
    array = np.asfortranarray(np.arange(6, dtype=">f4").reshape(2, 3))
    np.save(tmp_path / "x.npy", array)
    loaded = load_input(str(tmp_path / "x.npy"), declared("f32[2, 3]"))
    assert loaded.tolist() == array.tolist()
    np.save(tmp_path / "scalar.npy", np.float64(3.5))
    assert load_input(str(tmp_path / "scalar.npy"), declared("f64[]")).item() == 3.5


class Canary:
    """Leaves a trace if a file is unpickled."""

    def __reduce__(self) -> Any:
        return (exec, ("import sys; sys.modules['streamgraph_canary'] = None",))


def test_npy_with_pickled_objects_is_refused_and_nothing_is_run(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([Canary()], dtype=object), allow_pickle=True)
    assert "not a plain array" in problem_of(tmp_path / "x.npy", declared()).message
    (tmp_path / "y.npy").write_bytes(pickle.dumps(Canary()))
    assert "not a plain array" in problem_of(tmp_path / "y.npy", declared()).message
    assert "streamgraph_canary" not in sys.modules


def test_npy_that_is_no_tensor(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array(["text"]))
    assert "which torch does not have" in problem_of(tmp_path / "x.npy", declared()).message
    (tmp_path / "y.npy").write_bytes(b"")
    problem_of(tmp_path / "y.npy", declared())
    np.save(tmp_path / "z.npy", np.zeros(100))
    (tmp_path / "z.npy").write_bytes((tmp_path / "z.npy").read_bytes()[:200])
    problem_of(tmp_path / "z.npy", declared())
    np.savez(tmp_path / "a.npz", a=np.zeros(1))
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    assert "not a plain array" in problem_of(tmp_path / "a.npy", declared()).message


def test_a_file_of_another_type_says_both(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 3)))
    problem = problem_of(tmp_path / "x.npy", declared("f32[3, 2]"))
    assert problem.message.endswith("for input 'x', holds f64[2, 3], but 'x' is declared as f32[3, 2]")
    assert problem.help == "nothing is converted or resized: change the type or the file"


# --- .pt ---


def test_pt_holds_a_tensor_or_a_dict_of_tensors(tmp_path: Path) -> None:
    torch.save(torch.nn.Parameter(torch.ones(2)), tmp_path / "x.pt")
    assert not load_input(str(tmp_path / "x.pt"), declared("f32[2]")).requires_grad
    torch.save({"a": torch.ones(2), "b": torch.zeros(2)}, tmp_path / "d.pt")
    assert load_input(f"{tmp_path}/d.pt:a", declared()).tolist() == [1.0, 1.0]
    assert problem_of(tmp_path / "d.pt", declared()).message.endswith("holds 2 tensors: name one, as in FILE:key")
    assert problem_of(f"{tmp_path}/d.pt:aa", declared()).help == "did you mean 'a'?"
    assert problem_of(f"{tmp_path}/d.pt:weight", declared()).help == "it holds a, b"
    assert "has no key" in problem_of(f"{tmp_path}/x.pt:a", declared()).message


def test_pt_runs_nothing(tmp_path: Path) -> None:
    torch.save(Canary(), tmp_path / "x.pt")
    assert "no file of plain tensors" in problem_of(tmp_path / "x.pt", declared()).message
    assert "streamgraph_canary" not in sys.modules
    (tmp_path / "y.pt").write_bytes(b"not a file of torch")
    problem_of(tmp_path / "y.pt", declared())
    (tmp_path / "z.pt").write_bytes(b"")
    problem_of(tmp_path / "z.pt", declared())


def test_pt_that_holds_something_else(tmp_path: Path) -> None:
    torch.save(3, tmp_path / "x.pt")
    assert "holds a int" in problem_of(tmp_path / "x.pt", declared()).message
    torch.save(torch.ones(2).to_sparse(), tmp_path / "y.pt")
    assert "not a dense tensor" in problem_of(tmp_path / "y.pt", declared()).message


# --- .safetensors ---


def test_safetensors_by_key(tmp_path: Path) -> None:
    save_file({"model.weight": torch.ones(2, dtype=torch.bfloat16), "b": torch.zeros(1)}, tmp_path / "w.safetensors")
    assert type_text(load_input(f"{tmp_path}/w.safetensors:model.weight", declared("bf16[2]"))) == "bf16[2]"
    assert problem_of(f"{tmp_path}/w.safetensors:model.wieght", declared()).help == "did you mean 'model.weight'?"
    assert "name one" in problem_of(tmp_path / "w.safetensors", declared()).message
    save_file({"only": torch.ones(3)}, tmp_path / "one.safetensors")
    assert load_input(str(tmp_path / "one.safetensors"), declared()).shape == (3,)
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 100)
    assert "not a safetensors file" in problem_of(tmp_path / "bad.safetensors", declared()).message


@pytest.mark.parametrize(("module", "name"), [("safetensors", "w.safetensors"), ("PIL", "x.png"), ("numpy", "x.npy")])
def test_a_missing_package_is_named_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda wanted, *rest: None if wanted == module else found(wanted, *rest))
    (tmp_path / name).write_bytes(b"")
    problem = problem_of(tmp_path / name, declared("u8[3, 1, 1]"))
    assert "needs a package that is not installed" in problem.message
    assert problem.help is not None
    assert problem.help.startswith("pip install 'streamgraph[")


# --- images ---


def test_an_image_is_channels_by_rows_by_columns(tmp_path: Path) -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    loaded = load_input(str(tmp_path / "x.png"), declared("u8[3, 2, 4]"))
    assert torch.equal(loaded, torch.from_numpy(pixels).permute(2, 0, 1))
    assert load_input(str(tmp_path / "x.png"), declared()).shape == (3, 2, 4)
    assert load_input(str(tmp_path / "x.png"), declared("u8[1, 2, 4]")).shape == (1, 2, 4)
    assert load_input(str(tmp_path / "x.png"), declared("u8[4, 2, 4]"))[3].unique().tolist() == [255]
    Image.fromarray(pixels).save(tmp_path / "x.JPEG")
    assert load_input(str(tmp_path / "x.JPEG"), declared("u8[3, 2, 4]")).dtype == torch.uint8


def test_an_image_of_another_size_says_both(tmp_path: Path) -> None:
    Image.new("RGB", (4, 2)).save(tmp_path / "x.png")
    problem = problem_of(tmp_path / "x.png", declared("u8[3, 4, 2]"))
    assert "4 wide and 2 high, u8[3, 2, 4], but 'x' is declared as u8[3, 4, 2]" in problem.message
    assert "declared as f32[3, 2, 4]" in problem_of(tmp_path / "x.png", declared("f32[3, 2, 4]")).message
    assert "declared as u8[2, 4]" in problem_of(tmp_path / "x.png", declared("u8[2, 4]")).message


def test_files_that_are_no_images(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(b"not an image")
    assert "not an image that Pillow reads" in problem_of(tmp_path / "x.png", declared()).message
    Image.new("RGB", (40, 40)).save(tmp_path / "y.png")
    (tmp_path / "y.png").write_bytes((tmp_path / "y.png").read_bytes()[:60])
    problem_of(tmp_path / "y.png", declared())
    Image.new("I;16", (4, 2)).save(tmp_path / "z.png")
    assert "does not fit 8 bits" in problem_of(tmp_path / "z.png", declared()).message


# --- paths ---


@pytest.mark.parametrize("path", ["missing.npy", "x", "x.txt", "", "x\0.npy", "a.npy:key", "missing.safetensors:key"])
def test_paths_that_name_no_readable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    problem_of(path, declared())


def test_a_directory_is_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "x.npy").mkdir()
    assert "not a regular file" in problem_of(tmp_path / "x.npy", declared()).message


def test_tensors_go_where_they_are_declared(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(2))
    assert load_input(str(tmp_path / "x.npy"), declared(), torch.device("meta")).device.type == "meta"
    assert load_input(str(tmp_path / "x.npy"), declared(device="cpu", pinned=True), torch.device("cpu")).device.type == "cpu"


# --- families and names ---


def family() -> Program:
    graph = Graph("test")
    graph.input("packet", "f64[1]", each={"cam": 3})
    graph.input("w", "f64[1]")
    graph.task("t", "f", reads=["packet@*", "w"], writes="y")
    return graph.program()


def frames(folder: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        np.save(folder / f"{name}.npy", np.array([float(number)]))
    return folder


def test_a_family_takes_a_directory_in_the_order_of_counting(tmp_path: Path) -> None:
    frames(tmp_path, "frame2", "frame10", "frame1")
    (tmp_path / "notes.txt").write_text("")
    for path in (str(tmp_path), f"{tmp_path}/frame*.npy"):
        loaded = load_inputs(family(), [f"packet={path}"])
        assert {name: value.item() for name, value in loaded.items()} == {"packet@0": 2.0, "packet@1": 0.0, "packet@2": 1.0}


def test_files_with_the_names_of_members_go_to_them(tmp_path: Path) -> None:
    frames(tmp_path, "packet@2", "packet@0", "packet@1", "w")
    loaded = load_inputs(family(), [f"packet={tmp_path}", f"w={tmp_path / 'w.npy'}"])
    assert {name: value.item() for name, value in loaded.items()} == {"packet@0": 1.0, "packet@1": 2.0, "packet@2": 0.0, "w": 3.0}


def test_members_bind_singly_and_the_last_one_counts(tmp_path: Path) -> None:
    frames(tmp_path, "a", "b", "c", "d")
    loaded = load_inputs(family(), [f"packet={tmp_path}/[abc].npy", f"packet@1={tmp_path}/d.npy"])
    assert [loaded[f"packet@{number}"].item() for number in range(3)] == [0.0, 3.0, 2.0]


def test_all_problems_of_the_inputs_come_at_once(tmp_path: Path) -> None:
    frames(tmp_path, "a", "b")
    with pytest.raises(BindingError) as error:
        load_inputs(family(), [f"packet={tmp_path}", "pakcet=x.npy", "w", "w=missing.npy"])
    assert sorted(problem.code for problem in error.value.problems) == ["SG502", "SG505", "SG506", "SG506"]
    assert "did you mean 'packet'?" in str(error.value)
    assert "holds 2 files, and 'packet' has 3 members" in str(error.value)
