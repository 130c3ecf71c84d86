"""Files: what `--input name=PATH` names becomes tensors, and results become files in a directory.

    .npy                    an array, never pickled objects
    .pt  .pt:key            a tensor, or one of a dict of tensors (`weights_only`, so that nothing in the file is run)
    .safetensors:key        one tensor; the key may be left out if there is only one
    .png .jpg .jpeg         an image as u8[C, H, W]: C = 1 grey, 3 RGB, 4 RGBA

Nothing is converted or resized: a file must hold the declared type. A family takes a directory or a pattern (`'frames/*.png'`) with as
many files as members: files that bear the members' names (as `save_outputs` writes them), or any names, in the order that a person
would count them in (`2.png` before `10.png`).
"""

from __future__ import annotations

import difflib
import glob
import importlib.util
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from streamgraph.calls import place, type_text
from streamgraph.errors import BindingError, Problem, RunnerError, quoted
from streamgraph.model import DTYPE_BYTES, LONG_NAMES, MEMBER, Program, Tensor

if TYPE_CHECKING:
    import torch

NOT_IN_NUMPY = ("bf16", "f8e4m3", "f8e5m2")
CHANNELS: Mapping[int, str] = {1: "L", 3: "RGB", 4: "RGBA"}  # Pillow's names for 8-bit images
_WITH_KEY = re.compile(r"(?P<file>.+\.(?:safetensors|pt)):(?P<key>[^/\\]+)\Z", re.DOTALL)
_DEVICE_NAMES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?\Z", re.IGNORECASE)  # what Windows opens instead of a file


class _Unreadable(Exception):
    """Why a file cannot serve an input: a sentence that follows its name, and a remedy."""

    def __init__(self, message: str, help: str | None = None) -> None:
        super().__init__(message)
        self.message, self.help = message, help


def load_inputs(program: Program, given: Iterable[str], device: torch.device | None = None) -> dict[str, torch.Tensor]:
    """The tensors that `name=PATH` entries name, by input; a family's name serves all its members.

    `device` is the run's device: tensors are put where the program declares them (on the CPU if it is None).

    Raises:
        BindingError: all problems: SG502 unknown names, SG505 wrong number of files, SG506 unreadable files.
    """
    tensors: dict[str, torch.Tensor] = {}
    problems: list[Problem] = []
    for name, path in _paths(program, given, problems).items():
        try:
            tensors[name] = load_input(path, program.tensor_named[name], device)
        except BindingError as error:
            problems += error.problems
    if problems:
        raise BindingError(*problems)
    return tensors


def load_input(path: str, tensor: Tensor, device: torch.device | None = None) -> torch.Tensor:
    """The tensor in one file: contiguous, of the declared type, and where it is declared to be (pinned for runs on CUDA only).

    Raises:
        BindingError: SG506.
    """
    import torch

    try:
        value = _read(path, tensor)
        if tensor.type is not None and type_text(value) != str(tensor.type):
            message = f"holds {type_text(value)}, but '{tensor.name}' is declared as {tensor.type}"
            raise _Unreadable(message, "nothing is converted or resized: change the type or the file")
    except _Unreadable as error:
        raise BindingError(Problem("SG506", f"'{quoted(path)}', for input '{tensor.name}', {error.message}", None, error.help)) from None
    if device is None:
        return value
    value = value.to(place(tensor.device, torch.device(device)))
    return value.pin_memory() if tensor.pinned and value.device.type == "cpu" and torch.device(device).type == "cuda" else value


def _paths(program: Program, given: Iterable[str], problems: list[Problem]) -> dict[str, str]:
    """The file of each input that was named."""
    inputs = [tensor.name for tensor in program.inputs]
    families = {family.name: family.members for family in program.families if family.members and family.members[0] in inputs}
    paths: dict[str, str] = {}
    for entry in given:
        name, equals, path = entry.partition("=")
        if not equals or not path:
            problems.append(Problem("SG506", f"'{quoted(entry)}' names no file", None, "write --input name=PATH"))
        elif name in inputs:
            paths[name] = path
        elif name in families:
            paths.update(_family(name, families[name], path, problems))
        else:
            near = difflib.get_close_matches(name, [*inputs, *families], 1)
            help = f"did you mean '{near[0]}'?" if near else f"inputs: {', '.join([*families, *inputs][:20]) or 'none'}"
            problems.append(Problem("SG502", f"the program has no input '{quoted(name)}'", None, help))
    return paths


def _family(name: str, members: tuple[str, ...], path: str, problems: list[Problem]) -> dict[str, str]:
    if Path(path).is_dir():
        found = [str(file) for file in Path(path).iterdir() if file.suffix.lower() in READERS]
    else:
        found = [path] if Path(path).is_file() else glob.glob(path)
    found.sort(key=_counting)
    named = {Path(file).stem: file for file in found}
    if all(member in named for member in members):
        return {member: named[member] for member in members}
    if len(found) != len(members):
        message = f"'{quoted(path)}' holds {len(found)} files, and '{name}' has {len(members)} members"
        help = f"pass a directory or a pattern with {len(members)} of {', '.join(READERS)}; or one member: {members[0]}=PATH"
        problems.append(Problem("SG505", message, None, help))
        return {}
    return dict(zip(members, found, strict=True))


def _counting(path: str) -> list[tuple[int, str]]:
    """A sort key in which numbers count as numbers."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path)] + [(-2, path)]


def _read(path: str, tensor: Tensor) -> torch.Tensor:
    match = None if "\0" in path or Path(path).is_file() else _WITH_KEY.match(path)
    file, key = (Path(match["file"]), match["key"]) if match else (Path(path), None)
    reader = READERS.get(file.suffix.lower())
    if reader is None:
        raise _Unreadable(f"has an ending that is none of {', '.join(READERS)}")
    if "\0" in path or not file.is_file():
        raise _Unreadable("is not there" if "\0" in path or not file.exists() else "is not a regular file", "check the path")
    try:
        return reader(file, key, tensor)
    except OSError as error:
        raise _Unreadable(f"cannot be read: {quoted(error.strerror or error)}") from error


def _read_npy(file: Path, key: str | None, tensor: Tensor) -> torch.Tensor:
    import torch

    _needs("numpy", ".npy files", "images")
    import numpy

    try:
        with file.open("rb") as stream:  # not `numpy.load`, which opens archives and pickles as well
            array = numpy.lib.format.read_array(stream, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise _Unreadable(f"is not a plain array: {quoted(error)}", "save one array with numpy.save") from error
    try:
        # A fresh array in this machine's byte order and in C order.
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C", copy=True))
    except TypeError as error:
        raise _Unreadable(f"holds {array.dtype}, which torch does not have") from error


def _read_pt(file: Path, key: str | None, tensor: Tensor) -> torch.Tensor:
    import pickle

    import torch

    try:
        held = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        first_line = str(error).partition("\n")[0]
        help = "save a tensor, or a dict of tensors, with torch.save"
        raise _Unreadable(f"is no file of plain tensors: {quoted(first_line)}", help) from error
    if isinstance(held, dict):
        held = _pick({str(name): value for name, value in held.items()}, key)
    elif key is not None:
        raise _Unreadable(f"is one {type(held).__name__} and has no key '{quoted(key)}'")
    if not isinstance(held, torch.Tensor) or held.layout != torch.strided:
        raise _Unreadable(f"holds a {type(held).__name__} that is not a dense tensor")
    return held.detach().contiguous()


def _read_safetensors(file: Path, key: str | None, tensor: Tensor) -> torch.Tensor:
    _needs("safetensors", ".safetensors files", "safetensors")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt", device="cpu") as held:
            names = list(held.keys())
            found: torch.Tensor = held.get_tensor(_pick(dict(zip(names, names, strict=True)), key))
    except SafetensorError as error:
        raise _Unreadable(f"is not a safetensors file: {quoted(error)}") from error
    return found.contiguous()


def _pick(held: Mapping[str, object], key: str | None) -> object:
    """The one that was asked for, or the only one."""
    if key is None and len(held) == 1:
        return next(iter(held.values()))
    if key is not None and key in held:
        return held[key]
    near = difflib.get_close_matches(key or "", held, 1)
    few = ", ".join(quoted(name, 40) for name in list(held)[:8])
    help = f"did you mean '{quoted(near[0])}'?" if near else f"it holds {few or 'nothing'}{', …' if len(held) > 8 else ''}"
    raise _Unreadable(f"has no tensor '{quoted(key)}'" if key is not None else f"holds {len(held)} tensors: name one, as in FILE:key", help)


def _read_image(file: Path, key: str | None, tensor: Tensor) -> torch.Tensor:
    import torch

    _needs("PIL", "images", "images")
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file, formats=("PNG", "JPEG")) as image:
            shape = tensor.type.shape if tensor.type is not None else (3, image.height, image.width)
            mode = CHANNELS.get(shape[0]) if len(shape) == 3 else None
            size = f"{image.width} wide and {image.height} high"
            if mode is None or shape[1:] != (image.height, image.width):
                what = f"is an image {size}, u8[{len(image.getbands())}, {image.height}, {image.width}]"
                message = f"{what}, but '{tensor.name}' is declared as {tensor.type}"
                raise _Unreadable(message, "nothing is resized: change the type or the file")
            if image.mode not in ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"):
                raise _Unreadable(f"is an image of mode {image.mode}, which does not fit 8 bits", "store it as .npy")
            pixels = bytearray(image.convert(mode).tobytes())
    except (UnidentifiedImageError, Image.DecompressionBombError, SyntaxError, ValueError) as error:
        raise _Unreadable(f"is not an image that Pillow reads: {quoted(error)}") from error
    if not pixels:
        raise _Unreadable("is an image without pixels")
    rows = torch.frombuffer(pixels, dtype=torch.uint8).reshape(shape[1], shape[2], shape[0])
    return rows.permute(2, 0, 1).contiguous()


def _needs(module: str, what: str, extra: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise _Unreadable(f"needs a package that is not installed, for {what}", f"pip install 'streamgraph[{extra}]'")


Reader = Callable[[Path, "str | None", Tensor], "torch.Tensor"]
READERS: Mapping[str, Reader] = {
    ".npy": _read_npy, ".pt": _read_pt, ".safetensors": _read_safetensors, ".png": _read_image, ".jpg": _read_image, ".jpeg": _read_image,
}  # fmt: skip


def save_outputs(results: Mapping[str, torch.Tensor], directory: str | Path) -> list[Path]:
    """Write each result to `directory` (made if need be) as `NAME.npy`, and return the files in order.

    Dtypes that numpy lacks (bf16, f8) become `NAME.pt`, as everything does where numpy is not installed. Files of that name are replaced.

    Raises:
        RunnerError: SG610 for every result that cannot be written.
    """
    import torch

    folder = Path(directory)
    problems: list[Problem] = []
    written: list[Path] = []
    has_numpy = importlib.util.find_spec("numpy") is not None
    for name, value in results.items():
        if MEMBER.match(name) is None:
            problems.append(Problem("SG610", f"'{quoted(name)}' cannot be the name of a file", None, "give the output a plain name"))
            continue
        stem = f"{name}_" if _DEVICE_NAMES.match(name) else name
        value = value.detach().cpu().contiguous()
        dtype = LONG_NAMES.get(str(value.dtype).removeprefix("torch."))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if has_numpy and dtype in DTYPE_BYTES and dtype not in NOT_IN_NUMPY:
                import numpy

                numpy.save(folder / f"{stem}.npy", value.numpy(), allow_pickle=False)
                written.append(folder / f"{stem}.npy")
            else:
                torch.save(value.clone(), folder / f"{stem}.pt")  # a clone: saving a view would store all of its storage
                written.append(folder / f"{stem}.pt")
        except OSError as error:
            message = f"'{name}' cannot be written to '{quoted(directory)}': {quoted(error.strerror or error)}"
            problems.append(Problem("SG610", message, None, "name another directory"))
    if problems:
        raise RunnerError(*problems)
    return written
