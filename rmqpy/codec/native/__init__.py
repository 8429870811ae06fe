"""The C versions of the codec's functions, which convert buffers to buffers and contain no policy.

``entry_batch`` and ``tally`` correspond to the Python modules of these names, ``binding``
contains all other functions. Only :mod:`rmqpy.codec.backend`,
:mod:`rmqpy.codec.tally.backend` and the broker's fast path import this package, because it needs
the extension ``rmqpy._native``.
"""
