"""The C versions of the codec's functions, which convert buffers to buffers and contain no policy.

``entry_batch`` corresponds to the Python module of this name, ``binding`` contains all other
functions. Only :mod:`rmqpy.codec.backend` and the broker's fast path import this package, because
it needs the extension ``rmqpy._native``.
"""
