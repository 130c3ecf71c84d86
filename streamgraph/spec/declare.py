"""The `tensors` of a spec become Tensors and Families: `each` is multiplied out, types are read, views are cut.

Views are cut last, when it is known what the tasks write, and each after the tensor it is a part of, in whatever order they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from streamgraph.errors import Location, Problem, quoted
from streamgraph.model import CPU, DEVICE, Family, Kind, Tensor, TensorType, is_gpu, parse_type
from streamgraph.names import near
from streamgraph.spec.document import Document, Path
from streamgraph.spec.interpolate import MOST_ITEMS, Keys, Scope, Unfit, combinations, count, interpolate, items_of, member, value_of
from streamgraph.spec.schema import TensorForm
from streamgraph.views import Item, UntypedBase, parse_cut, view

Report = Callable[[Problem], None]
_MOST_DIMENSIONS = 64  # as in PyTorch
_MOST_FORMS = 20_000_000
_THIS_DEVICE = ("gpu", "cuda", "default")


def read_keys(
    each: Mapping[str, object] | None, scope: Scope, document: Document, path: Path, report: Report
) -> Keys | None:  # fmt: skip
    """The keys of an `each` with their items; None, reported, if there is something wrong with them."""
    keys: list[tuple[str, tuple[int | str, ...]]] = []
    for key, given in (each or {}).items():
        try:
            keys.append((key, items_of(key, given, scope)))  # type: ignore[arg-type]
        except Unfit as error:
            report(placed(error.problem, document.place((*path, "each", key))))
            return None
    if each is not None and (not each or count(tuple(keys)) > MOST_ITEMS):
        message = f"each has no keys in '{path[-1]}'" if not each else f"'{path[-1]}' has {count(tuple(keys))} members"
        remedy = "write a key and its items: each: {cam: 4}" if not each else f"at most {MOST_ITEMS} are allowed"
        report(Problem("SG209", message, document.place((*path, "each")), remedy))
        return None
    return tuple(keys)


def placed(problem: Problem, place: Location | None, prefix: str = "") -> Problem:
    """The problem at a place, with words before its message."""
    return Problem(problem.code, prefix + problem.message, place, problem.help, problem.related, problem.severity)


class Declarations:
    """The tensors as far as they are declared. `broken` are names whose declaration is reported; nothing is said about them again."""

    def __init__(self, document: Document, scope: Scope, mended: Collection[Path], report: Report) -> None:
        self.document, self.scope, self.mended, self.report = document, scope, mended, report
        self.tensors: list[Tensor] = []
        self.families: list[Family] = []
        self.kinds: dict[str, Kind] = {}
        self.broken: set[str] = set()
        self._views: dict[int, tuple[str, Path]] = {}  # number in tensors -> the text of its view
        self._unfit: set[Path] = set()  # what could not be interpolated for one member is not tried for the next
        self._forms = 0
        self._types: dict[str, TensorType] = {}  # by spelling: thousands of tensors have the same few
        self._groupings: list[tuple[str, tuple[str, ...], Path]] = []

    def add(self, name: str, form: TensorForm) -> None:
        """Declare one entry of `tensors`, with all of its members."""
        path: Path = ("tensors", name)
        if path in self.mended:
            self.broken.add(name)
        keys = read_keys(form.each, self.scope, self.document, path, self.report)
        if keys is None:
            self.broken.add(name)
            return
        if len(self.tensors) + count(keys) > MOST_ITEMS:
            self._report("SG105", f"a program has at most {MOST_ITEMS} declared tensors", path, "make it smaller")
            self.broken.add(name)
            return
        slots = self._slots(form, path)
        over = form.over or "iteration"
        if form.over is not None and form.slots is None:
            self._report("SG212", f"'{name}' has over, but no slots", (*path, "over"), "add slots: 2, or leave over out")
        members = tuple(member(name, items) for items in combinations(keys))
        if keys or slots is not None:
            self.families.append(Family(name, keys, members, slots, over))
        if form.model_fields_set <= {"each", "slots", "over"} and keys and path not in self.mended:
            self._groupings.append((name, members, path))  # members that are declared one by one
            return
        kind = self._kind(form, path)
        if kind is None:
            self.broken.add(name)
            return
        where = self.document.key_place(path)
        typed: dict[str, TensorType | None] = {}
        for items, full_name in zip(combinations(keys), members, strict=True):
            scope = {**self.scope, **dict(zip((key for key, _ in keys), items, strict=True))} if keys else self.scope
            self.kinds[full_name] = kind
            if kind is Kind.VIEW:
                cut = self._text(form.view or "", scope, (*path, "view"))
                if cut is not None:
                    self._views[len(self.tensors)] = (cut, path)
                self.tensors.append(Tensor(full_name, kind, note=form.note, location=where))
                continue
            spelled = self._text(form.type, scope, (*path, "type")) if form.type is not None else None
            if spelled is not None and spelled not in typed:
                typed[spelled] = self._type(spelled, name, (*path, "type"))
            device = self._device(self._text(form.device or "device", scope, (*path, "device")) or "device", form, path)
            init = self._text(form.init, scope, (*path, "init")) if form.init is not None else None
            self.tensors.append(
                Tensor(full_name, kind, typed[spelled] if spelled else None, device, form.pinned, init, note=form.note, location=where)
            )

    def finish(self, written: Collection[str]) -> None:
        """Cut the views and look at the families whose members stand alone. `written` are the undeclared names that tasks write."""
        first: dict[str, int] = {}
        for number, tensor in enumerate(self.tensors):
            first.setdefault(tensor.name, number)
        for start in list(self._views):
            chain = {start: None}  # from a view down to what it is a part of, ordered, and quick to search
            while chain:
                number = next(reversed(chain))
                if number not in self._views:
                    del chain[number]
                    continue
                spelled, path = self._views[number]
                base = self._parse(spelled, path)
                under = first.get(base[0]) if base is not None else None
                if under is not None and under in self._views and under not in chain:
                    chain[under] = None
                    continue
                del self._views[number]
                circular = under in chain
                del chain[number]
                if base is None or not self._cut(number, base, under, circular, path, written):
                    self.broken.add(self.tensors[number].name)
        for name, members, path in self._groupings:
            missing = [one for one in members if one not in first]
            if missing:
                message = f"'{name}' says neither type, kind nor view, and its member '{missing[0]}' is not declared by itself"
                self._report("SG102", message, path, f'write {name}: {{type: "f32[8, 3]", each: ...}}')
                self.broken.add(name)

    def _cut(
        self, number: int, base: tuple[str, tuple[Item, ...]], under: int | None, circular: bool, path: Path, written: Collection[str]
    ) -> bool:  # fmt: skip
        tensor, place = self.tensors[number], (*path, "view")
        name, items = base
        if circular:
            self._report("SG208", f"view '{tensor.name}' is a part of itself", place, "name the tensor that holds the storage")
            return False
        if under is None:
            if name in self.broken or name.partition("@")[0] in self.broken:
                return False
            if name in written:
                remedy = f'declare {name}: {{type: "f32[8, 3]", kind: value}}'
                self._report("SG307", f"a view of value '{name}' needs its type", place, remedy)
            else:
                family = next((family for family in self.families if family.name == name), None)
                close = near(name, [one.name for one in self.tensors])
                remedy = f"write {family.members[0]}" if family else f"did you mean '{close}'?" if close else "declare it under tensors"
                self._report("SG201", f"view '{tensor.name}' is a part of unknown tensor '{quoted(name)}'", place, remedy)
            return False
        whole = self.tensors[under]
        if whole.name in self.broken or whole.name.partition("@")[0] in self.broken:
            return False
        try:
            self.tensors[number] = view(tensor.name, whole, items, tensor.note, tensor.location)
        except UntypedBase as error:
            self._report("SG307", f"view '{tensor.name}': {error}", place, f'write {whole.name}: {{type: "f32[8, 3]", ...}}')
            return False
        except ValueError as error:
            self._report("SG208", f"view '{tensor.name}': {error}", place, "mind the shape: a view is cut with start:stop, numbers and ':'")
            return False
        return True

    def _parse(self, spelled: str, path: Path) -> tuple[str, tuple[Item, ...]] | None:
        try:
            return parse_cut(spelled)
        except ValueError as error:
            self._report("SG208", f"{error}", (*path, "view"), 'like view: "batch[0:2, :, 3]"')
            return None

    def _kind(self, form: TensorForm, path: Path) -> Kind | None:
        given = form.model_fields_set
        if form.view is not None:
            odd = [key for key in ("type", "kind", "device", "pinned", "init", "slots") if key in given]
            if odd:
                remedy = f"leave out {', '.join(odd)}: a view has what its base has"
                self._report("SG212", f"view '{path[1]}' has {', '.join(odd)}", (*path, odd[0]), remedy)
            return Kind.VIEW
        if form.kind is not None:
            return Kind(form.kind)
        if form.type is not None or path in self.mended:
            return Kind.BUFFER
        remedy = f'write {path[1]}: "f32[8, 3]" for a buffer, or kind: input, value or resource, or view: "batch[0:2]"'
        self._report("SG102", f"tensor '{path[1]}' says neither type, kind nor view", path, remedy)
        return None

    def _slots(self, form: TensorForm, path: Path) -> int | None:
        if form.slots is None:
            return None
        number = whole_number(form.slots, self.scope, self.document, (*path, "slots"), self.report)
        if number is not None and not 1 <= number <= MOST_ITEMS:
            self._report("SG105", f"'{path[1]}' has {number} slots", (*path, "slots"), "a ring has at least one slot")
            return None
        return number

    def _type(self, spelled: str, name: str, path: Path) -> TensorType | None:
        if spelled in self._types:
            return self._types[spelled]
        try:
            made = parse_type(spelled)
            if len(made.shape) > _MOST_DIMENSIONS:
                raise ValueError(f"a tensor has at most {_MOST_DIMENSIONS} dimensions, not {len(made.shape)}")
            self._types[spelled] = made
            return made
        except ValueError as error:
            self._report("SG106", quoted(error, 300), path, "write the dtype and the shape, like f16[8, 3]")
            self.broken.add(name)
            return None

    def _device(self, spelled: str, form: TensorForm, path: Path) -> str:
        if form.device is None or path[1] in self.broken or spelled == CPU or is_gpu(spelled):
            return spelled
        remedy = "leave it out: a tensor is on the run's device unless it says otherwise" if spelled in (*_THIS_DEVICE, DEVICE) else (
            "write cpu for host memory, cuda:1 for a certain GPU, or leave it out"
        )
        self._report("SG105", f"tensor '{path[1]}' has the device '{quoted(spelled)}'", (*path, "device"), remedy)
        return DEVICE

    def _text(self, text: str, scope: Scope, path: Path) -> str | None:
        if "$" not in text or path in self._unfit:
            return None if path in self._unfit else text
        self._forms += text.count("$")
        try:
            if self._forms > _MOST_FORMS:
                raise Unfit("SG105", f"the tensors hold more than {_MOST_FORMS} '$' forms", "make it smaller")
            return interpolate(text, scope)
        except Unfit as error:
            self._unfit.add(path)
            self.report(placed(error.problem, self.document.place(path)))
            self.broken.add(str(path[1]))
            return None

    def _report(self, code: str, message: str, path: Path, remedy: str | None) -> None:
        self.report(Problem(code, message, self.document.place(path), remedy))


def whole_number(given: int | str, scope: Scope, document: Document, path: Path, report: Report) -> int | None:
    """The number that a place for whole numbers holds, after interpolation; None, reported, if it holds none."""
    try:
        value = value_of(given, scope) if isinstance(given, str) else given
    except Unfit as error:
        report(placed(error.problem, document.place(path)))
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 18:
        return int(value)
    if isinstance(value, str):
        report(Problem("SG105", f"'{quoted(value)}' is not a whole number", document.place(path), "write decimal digits"))
        return None
    return value
