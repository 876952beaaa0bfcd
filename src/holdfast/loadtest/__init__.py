"""Load tests of a gateway or of any server with the OpenAI API: load, measure, judge, report.

What belongs here: the plan of requests, the client that sends them and notes times, the check that
the client itself was fast enough, statistics with their intervals, and the report. What does not:
any policy of the fleet; the server is seen from outside, as its users see it.
"""
