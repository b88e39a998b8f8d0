"""The cost of a compiled module, from the graphs that torch.compile makes of it.

AOTAutograd traces forward and backward together, with Inductor's decompositions. Its min-cut partitioner decides what
forward saves and what backward computes again: the same code that runs when the module is compiled. Inductor itself is
not run. A tensor is taken to be stored if it is the result of a matrix product, attention, convolution or reduction, an
argument of one of the first three, or a result of the graph; whatever lies between is one kernel.
"""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointPolicy
from torch.utils.flop_counter import flop_registry

from muster_components.trainer.planning.cost import Cost, Work, is_attention, is_view, kernel_work, tensor_bytes

Policies = Mapping[str, Callable[[Any], CheckpointPolicy] | None]
"""By mode of recomputation: what it says of an operator; None: the partitioner decides alone."""

_STORED_RESULTS: Final = ("embedding", "index", "sort", "cumsum", "topk", "nll_loss", "gather")
"""Parts of names of other operators whose results are stored."""


def compiled_costs(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], policies: Policies, memory_budget: float = 1.0
) -> dict[str, Cost]:
    """The cost by mode of recomputation. Call it in a FakeTensorMode, with tensors of that mode.

    `memory_budget`: of the activations that it would save, the share that it may save. Raises whatever
    torch raises for a module that it cannot trace.
    """
    parameters: dict[str, Tensor] = dict(module.named_parameters())
    leaves, spec = pytree.tree_flatten((args, kwargs))
    positions = [index for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    tensors = [leaves[index].detach().requires_grad_(leaves[index].requires_grad) for index in positions]

    def call(weights: dict[str, Tensor], inputs: list[Tensor]) -> Any:
        values = list(leaves)
        for position, tensor in zip(positions, inputs, strict=True):
            values[position] = tensor
        call_args, call_kwargs = pytree.tree_unflatten(values, spec)
        return pytree.tree_leaves(torch.func.functional_call(module, weights, call_args, call_kwargs))

    costs: dict[str, Cost] = {}

    def partition(joint: fx.GraphModule, joint_inputs: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        halves = None
        for mode, policy in policies.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of how torch copies its own tree of arguments
                graph = copy.deepcopy(joint)
            if policy is not None:
                _tag(graph, policy)
            halves = min_cut_rematerialization_partition(graph, joint_inputs, compiler="inductor", **options)
            costs[mode] = _cost(*halves, options["num_fwd_outputs"])
        assert halves is not None
        return halves

    def unchanged(gm: fx.GraphModule, example_inputs: Any) -> Any:
        return make_boxed_func(gm.forward)

    traced = aot_function(call, unchanged, unchanged, partition_fn=partition, decompositions=select_decomp_table())
    with torch._functorch.config.patch(activation_memory_budget=memory_budget):
        outputs = [leaf for leaf in traced(parameters, tensors) if isinstance(leaf, Tensor)]
    if not costs:  # nothing needs a gradient
        return dict.fromkeys(policies, Cost(retained=tensor_bytes(outputs), output=tensor_bytes(outputs)))
    return costs


def _tag(joint: fx.GraphModule, policy: Callable[[Any], CheckpointPolicy]) -> None:
    """Mark the operators of forward as torch.utils.checkpoint does while torch.compile traces it."""
    backward: set[fx.Node] = set()
    for node in joint.graph.nodes:
        if "tangents" in node.name or any(source in backward for source in node.all_input_nodes):
            backward.add(node)
        elif node.op == "call_function":
            node.meta["recompute"] = policy(_producer(node).target)
            node.meta["ac_graph_id"] = 0


def _cost(forward: fx.GraphModule, backward: fx.GraphModule, outputs: int) -> Cost:
    results = [node for node in pytree.tree_leaves(forward.graph.output_node().args[0]) if isinstance(node, fx.Node)]
    owners = {node.name: _owner(node) for node in results}
    kept = {owner for owner in owners.values() if owner.op != "placeholder"}
    returned = {_owner(node) for node in results[:outputs]} & kept
    forward_run = _GraphRun(forward, {})
    # What is saved is freed after its last use, several views of one tensor after the last of them.
    backward_run = _GraphRun(backward, {name: owner for name, owner in owners.items() if owner in kept})
    return Cost(
        retained=sum(_bytes(owner) for owner in kept),
        output=sum(_bytes(owner) for owner in returned),
        forward_extra=forward_run.peak,
        backward_extra=backward_run.peak,
        forward=forward_run.work,
        backward=backward_run.work,
    )


def _bytes(node: fx.Node) -> int:
    return tensor_bytes(_value(node))


def _owner(node: fx.Node) -> fx.Node:
    """The node whose memory this node's value is in."""
    while node.op == "call_function":
        if node.target is operator.getitem:
            source = node.args[0]
            assert isinstance(source, fx.Node)
            if not is_view(source.target):
                return node  # one of several results, each with its own memory
            node = source
        elif is_view(node.target) and isinstance(node.args[0], fx.Node):
            node = node.args[0]
        else:
            return node
    return node


def _value(node: fx.Node) -> Any:
    return node.meta.get("val")


class _GraphRun:
    """Memory and work of one graph, executed in its order: `peak` is the most that is allocated beyond its inputs."""

    def __init__(self, graph: fx.GraphModule, freed_inputs: Mapping[str, fx.Node]) -> None:
        """`freed_inputs`: by the name of an input the tensor that its memory belongs to, if the graph may free it."""
        self.peak = 0.0
        self.work = Work()
        self._counted: set[fx.Node] = set()
        nodes = list(graph.graph.nodes)
        output = graph.graph.output_node()
        self._stored = self._find_stored(nodes, output)
        sources = self._find_sources(nodes)
        last_use: dict[fx.Node, int] = {}
        for index, node in enumerate(nodes):
            if node in self._stored or node is output or _is_kernel(node):
                for source in sources[node]:
                    owner = freed_inputs.get(source.name, source) if source.op == "placeholder" else source
                    if owner.op != "placeholder":
                        last_use[owner] = index
        live, fresh = 0.0, set[fx.Node]()
        frees: dict[int, list[fx.Node]] = {}
        for node, index in last_use.items():
            frees.setdefault(index, []).append(node)
        for index, node in enumerate(nodes):
            freed = [_bytes(source) for source in frees.get(index, ())]
            if node in self._stored:
                size = _bytes(node)
                if size in freed and not _is_kernel(_producer(node)):  # Inductor writes over its argument
                    freed.remove(size)
                    size = 0
                live += size
                self.peak = max(self.peak, live)
                fresh = self._add_work(node, sources[node], fresh)
            live -= sum(freed)

    def _find_stored(self, nodes: Sequence[fx.Node], output: fx.Node) -> set[fx.Node]:
        stored = {_owner(source) for source in output.all_input_nodes}
        for node in nodes:
            if node.op != "call_function":
                continue
            if _is_kernel(node):
                stored |= {_owner(source) for source in node.all_input_nodes}
                stored.add(node)
            elif _is_reduction(node):
                stored.add(node)
        # Of several results each is stored, not the tuple.
        stored |= {node for node in nodes if node.target is operator.getitem and _owner(node) is node}
        return {node for node in stored if node.op == "call_function" and isinstance(_value(node), Tensor)}

    def _find_sources(self, nodes: Sequence[fx.Node]) -> dict[fx.Node, frozenset[fx.Node]]:
        """The stored tensors and inputs that each node reads, through all that is fused with it."""
        sources: dict[fx.Node, frozenset[fx.Node]] = {}
        for node in nodes:
            found: set[fx.Node] = set()
            for argument in node.all_input_nodes:
                owner = _owner(argument)
                if owner in self._stored or owner.op == "placeholder":
                    found.add(owner)
                else:
                    found |= sources[owner] | sources[argument]
            sources[node] = frozenset(found)
        return sources

    def _add_work(self, node: fx.Node, sources: frozenset[fx.Node], fresh: set[fx.Node]) -> set[fx.Node]:
        """Between two kernels that are not Inductor's own, each tensor is taken to be read once."""
        producer = _producer(node)
        if _is_kernel(producer):
            if producer not in self._counted:
                self._counted.add(producer)
                operation, arguments = _operation(producer)
                args, kwargs = pytree.tree_map_only(fx.Node, _value, (arguments, producer.kwargs))
                work = kernel_work(operation, args, kwargs, _value(producer))
                assert work is not None
                self.work += work
            return set()
        unread = sources - fresh
        traffic = sum(tensor_bytes(_value(source)) for source in unread) + tensor_bytes(_value(node))
        self.work += Work(traffic=traffic, kernels=1 if unread or not fresh else 0)
        return fresh | unread | {node}


def _producer(node: fx.Node) -> fx.Node:
    """The node whose result, or one of whose results, this is."""
    while node.target is operator.getitem:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        node = source
    return node


def _operation(node: fx.Node) -> tuple[Any, Sequence[Any]]:
    """The operator that a node calls and its arguments; that of a random one is called with the generator's state."""
    for index, argument in enumerate(node.args[:2]):
        if isinstance(argument, torch._ops.OpOverload):
            return argument, node.args[index + 1 :]
    return node.target, node.args


def _is_kernel(node: fx.Node) -> bool:
    """Whether the node is a kernel of its own, which Inductor calls and does not write."""
    if node.op != "call_function":
        return False
    operation, _ = _operation(node)
    return is_attention(operation) or getattr(operation, "overloadpacket", None) in flop_registry


def _is_reduction(node: fx.Node) -> bool:
    """Whether the node has fewer elements than what it reads, or is one of the operators that are never fused."""
    value = _value(node)
    if not isinstance(value, Tensor) or is_view(node.target):
        return False
    if "scatter" in str(node.target):  # one-hot rows are computed where they are used
        target = node.args[0]
        return not (isinstance(target, fx.Node) and "aten.full" in str(target.target))
    if any(part in str(node.target) for part in _STORED_RESULTS):
        return True
    sizes = [_value(source).numel() for source in node.all_input_nodes if isinstance(_value(source), Tensor)]
    return value.numel() < max(sizes, default=0)
