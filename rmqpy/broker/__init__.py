"""The broker: what its two ports answer, built of processors that each know the two or three tables
they use.

``service.Broker`` is the composition root. Nothing here knows a socket, a thread or the system's
clock.
"""
