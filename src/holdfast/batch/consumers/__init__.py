"""Works off queues that others fill: one consumer for each, answers to where the file says.

Here belongs what is done with a message; not what moves it (``storage.message_queues``), nor how
much may run at once (``core.batch``).
"""
