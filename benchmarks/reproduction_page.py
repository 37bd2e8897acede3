"""docs/reproduction.md: what the papers print, what recorded runs give, and what that says of the papers' claims."""


def write_page() -> None:
    pass
