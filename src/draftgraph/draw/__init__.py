"""Pictures: a `StepView` of plain values in, an SVG or an HTML page of one decoding step out; and charts of numbers.

Above, the token graph with everything the drafters proposed; below, the tree unrolled from it that the target verified
in one pass; at the foot, what the step wrote. Pure functions: the same view gives the same bytes. Token text is made
visible and always escaped; the output refers to nothing outside itself. Must never know an engine or a model.
"""

from draftgraph.draw.chart import Bars, Floor, Lines, Series, render_bars, render_lines
from draftgraph.draw.page import render_html
from draftgraph.draw.panels import Panel, lay_out
from draftgraph.draw.style import NUM_COLOURS
from draftgraph.draw.svg import render_svg
from draftgraph.draw.text import visible
from draftgraph.draw.tree import render_tree
from draftgraph.draw.view import StepView, ViewEdge, ViewNode, ViewTreeNode, sources_of

__all__ = [
    "NUM_COLOURS",
    "Bars",
    "Floor",
    "Lines",
    "Panel",
    "Series",
    "StepView",
    "ViewEdge",
    "ViewNode",
    "ViewTreeNode",
    "lay_out",
    "render_bars",
    "render_html",
    "render_lines",
    "render_svg",
    "render_tree",
    "sources_of",
    "visible",
]
