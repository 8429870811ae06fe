"""One machine drives the others: frames over the standard streams of ``rmqpy upgrade agent``.

``frames`` has the form, ``driver`` the end that drives (over the system's ssh).
"""
