"""A spec in its long form becomes a Program: params, `each` and groups are multiplied out, names and wildcards are resolved.

One task expands completely before the next; a group expands item by item. Undeclared names that a task writes are values. Everything that
is wrong is reported at its place, once, and does not stop the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from streamgraph.errors import Location, Problem, quoted
from streamgraph.model import OUTPUT_PREFIX, Argument, Kind, Output, Program, Stream, Task, Tensor
from streamgraph.names import LONGEST_NAME, near
from streamgraph.spec.declare import Declarations, placed, read_keys, whole_number
from streamgraph.spec.document import Document, Path
from streamgraph.spec.faults import Checked
from streamgraph.spec.filling import MOST_CHARACTERS, Filling, TooLarge
from streamgraph.spec.interpolate import KEY, Scope, Unfit, combinations, interpolate, member
from streamgraph.spec.resolve import Earlier, Members, Texts
from streamgraph.spec.schema import Spec, TaskForm
from streamgraph.spec.template import COPY, Template, make_template
from streamgraph.spec.values import Entry
from streamgraph.validate import MOST_ACCESSES, MOST_TASKS

_MOST_PROBLEMS = 10_000


@dataclass(frozen=True, slots=True)
class Expansion:
    """A program, not yet finished, what was wrong, places for what has none of its own, and the names that are reported already."""

    program: Program
    problems: tuple[Problem, ...]
    places: Mapping[str, Location]
    broken: frozenset[str]


def expand_spec(checked: Checked, document: Document, params: Mapping[str, object] | None, name: str) -> Expansion:
    """The program that a checked spec declares, under `name` unless it has its own."""
    assert checked.spec is not None, "bug in streamgraph: nothing to expand"
    return _Expander(checked.spec, checked, document).run(params or {}, name)


@dataclass(frozen=True, slots=True)
class _Inherited:
    """What a group gives to its tasks."""

    items: tuple[int | str, ...] = ()
    after: Texts = ()
    stream: str | None = None


class _Expander:
    def __init__(self, spec: Spec, checked: Checked, document: Document) -> None:
        self.spec, self.document, self.mended = spec, document, checked.mended
        self.problems: dict[Problem, None] = {}
        self.places: dict[str, Location] = {}
        self.scope: dict[str, int | str] = {}
        self.declared = Declarations(document, self.scope, checked.mended, self.report)
        self.values: dict[str, Location | None] = {}
        self.earlier = Earlier()
        self.tasks = self.earlier.tasks
        self.wild: list[tuple[int, list[tuple[str, Entry, tuple[str, ...], Location | None]]]] = []
        self.failed: set[str] = set()
        self.templates: dict[Path, Template] = {}
        self.fill = Filling(document, self.report)
        self.accesses = self.steps = 0

    def report(self, problem: Problem) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems[problem] = None

    def _report(self, code: str, message: str, path: Path, remedy: str | None = None, severity: str = "error") -> None:
        self.report(Problem(code, message, self.document.place(path), remedy, severity=severity))

    def run(self, params: Mapping[str, object], name: str) -> Expansion:
        self._params(params)
        for tensor, form in self.spec.tensors.items():
            self.declared.add(tensor, form)
        try:
            self._body(self.spec.tasks, (), self.scope, _Inherited())
        except TooLarge:
            message = f"a spec expands to at most {MOST_TASKS} tasks, {MOST_ACCESSES} accesses and {MOST_CHARACTERS} characters"
            self._report("SG105", message, ("tasks",), "make it smaller")
        self.declared.finish(self.values)
        tensors = (*self.declared.tensors, *(Tensor(value, Kind.VALUE, location=place) for value, place in self.values.items()))
        members = Members((tensor.name for tensor in tensors), self.declared.families)
        self._wildcards(members)
        for problem in self.earlier.problems(self.failed):
            self.report(problem)
        own = self.spec.name if self.spec.name is not None else name
        if len(own) > LONGEST_NAME:
            self._report("SG007", f"the program's name has {len(own)} characters; {LONGEST_NAME} are allowed", ("name",), "shorten it")
        outputs = tuple(self._outputs(members))
        program = Program(own, tensors, tuple(self.tasks), tuple(self._streams()), outputs, tuple(self.declared.families))
        return Expansion(program, tuple(self.problems), self.places, frozenset(self.declared.broken))

    # --- top level ---

    def _params(self, overrides: Mapping[str, object]) -> None:
        given = dict(self.spec.params)
        for name in given:
            if KEY.match(name) is None:
                remedy = "begin it with a letter"
                place = self.document.key_place(("params", name))
                self.report(Problem("SG204", f"'{quoted(name)}' is not a parameter name", place, remedy))
        for name, value in overrides.items():
            if name not in given:
                close = near(str(name), given)
                remedy = f"did you mean '{close}'?" if close else f"it has {', '.join(given)}" if given else "it has none"
                self.report(Problem("SG109", f"the spec has no parameter '{quoted(name)}'", None, remedy))
            elif isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63:
                given[name] = value
            elif isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value):
                given[name] = int(value)
            else:
                self.report(Problem("SG105", f"parameter '{name}' is {quoted(repr(value))}", None, "parameters are whole numbers"))
        for name, value in given.items():
            number = whole_number(value, self.scope, self.document, ("params", name), self.report)
            self.scope[name] = 1 if number is None else number  # any number: nothing more is said about it

    def _streams(self) -> Iterator[Stream]:
        for name, form in self.spec.streams.items():
            place = self.document.key_place(("streams", name))
            if place is not None:
                self.places[f"stream:{name}"] = place
            yield Stream(name, form.priority)

    def _outputs(self, members: Members) -> Iterator[Output]:
        given = self.spec.outputs
        named = list(given.items()) if isinstance(given, dict) else [(number, text) for number, text in enumerate(given)]
        for key, text in named:
            path: Path = ("outputs", key)
            try:
                name = interpolate(text, self.scope)
            except Unfit as error:
                self.report(placed(error.problem, self.document.place(path)))
                continue
            for one in self._members(members, name, "an output is", self.document.place(path)):
                output = str(key) if isinstance(given, dict) else one
                place = self.document.place(path)
                if place is not None:
                    self.places.setdefault(OUTPUT_PREFIX + output, place)
                yield Output(output, one)

    # --- tasks ---

    def _body(self, forms: Mapping[str, TaskForm], path: Path, scope: Scope, inherited: _Inherited) -> None:
        # Recursion is as deep as groups nest, which the depth of a file bounds.
        shared: dict[str, list[tuple[Template, tuple[str, ...]]]] = {}
        for name, form in forms.items():
            here: Path = (*path, "tasks", name)
            template = self.templates.get(here) if path else None
            if template is None:
                template = make_template(name, form, here, self.document, self.mended, self.report)
                if path:  # a group comes round again, the top level does not
                    self.templates[here] = template
            start = len(self.tasks)
            if name in self.failed:
                continue
            if form.each is None and form.tasks is None:  # as most are in a large file
                template.updated.clear()
                self._step()
                self._task(template, scope, inherited, inherited.items)
                if inherited.items:
                    self.earlier.stands_for(name, start)
                continue
            keys = read_keys(form.each, scope, self.document, here, self.report) if form.each is not None else ()
            if keys is None:
                self._gave_up(template)
                continue
            names = tuple(key for key, _ in keys)
            template.updated.clear()
            for items in combinations(keys):
                inner = {**scope, **dict(zip(names, items, strict=True))} if keys else scope
                first = len(self.tasks)
                self._step()
                all_items = inherited.items + items
                if form.tasks is None:
                    self._task(template, inner, inherited, all_items)
                    continue
                stream = self.fill.text(form.stream, inner, (*here, "stream")) if form.stream is not None else inherited.stream
                self._body(form.tasks, here, inner, _Inherited(all_items, (*inherited.after, *self._after_texts(template, inner)), stream))
                if all_items:
                    self.earlier.stands_for(member(name, all_items), first)
            if form.tasks is not None or keys or inherited.items:
                self.earlier.stands_for(name, start)
                if keys and inherited.items:
                    self.earlier.stands_for(member(name, inherited.items), start)
            if keys and form.tasks is None:
                self._interleaving(template, names, shared)

    def _step(self) -> None:
        self.steps += 1  # groups can go round without making a task
        if self.steps > MOST_TASKS:
            raise TooLarge

    def _interleaving(self, template: Template, keys: tuple[str, ...], shared: dict[str, list[tuple[Template, tuple[str, ...]]]]) -> None:
        for tensor, times in template.updated.items():
            if times < 2 or self.declared.kinds.get(tensor) is Kind.RESOURCE:
                continue
            for earlier, earlier_keys in shared.get(tensor, ()):
                both = [key for key in keys if key in earlier_keys]
                if both:
                    message = (
                        f"all '{earlier.name}' update '{tensor}' before all '{template.name}' do, though both go by '{both[0]}'"
                    )  # fmt: skip
                    remedy = f"put both into a group with each: {{{both[0]}: ...}} to take turns, or ignore this if it is meant"
                    related = (("first here", earlier.where),) if earlier.where is not None else ()
                    self.report(Problem("SG305", message, template.where, remedy, related, "warning"))
                    break
            shared.setdefault(tensor, []).append((template, keys))

    def _task(self, template: Template, scope: Scope, inherited: _Inherited, items: tuple[int | str, ...]) -> None:
        form, path = template.form, template.path
        name = member(template.name, items) if items else template.name
        sides: dict[str, list[Argument]] = {"updates": [], "reads": [], "writes": []}
        wild = False
        seen: list[tuple[str, Entry, tuple[str, ...], Location | None]] = []
        for role, entry, place, ready in template.entries:
            argument = ready
            if argument is None:
                names = self.fill.texts(entry.names, scope, (*path, role, *entry.at), place)
                if names is None:
                    self._lost(entry.names if role == "writes" else ())
                    continue
                wild = wild or any("*" in text for text in names)
                argument = Argument(names, entry.is_list, entry.keyword, place)
            seen.append((role, entry, argument.tensors, place))
            sides[role].append(argument)
            self.accesses += len(argument.tensors)
            if role == "writes":
                for written in argument.tensors:
                    if written not in self.declared.kinds and "*" not in written:
                        self.values.setdefault(written, place)
            elif role == "updates":
                for updated in argument.tensors:
                    template.updated[updated] = template.updated.get(updated, 0) + 1
        const = template.const
        if const is None:
            self.fill.spend(template.forms, template.length)
            const = tuple((key, self.fill.const(value, scope, (*path, "const", key))) for key, value in (form.const or {}).items())
        stream = form.stream if form.stream is not None else inherited.stream
        if stream is not None and "$" in stream:
            stream = self.fill.text(stream, scope, (*path, "stream"))
        cost = self.fill.cost(self.fill.text(form.cost, scope, (*path, "cost")), (*path, "cost")) if form.cost is not None else None
        operator = "unknown" if form.run is None else self.fill.text(form.run, scope, (*path, "run"))
        if form.copy_ is not None and template.entries:
            operator = "copy"
        after = self._after(name, (*inherited.after, *self._after_texts(template, scope))) if inherited.after or template.after else ()
        if wild:
            self.wild.append((len(self.tasks), seen))
        self.earlier.add(
            Task(
                name, operator, tuple(sides["reads"]), tuple(sides["writes"]), tuple(sides["updates"]), const, after, stream, cost,
                form.host, form.note, None, template.where,
            )
        )  # fmt: skip
        if len(self.tasks) > MOST_TASKS or self.accesses > MOST_ACCESSES:
            raise TooLarge

    def _after(self, task: str, texts: Texts) -> tuple[str, ...]:
        found = self.earlier.find(task, texts, MOST_ACCESSES - self.accesses)
        if found is None:
            raise TooLarge
        self.accesses += len(found)
        return found

    def _gave_up(self, template: Template) -> None:
        """Nothing follows from the tasks of an entry that could not be expanded: neither their names nor what they write."""
        pending = [(template.name, template.form)]
        while pending:
            name, form = pending.pop()
            self.failed.add(name)
            target = COPY.match(form.copy_) if form.copy_ is not None else None
            self._lost([text for entry in form.writes for text in entry.names] + ([target[2]] if target is not None else []))
            pending += (form.tasks or {}).items()

    def _lost(self, texts: list[str] | tuple[str, ...]) -> None:
        self.declared.broken.update(re.split(r"[@$*]", text)[0] for text in texts)

    def _after_texts(self, template: Template, scope: Scope) -> Texts:
        found: list[tuple[str, Location | None]] = []
        for number, (text, place) in enumerate(template.after):
            names = self.fill.texts((text,), scope, (*template.path, "after", number), place)
            found += [(name, place) for name in names or ()]
        return tuple(found)

    def _wildcards(self, members: Members) -> None:
        for number, entries in self.wild:
            sides: dict[str, list[Argument]] = {"updates": [], "reads": [], "writes": []}
            for role, entry, names, place in entries:
                found: list[str] = []
                for text in names:
                    found += self._members(members, text, f"task '{self.tasks[number].name}' {role}", place)
                self.accesses += len(found)
                is_list = entry.is_list or "*" in "".join(names)
                if found or is_list:
                    sides[role].append(Argument(tuple(found), is_list, entry.keyword, place))
            if self.accesses > MOST_ACCESSES:
                self._report("SG105", f"a program has at most {MOST_ACCESSES} accesses", ("tasks",), "make it smaller")
                return
            self.tasks[number] = replace(
                self.tasks[number], reads=tuple(sides["reads"]), writes=tuple(sides["writes"]), updates=tuple(sides["updates"])
            )

    def _members(self, members: Members, text: str, doing: str, place: Location | None) -> list[str]:
        if "*" not in text:
            return [text]
        found = members.matching(text)
        if not found and text.partition("@")[0] not in self.declared.broken:
            self.report(members.nothing(text, doing, place))
        return found
