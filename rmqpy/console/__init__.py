"""The web console: screens about a running cluster, Java's or rmqpy's, and about stores.

A collector polls the brokers once for all viewers and keeps an hour of their rates. The views are
computed from these facts without I/O, and templates turn them into pages. aiohttp and Jinja2 are
optional (``pip install 'rmqpy[console]'``); only :mod:`rmqpy.console.web` imports them.

Invariants: nothing is written to a cluster unless writes are allowed and somebody has logged in;
every list, history, and cache has a bound; a page loads nothing from another host.
"""
