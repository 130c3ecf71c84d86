"""Elements of SVG as text: whatever a name holds, it stays text."""

from __future__ import annotations

from xml.sax.saxutils import escape

from streamgraph.render.arrows import coordinate


def element(tag: str, content: str | None = None, **attributes: str | float) -> str:
    """One element: `content` is markup that is already safe, attributes are escaped here. `class_` is class, `_` is a hyphen."""
    pairs: list[str] = []
    for key, value in attributes.items():
        spelled = coordinate(value) if isinstance(value, (int, float)) else escape(value, {'"': "&quot;"})
        pairs.append(f' {key.rstrip("_").replace("_", "-")}="{spelled}"')
    return f"<{tag}{''.join(pairs)}/>" if content is None else f"<{tag}{''.join(pairs)}>{content}</{tag}>"


def text(content: str, x: float, y: float, class_: str = "", anchor: str = "") -> str:
    """A line of text at a point; `anchor` is SVG's text-anchor."""
    extra = ({"class_": class_} if class_ else {}) | ({"text_anchor": anchor} if anchor else {})
    return element("text", escape(content), x=x, y=y, **extra)


def title(*lines: str) -> str:
    """What a browser shows under the pointer, and a screen reader reads."""
    return element("title", escape("\n".join(lines)))
