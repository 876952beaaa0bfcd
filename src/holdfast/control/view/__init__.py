"""The joined view and what feeds it: readings of platforms and agents, history, costs.

Here belongs what reads, joins, keeps and exports figures for people. Nothing here decides. May
import ``control.incidents`` and what lies below.
"""
