"""How a series looks in a line of text."""

from partwise.reporting.style import DASHES, MARKS, look


def swatch(series: int) -> str:
    """Return a piece of the line of a series, with its mark, as SVG."""
    own = look(series)
    colour = f"var(--{own.colour})"
    return (
        f'<svg width="26" height="12" viewBox="0 0 26 12" aria-hidden="true">'
        f'<line x1="0" y1="6" x2="26" y2="6" stroke="{colour}" stroke-width="2" '
        f'stroke-dasharray="{DASHES[own.dash].svg}"/>'
        f'<g fill="{colour}">{MARKS[own.mark].svg}</g></svg>'
    )
