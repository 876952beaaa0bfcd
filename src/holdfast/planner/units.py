"""How plans write sizes, shares, amounts and times for people."""

from typing import Final

GB: Final = 1e9


def gb(size: float) -> str:
    """A size in decimal gb, or in megabytes where it is small."""
    return f"{size / GB:.2f} GB" if abs(size) >= 0.095 * GB else f"{size / 1e6:.1f} MB"


def nine_digits(value: float) -> str:
    """A share with nine digits, cut and not rounded: 0.9999999999 must not look like always."""
    return f"{value:.12f}"[:-3]


def money(value: float) -> str:
    """An amount, with cents where they matter."""
    return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"


__all__ = ["GB", "gb", "money", "nine_digits"]
