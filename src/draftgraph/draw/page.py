"""Steps as an HTML page: one picture, or several to walk through with the arrow keys.

In: `StepView`s. Out: a page that refers to nothing outside itself and follows light and dark. Must never know an engine
or a model.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftgraph.draw.style import DARK, DARK_SOURCES, LIGHT, LIGHT_SOURCES, PAGE, PAGE_CSS, SCRIPT, WALK, css
from draftgraph.draw.svg import draw_step, palette_of
from draftgraph.draw.text import clean, escape
from draftgraph.draw.view import StepView, require


def render_html(views: StepView | Sequence[StepView]) -> str:
    """A self-contained page: one step, or several to walk through with the arrow keys. Follows light and dark.

    Raises:
        ParameterError: there is no view to draw.
    """
    views = [views] if isinstance(views, StepView) else list(views)
    require(bool(views), "no view", "one view or more")
    palette = palette_of(views)
    steps = "\n".join(f'<section class="step">{draw_step(view, palette, style="")}</section>' for view in views)
    walk = "" if len(views) == 1 else WALK
    style = css(LIGHT, LIGHT_SOURCES) + PAGE_CSS % LIGHT
    dark = css(DARK, DARK_SOURCES) + PAGE_CSS % DARK
    return PAGE % {
        "title": escape(clean(views[0].title)),
        "style": f"{style}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}",
        "walk": walk,
        "steps": steps,
        "script": SCRIPT,
    }
