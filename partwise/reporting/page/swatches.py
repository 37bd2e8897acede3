"""How a series looks: a colour, a dash and a mark of its own, as many as there are combinations of them."""

COLOURS, DASHES, MARKS = 7, ("", "5 3", "1.5 3", "5 2 1.5 2", "9 3"), 6  # as in page.css and page.js
SHAPES = (
    '<circle cx="13" cy="6" r="3.6"/>',
    '<path d="M13 1.8 17.2 9.6H8.8Z"/>',
    '<rect x="9.6" y="2.6" width="6.8" height="6.8"/>',
    '<path d="M13 1.4 17.6 6 13 10.6 8.4 6Z"/>',
    '<path d="M13 10.2 8.8 2.4H17.2Z"/>',
    '<path d="M11.4 1.8h3.2v2.6h2.6v3.2h-2.6v2.6h-3.2V7.6H8.8V4.4h2.6Z"/>',
)


def swatch(number: int) -> str:
    """A piece of the line of a series, with its mark."""
    colour, dash, shape = f"var(--c{number % COLOURS})", DASHES[number % len(DASHES)], SHAPES[number % MARKS]
    return (
        f'<svg width="26" height="12" viewBox="0 0 26 12" aria-hidden="true">'
        f'<line x1="0" y1="6" x2="26" y2="6" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
        f'<g fill="{colour}">{shape}</g></svg>'
    )
