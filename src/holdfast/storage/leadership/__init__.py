"""Stores of the leadership among several controls: who holds the lease, and in which term."""
