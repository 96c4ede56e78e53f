"""Text in a picture: every character made visible, measured, shortened and escaped.

In: any string, also one that no SVG may hold. Out: strings that are safe in an SVG, and widths in pixels or in narrow
characters, estimated since the viewer's fonts are unknown. Must never know views, layouts or colours.
"""

from __future__ import annotations

import html
import unicodedata

MAX_TOKEN_COLUMNS = 15.0
MONO = 13.0  # font size of tokens, pixels
COLUMN = 0.61 * MONO  # advance of one narrow character
CAP = 13.0  # width of a pill's coloured end
JOINER = "\u200d"  # joins emoji into one
MARKS = {" ": "·", "\n": "⏎", "\t": "⇥"}
NARROW, WIDE = frozenset("fijlrtI.,:;'!|()[] "), frozenset("mwMW%@")


def visible(text: str) -> str:
    """Token text with every character visible: '·' a space, '⏎' a newline, '⇥' a tab, code points as '⟨200B⟩'."""
    if not text:
        return "∅"
    shown = "".join(_visible_character(text, index) for index in range(len(text)))
    return "◌" + shown if unicodedata.category(text[0]) in ("Mn", "Me") else shown


def _visible_character(text: str, index: int) -> str:
    character = text[index]
    if character in MARKS:
        return MARKS[character]
    category = unicodedata.category(character)
    if character == JOINER and 0 < index < len(text) - 1:
        return character
    if category[0] in "CZ":
        return f"⟨{ord(character):02X}⟩"
    return character


def marked(text: str) -> str:
    """Escaped text with its whitespace marks in lighter ink."""
    if all(character in "·⏎⇥" for character in text):
        return text
    parts = [f'<tspan class="ws">{c}</tspan>' if c in "·⏎⇥…" else escape(c) for c in text]
    return "".join(parts).replace('</tspan><tspan class="ws">', "")


def shortened(text: str, room: float) -> str:
    """At most `room` columns, the end cut off."""
    if len(text) <= 4 * room and text_columns(text) <= room:
        return text
    kept = ""
    for character in text:
        if text_columns(kept + character) > room - 1.0 or len(kept) > 4 * room:
            break
        kept += character
    return kept + "…"


def tail_of(text: str, room: float) -> str:
    """The visible end of a text, at most `room` columns."""
    text = visible(text[-256:]) if text else ""
    return text if text_columns(text) <= room else shortened(text[::-1], room)[::-1]


def text_columns(text: str) -> float:
    """Width in narrow characters."""
    return sum(_character_columns(c) for c, before in zip(text, " " + text, strict=False) if before != JOINER)


def _character_columns(character: str) -> float:
    category = unicodedata.category(character)
    if category in ("Mn", "Me", "Cf"):
        return 0.0
    if unicodedata.east_asian_width(character) in "WF":
        return 2.15 if category == "So" else 1.7
    return 1.3 if category in ("So", "Sm") else 1.0


def label_width(text: str) -> float:
    """Width of interface text, in font sizes."""
    return sum(0.31 if c in NARROW else 0.86 if c in WIDE else 0.575 for c in text)


def token_width(token: str, has_number: bool) -> float:
    """Width of a token's pill in pixels, with room for a number or without."""
    text = text_columns(shortened(visible(token), MAX_TOKEN_COLUMNS)) * COLUMN
    return round(max(CAP + 6 + text + 8 + 20 + 10 if has_number else 22 + text, 34.0), 1)


def clean(text: str) -> str:
    """Text of one line, without characters that an SVG may not hold."""
    return visible(text).replace("·", " ")


def escape(text: str) -> str:
    """Text as SVG and HTML write it, also inside quotes."""
    return html.escape(text, quote=True)


def px(number: float) -> str:
    """A length in pixels as SVG writes it, with one decimal at most."""
    return f"{number:.1f}".removesuffix(".0")
