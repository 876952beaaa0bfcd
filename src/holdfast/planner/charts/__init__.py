"""Draws the charts of plans: shapes on a page, written as SVG or as pixels."""
