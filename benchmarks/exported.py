"""A module that `torch.export` has traced becomes a Graph: one task per operator, or per chain of operators that nothing joins.

    weights     are inputs of the program, bound for good
    in place    an operator that changes its argument becomes a task that `updates` it, as its schema says
    views       get no task: every task that reads one makes it again from its storage
    chains      an operator whose only reader reads nothing else but weights is fused with it: there is nothing to run beside

Tasks that do the same on tensors that differ only by name share one operator, so that `profile` times them once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

import streamgraph as sg
from streamgraph.model import Program

TYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64"}
# What gives back its argument where there is nothing to do, although its schema says nothing of that.
IDENTITIES = frozenset({"aten::dropout"})


@dataclass(frozen=True)
class Converted:
    """The program, its operators by name, the tensors of its weights, and the names of its other inputs, in call order."""

    program: Program
    ops: dict[str, Callable[..., Any]]
    weights: dict[str, torch.Tensor]
    inputs: tuple[str, ...]


def convert(exported: torch.export.ExportedProgram, name: str, chains: bool = True) -> Converted:
    """The program that does what the module does.

    Raises:
        NotImplementedError: an operator draws random numbers, or returns several tensors.
    """
    return _Conversion(exported, name, chains).converted()


class _Conversion:
    def __init__(self, exported: torch.export.ExportedProgram, name: str, chains: bool) -> None:
        self.exported, self.graph = exported, sg.Graph(name)
        self.nodes = list(exported.graph_module.graph.nodes)
        self.calls = [node for node in self.nodes if node.op == "call_function"]
        self.handles: dict[fx.Node, Any] = {}  # of what has a storage of its own
        self.operators: dict[str, tuple[str, Callable[..., Any]]] = {}  # by its text
        # What is changed in place while somebody else reads it too: where its readers stand matters.
        self.shared = {self.storage(arg) for node in self.calls for arg in _changed(node) if len(self.storage(arg).users) > 1}
        self.group: dict[fx.Node, list[fx.Node]] = {node: [node] for node in self.calls if not _is_view(node)}
        if chains:
            self._join()

    def converted(self) -> Converted:
        weights, inputs = self._inputs()
        for node, group in self.group.items():
            if node is group[-1]:
                self._task(group)
        for result in self.nodes[-1].args[0]:
            self.graph.output(self.handles[self.storage(result)])
        return Converted(self.graph.program(), {name: function for name, function in self.operators.values()}, weights, inputs)

    def storage(self, node: fx.Node) -> fx.Node:
        """The node that made what this one is, or is a view of."""
        while node.op == "call_function" and (_is_view(node) or _changed(node)):
            node = (_changed(node) or node.all_input_nodes)[0]
        return node

    def _inputs(self) -> tuple[dict[str, torch.Tensor], tuple[str, ...]]:
        weights: dict[str, torch.Tensor] = {}
        inputs = []
        held = {**self.exported.state_dict, **self.exported.constants}
        for node, spec in zip(self.nodes, self.exported.graph_signature.input_specs, strict=False):
            if node.users:
                self.handles[node] = self.graph.input(node.name, _type(node))
                if spec.target is None:
                    inputs.append(node.name)
                else:
                    weights[node.name] = held[spec.target].detach()
        return weights, tuple(inputs)

    def _join(self) -> None:
        """Put each operator in one group with its only reader, where that reads nothing else that is made here."""
        for node in reversed(list(self.group)):
            (reader,) = self._readers(node) if len(self._readers(node)) == 1 else (None,)
            leaves = {self.storage(arg) for arg in node.all_input_nodes}
            if reader is None or reader.op == "output" or leaves & self.shared or node in self.shared:
                continue
            others = {self.storage(arg) for other in self.group[reader] for arg in other.all_input_nodes} - {*self.group[reader], node}
            if all(other.op == "placeholder" for other in others):
                group = self.group[reader]
                group.insert(0, node)
                self.group[node] = group

    def _readers(self, node: fx.Node) -> list[fx.Node]:
        """What uses the result, through views."""
        found: dict[fx.Node, None] = {}
        pending = list(node.users)
        while pending:
            user = pending.pop()
            if user.op == "call_function" and _is_view(user):
                pending += user.users
            else:
                found[user] = None
        return list(found)

    def _task(self, group: list[fx.Node]) -> None:
        """One task: these operators one after another."""
        inside = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        leaves: list[fx.Node] = []
        changed = {self.storage(arg) for node in group for arg in _changed(node)} - set(group)
        wanted = sorted({leaf for node in group for leaf in self._leaves(node, group)}, key=self.nodes.index)
        for leaf in sorted(wanted, key=lambda leaf: leaf not in changed):  # what is updated is passed first
            copies[leaf] = inside.placeholder(f"x{len(leaves)}")
            leaves.append(leaf)
        for node in group:
            self._copy(node, inside, copies)
        last = group[-1]
        result = self.storage(last)
        made = result in group
        inside.output(copies[last] if made else None)
        run = self._operator(inside, group)
        reads = [self.handles[leaf] for leaf in leaves if leaf not in changed]
        updates = [self.handles[leaf] for leaf in leaves if leaf in changed]
        if made:
            self.graph.value(result.name, _type(result))
        handles = self.graph.task(last.name, run, reads=reads, updates=updates or None, writes=result.name if made else None)
        written = [*([result] if made else []), *(leaf for leaf in leaves if leaf in changed)]
        self.handles.update(zip(written, handles if isinstance(handles, tuple) else (handles,), strict=True))

    def _leaves(self, node: fx.Node, group: list[fx.Node]) -> Iterator[fx.Node]:
        """What the node needs that the group does not make."""
        for arg in node.all_input_nodes:
            storage = self.storage(arg)
            if storage not in group:
                yield storage

    def _copy(self, node: fx.Node, inside: fx.Graph, copies: dict[fx.Node, fx.Node]) -> fx.Node:
        """The node within a task, with the views that it reads."""
        pending = [node]
        while pending:
            last = pending[-1]
            missing = [arg for arg in last.all_input_nodes if arg not in copies]
            # What another task has changed in place is found where it lies.
            for arg in [arg for arg in missing if _changed(arg) and not _is_view(arg)]:
                copies[arg] = copies[self.storage(arg)]
                missing.remove(arg)
            if missing:
                pending += missing
                continue
            pending.pop()
            if last not in copies:
                args, kwargs = (fx.node.map_arg(given, copies.__getitem__) for given in (last.args, last.kwargs))
                copies[last] = inside.create_node("call_function", last.target, args, kwargs)  # a copy would keep its name
        return copies[node]

    def _operator(self, inside: fx.Graph, group: list[fx.Node]) -> str:
        text = inside.python_code("self").src
        if text not in self.operators:
            name = f"{'_'.join(dict.fromkeys(str(node.target.overloadpacket.__name__) for node in group))}__{len(self.operators)}"
            self.operators[text] = name, fx.GraphModule({}, inside).forward
        return self.operators[text][0]


def _changed(node: fx.Node) -> list[fx.Node]:
    """The arguments that the operator changes in place."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    found = []
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            found += [value] if isinstance(value, fx.Node) else []
    return found


def _is_view(node: fx.Node) -> bool:
    """Whether the result shares the memory of an argument that stays as it is."""
    target: Any = node.target
    if torch.Tag.nondeterministic_seeded in target.tags and not (target._schema.name in IDENTITIES and node.args[-1] is False):
        raise NotImplementedError(f"{target} draws random numbers")
    if len(target._schema.returns) != 1 or not isinstance(node.meta["val"], torch.Tensor):
        raise NotImplementedError(f"{target} returns several tensors")
    alias = target._schema.returns[0].alias_info
    return target._schema.name in IDENTITIES or (alias is not None and not alias.is_write)


def _type(node: fx.Node) -> str:
    value = node.meta["val"]
    return f"{TYPES[value.dtype]}[{', '.join(str(int(size)) for size in value.shape)}]"
