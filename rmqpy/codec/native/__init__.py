"""The C versions of the codec's functions: buffers in, buffers out, and no policy.

``binding`` holds the general functions; ``entry_batch`` and ``tally`` are one module's each. Only
:mod:`rmqpy.codec.backend`, :mod:`rmqpy.codec.tally.backend` and the broker's fast path import this
package, because it needs the extension ``rmqpy._native``.
"""
