"""Upgrade regression suites: ``rmqpy suite run suite.toml``, and the same in pytest.

A suite names stores, stages, limits, and hooks (:mod:`rmqpy.suite.suite_file`). Each store is
copied and walks through its stages (:mod:`rmqpy.suite.store_walk`), which are those of
``rmqpy upgrade``; each stage is one case of the result (:mod:`rmqpy.suite.cases`), whatever becomes
of the others. The stores themselves are only read.

``pytest --pyargs rmqpy.suite --rmq-suite suite.toml`` has one test per case. The first test that
needs a store carries out its whole walk, and the other ones, also those of other workers of
pytest-xdist, read its results.
"""
