"""Lines over time as one SVG file: a panel per cell, a line per engine."""

from __future__ import annotations

from html import escape

WIDTH, PANEL, MARGIN = 760, 220, 56
COLOURS = ("#0b6e4f", "#c1440e", "#2f4b7c", "#7a5195")

Points = list[tuple[float, float]]


def plot(panels: dict[str, dict[str, Points]]) -> str:
    """Draw jobs per second over seconds."""
    size = f'width="{WIDTH}" height="{PANEL * len(panels)}"'
    font = 'font-family="sans-serif" font-size="11"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, (title, lines) in enumerate(panels.items()):
        parts.append(f'<g transform="translate(0,{number * PANEL})">{_panel(title, lines)}</g>')
    return "\n".join([*parts, "</svg>"])


def _panel(title: str, lines: dict[str, Points]) -> str:
    right = max((at for points in lines.values() for at, _ in points), default=1.0) or 1.0
    top = max((rate for points in lines.values() for _, rate in points), default=1.0) or 1.0
    width, height = WIDTH - 2 * MARGIN, PANEL - 70

    def place(at: float, rate: float) -> str:
        return f"{MARGIN + at / right * width:.1f},{40 + height - rate / top * height:.1f}"

    parts = [
        f'<text x="{MARGIN}" y="18" font-size="13" font-weight="bold">{escape(title)}</text>',
        f'<rect x="{MARGIN}" y="40" width="{width}" height="{height}" fill="none" stroke="#bbb"/>',
        f'<text x="{MARGIN - 6}" y="44" text-anchor="end">{top:,.0f}/s</text>',
        f'<text x="{MARGIN - 6}" y="{40 + height}" text-anchor="end">0</text>',
        f'<text x="{MARGIN + width}" y="{54 + height}" text-anchor="end">{right:,.0f} s</text>',
    ]
    for number, (name, points) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(place(at, rate) for at, rate in points)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        )
        left = MARGIN + 90 * number
        parts.append(f'<text x="{left}" y="34" fill="{colour}">{escape(name)}</text>')
    return "".join(parts)
