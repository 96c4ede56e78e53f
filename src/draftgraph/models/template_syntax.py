"""The syntax of chat templates: what a parsed template is rewritten to before it becomes code.

In: Jinja's tree of a template. Out: the same tree, with filters in it that charge for what Jinja does without asking
its environment. Knows nothing of what a charge is.
"""

from __future__ import annotations

from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

MAX_LITERAL_BITS = 60  # beyond, whole numbers can be chosen whose hashes are equal, and tables of them are slow


class Charging(NodeTransformer):
    """Rewrites a template so that loops, comparisons, look-ups, spread arguments and joins of text are charged."""

    def visit_Const(self, node: nodes.Const) -> nodes.Const:  # noqa: N802
        if isinstance(node.value, int) and node.value.bit_length() > MAX_LITERAL_BITS:
            raise SecurityError(f"a whole number of more than {MAX_LITERAL_BITS} bits in the template")
        return node

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "counted")
        return node

    def visit_Concat(self, node: nodes.Concat) -> Any:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "concatenated")

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        self.generic_visit(node)
        node.expr = _filtered(node.expr, "charged")
        for operand in node.ops:
            operand.expr = _filtered(operand.expr, "charged")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Getitem:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _filtered(node.node, "charged")
        else:
            node.arg = _filtered(node.arg, "charged")
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Pair:  # noqa: N802
        self.generic_visit(node)
        node.key = _filtered(node.key, "key")
        return node

    def visit_Call(self, node: nodes.Call) -> Any:  # noqa: N802
        return self._spread(node)

    def visit_Filter(self, node: nodes.Filter) -> Any:  # noqa: N802
        return self._spread(node)

    def visit_Test(self, node: nodes.Test) -> Any:  # noqa: N802
        return self._spread(node)

    def _spread(self, node: Any) -> Any:
        self.generic_visit(node)
        if node.dyn_args is not None:
            node.dyn_args = _filtered(node.dyn_args, "list")
        if node.dyn_kwargs is not None:
            node.dyn_kwargs = _filtered(node.dyn_kwargs, "charged")
        return node


class GenerationTag(Extension):
    """Reads `{% generation %}`, which only marks text for training, as its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _filtered(node: Any, name: str) -> Any:
    if isinstance(node, nodes.Const):
        return node
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
