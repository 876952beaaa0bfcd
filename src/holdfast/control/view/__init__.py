"""The joined view and what is kept of it: readings of platforms and agents, history, costs.

Here belongs what reads, joins, keeps and exports figures for people. Nothing here decides. May
import ``control.incidents`` and what lies below.
"""
